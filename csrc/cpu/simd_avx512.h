// Wide of simd.h, for AVX-512 with VL, BW and DQ. Included by it, so there is no include guard.

struct Wide {
  template <class A>
  static constexpr int64_t width = 64 / sizeof(A);
  template <class T>
  static constexpr bool stores_two = std::is_same_v<T, bf16>;

  static inline __m512 load(const float* p) { return _mm512_loadu_ps(p); }
  static inline __m512d load(const double* p) { return _mm512_loadu_pd(p); }
  static inline __m512 load(const bf16* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static inline __m512 load(const f16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  template <bool streamed = false>
  static inline void store(float* p, __m512 r) {
    put<streamed>(p, _mm512_castps_si512(r));
  }
  template <bool streamed = false>
  static inline void store(double* p, __m512d r) {
    put<streamed>(p, _mm512_castpd_si512(r));
  }
  template <bool streamed = false>
  static inline void store(bf16* p, __m512 r) {
    const __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(r), 16));
    put<streamed>(p, h);
  }
  template <bool streamed = false>
  POSENC_INLINE void store(bf16* p, __m512 low, __m512 high) {
    __m512i a = round_number(low), b = round_number(high);
    if (_mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q)) a = round_bf16(low), b = round_bf16(high);
    put<streamed>(p, _mm512_permutex2var_epi16(a, upper_halves(), b));
  }
  template <bool streamed = false>
  static inline void store(f16* p, __m512 r) {
    put<streamed>(p, narrow_f16(r));
  }

  static inline __m512 join(__m512d low, __m512d high) {
    const __m512 first = _mm512_castps256_ps512(_mm512_cvtpd_ps(low));
    return _mm512_insertf32x8(first, _mm512_cvtpd_ps(high), 1);
  }

  static inline void load_pairs(const float* p, __m512& u, __m512& v) {
    const __m512 a = load(p), b = load(p + 16);
    u = _mm512_permutex2var_ps(a, evens32(), b);
    v = _mm512_permutex2var_ps(a, odds32(), b);
  }
  static inline void load_pairs(const double* p, __m512d& u, __m512d& v) {
    const __m512d a = load(p), b = load(p + 8);
    u = _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
    v = _mm512_permutex2var_pd(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
  }
  // One 32-bit lane holds one 16-bit pair, u in the low half.
  static inline void load_pairs(const bf16* p, __m512& u, __m512& v) {
    const __m512i w = _mm512_loadu_si512(p);
    u = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    v = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static inline void load_pairs(const f16* p, __m512& u, __m512& v) {
    const __m512i w = _mm512_loadu_si512(p);
    u = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(w));
    v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(w, 16)));
  }

  template <bool streamed = false>
  static inline void store_pairs(float* p, __m512 u, __m512 v) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    store<streamed>(p, _mm512_permutex2var_ps(u, low, v));
    store<streamed>(p + 16, _mm512_permutex2var_ps(u, high, v));
  }
  template <bool streamed = false>
  static inline void store_pairs(double* p, __m512d u, __m512d v) {
    store<streamed>(p, _mm512_permutex2var_pd(u, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), v));
    store<streamed>(p + 8,
                    _mm512_permutex2var_pd(u, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), v));
  }
  template <bool streamed = false>
  static inline void store_pairs(bf16* p, __m512 u, __m512 v) {
    const __m512i low = _mm512_srli_epi32(round_bf16(u), 16);
    const __m512i high =
        _mm512_and_si512(round_bf16(v), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    put<streamed>(p, _mm512_or_si512(low, high));
  }
  template <bool streamed = false>
  static inline void store_pairs(f16* p, __m512 u, __m512 v) {
    const __m512i low = _mm512_cvtepu16_epi32(narrow_f16(u));
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow_f16(v)), 16);
    put<streamed>(p, _mm512_or_si512(low, high));
  }

  // Orders streamed stores before what another thread reads.
  static inline void fence() { _mm_sfence(); }

 private:
  template <bool streamed>
  static inline void put(void* p, __m512i r) {
    if constexpr (streamed) {
      _mm512_stream_si512(static_cast<__m512i*>(p), r);
    } else {
      _mm512_storeu_si512(p, r);
    }
  }
  template <bool streamed>
  static inline void put(void* p, __m256i r) {
    if constexpr (streamed) {
      _mm256_stream_si256(static_cast<__m256i*>(p), r);
    } else {
      _mm256_storeu_si256(static_cast<__m256i*>(p), r);
    }
  }
  static inline __m512i evens32() {
    return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  }
  static inline __m512i odds32() {
    return _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  }
  // The bfloat16 is the upper half of each lane.
  static inline __m512i round_bf16(__m512 r) {
    const __mmask16 nan = _mm512_cmp_ps_mask(r, r, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(round_number(r), nan, _mm512_set1_epi32(0x7fc00000));
  }
  static inline __m512i round_number(__m512 r) {  // r is no NaN
    const __m512i u = _mm512_castps_si512(r);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  }
  static inline __m512i upper_halves() {  // 1, 3, 5, ... 63
    const __m512i pair = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_epi32(_mm512_mullo_epi32(pair, _mm512_set1_epi32(0x40004)),
                            _mm512_set1_epi32(0x30001));
  }
  static inline __m256i narrow_f16(__m512 r) {
    return _mm512_cvtps_ph(r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};
