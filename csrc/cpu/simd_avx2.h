// Wide of simd.h, for AVX2 with F16C. Included by it, so there is no include guard.

struct Wide {
  template <class A>
  static constexpr int64_t width = 32 / sizeof(A);
  template <class T>
  static constexpr bool stores_two = false;

  static inline __m256 load(const float* p) { return _mm256_loadu_ps(p); }
  static inline __m256d load(const double* p) { return _mm256_loadu_pd(p); }
  static inline __m256 load(const bf16* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  static inline __m256 load(const f16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  template <bool streamed = false>
  static inline void store(float* p, __m256 r) {
    put<streamed>(p, _mm256_castps_si256(r));
  }
  template <bool streamed = false>
  static inline void store(double* p, __m256d r) {
    put<streamed>(p, _mm256_castpd_si256(r));
  }
  template <bool streamed = false>
  static inline void store(bf16* p, __m256 r) {
    put<streamed>(p, low_halves(_mm256_srli_epi32(round_bf16(r), 16)));
  }
  template <bool streamed = false>
  static inline void store(f16* p, __m256 r) {
    put<streamed>(p, narrow_f16(r));
  }

  static inline __m256 join(__m256d low, __m256d high) {
    const __m256 first = _mm256_castps128_ps256(_mm256_cvtpd_ps(low));
    return _mm256_insertf128_ps(first, _mm256_cvtpd_ps(high), 1);
  }

  static inline void load_pairs(const float* p, __m256& u, __m256& v) {
    const __m256 a = load(p), b = load(p + 8);
    u = in_order(_mm256_shuffle_ps(a, b, 0x88));
    v = in_order(_mm256_shuffle_ps(a, b, 0xdd));
  }
  static inline void load_pairs(const double* p, __m256d& u, __m256d& v) {
    const __m256d a = load(p), b = load(p + 4);
    u = _mm256_permute4x64_pd(_mm256_unpacklo_pd(a, b), 0xd8);
    v = _mm256_permute4x64_pd(_mm256_unpackhi_pd(a, b), 0xd8);
  }
  // One 32-bit lane holds one 16-bit pair, u in the low half.
  static inline void load_pairs(const bf16* p, __m256& u, __m256& v) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    u = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    v = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static inline void load_pairs(const f16* p, __m256& u, __m256& v) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    u = _mm256_cvtph_ps(low_halves(_mm256_and_si256(w, _mm256_set1_epi32(0xffff))));
    v = _mm256_cvtph_ps(low_halves(_mm256_srli_epi32(w, 16)));
  }

  template <bool streamed = false>
  static inline void store_pairs(float* p, __m256 u, __m256 v) {
    const __m256 low = _mm256_unpacklo_ps(u, v), high = _mm256_unpackhi_ps(u, v);
    store<streamed>(p, _mm256_permute2f128_ps(low, high, 0x20));
    store<streamed>(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
  template <bool streamed = false>
  static inline void store_pairs(double* p, __m256d u, __m256d v) {
    const __m256d low = _mm256_unpacklo_pd(u, v), high = _mm256_unpackhi_pd(u, v);
    store<streamed>(p, _mm256_permute2f128_pd(low, high, 0x20));
    store<streamed>(p + 4, _mm256_permute2f128_pd(low, high, 0x31));
  }
  template <bool streamed = false>
  static inline void store_pairs(bf16* p, __m256 u, __m256 v) {
    const __m256i low = _mm256_srli_epi32(round_bf16(u), 16);
    const __m256i high =
        _mm256_and_si256(round_bf16(v), _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    put<streamed>(p, _mm256_or_si256(low, high));
  }
  template <bool streamed = false>
  static inline void store_pairs(f16* p, __m256 u, __m256 v) {
    const __m256i low = _mm256_cvtepu16_epi32(narrow_f16(u));
    const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow_f16(v)), 16);
    put<streamed>(p, _mm256_or_si256(low, high));
  }

  // Orders streamed stores before what another thread reads.
  static inline void fence() { _mm_sfence(); }

 private:
  template <bool streamed>
  static inline void put(void* p, __m256i r) {
    if constexpr (streamed) {
      _mm256_stream_si256(static_cast<__m256i*>(p), r);
    } else {
      _mm256_storeu_si256(static_cast<__m256i*>(p), r);
    }
  }
  template <bool streamed>
  static inline void put(void* p, __m128i r) {
    if constexpr (streamed) {
      _mm_stream_si128(static_cast<__m128i*>(p), r);
    } else {
      _mm_storeu_si128(static_cast<__m128i*>(p), r);
    }
  }
  // shuffle_ps works within 128-bit halves: put the four 64-bit groups in memory order.
  static inline __m256 in_order(__m256 r) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(r), 0xd8));
  }
  // The bfloat16 is the upper half of each lane.
  static inline __m256i round_bf16(__m256 r) {
    const __m256i u = _mm256_castps_si256(r);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(r, r, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_add_epi32(u, bias), _mm256_set1_epi32(0x7fc00000), nan);
  }
  static inline __m128i narrow_f16(__m256 r) {
    return _mm256_cvtps_ph(r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 8 lanes below 2^16 -> 8 halves
  static inline __m128i low_halves(__m256i w) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(w, w), 0xd8);
    return _mm256_castsi256_si128(packed);
  }
};
