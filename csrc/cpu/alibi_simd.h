// What alibi needs of vector registers beyond loads and stores, for each instruction set. Included
// by alibi_rows.inc after cpu/simd.h, inside its namespace and target region: no include guard.
//
//   fill(a)                  a in every lane
//   count<A>(first)          first + lane, each rounded once to A
//   minus_abs(r)             -|r|; -0 for 0
//   larger(a, b)             a > b ? a : b
//   masked(keep, r)          r where keep[lane] is not 0, else -inf
//   times_power(p, shifted)  p * 2^n, n the whole number in the low bits of `shifted`
//   zero_below(x, limit, r)  x < limit ? 0 : r

struct AlibiScalar : Scalar, AlibiLane {
  template <class A>
  static inline A count(int64_t first) {
    return static_cast<A>(first);
  }
  template <class A>
  static inline A larger(A a, A b) {
    return a > b ? a : b;
  }
  template <class A>
  static inline A masked(const uint8_t* keep, A r) {
    return *keep ? r : -static_cast<A>(INFINITY);
  }
};

#if defined(POSENC_AVX512)

struct AlibiWide : Wide {
  static inline __m512 fill(float a) { return _mm512_set1_ps(a); }
  static inline __m512d fill(double a) { return _mm512_set1_pd(a); }
  template <class A>
  static inline auto count(int64_t first) {
    const int32_t from = static_cast<int32_t>(first);
    if constexpr (sizeof(A) == 4) {
      const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_set1_epi32(from), lane));
    } else {
      const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      return _mm512_cvtepi32_pd(_mm256_add_epi32(_mm256_set1_epi32(from), lane));
    }
  }
  static inline __m512 minus_abs(__m512 r) { return _mm512_or_ps(r, _mm512_set1_ps(-0.0f)); }
  static inline __m512d minus_abs(__m512d r) { return _mm512_or_pd(r, _mm512_set1_pd(-0.0)); }
  static inline __m512 larger(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  static inline __m512d larger(__m512d a, __m512d b) { return _mm512_max_pd(a, b); }
  static inline __m512 masked(const uint8_t* keep, __m512 r) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(keep));
    return _mm512_mask_mov_ps(fill(-INFINITY), _mm_test_epi8_mask(bytes, bytes), r);
  }
  static inline __m512d masked(const uint8_t* keep, __m512d r) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(keep));
    const auto kept = static_cast<__mmask8>(_mm_test_epi8_mask(bytes, bytes));
    return _mm512_mask_mov_pd(fill(-double{INFINITY}), kept, r);
  }
  static inline __m512 times_power(__m512 p, __m512 shifted) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
  }
  static inline __m512d times_power(__m512d p, __m512d shifted) {
    const __m512i n = _mm512_slli_epi64(_mm512_castpd_si512(shifted), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(p), n));
  }
  static inline __m512 zero_below(__m512 x, __m512 limit, __m512 r) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), r);
  }
  static inline __m512d zero_below(__m512d x, __m512d limit, __m512d r) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, limit, _CMP_NLT_UQ), r);
  }
};

#elif defined(POSENC_AVX2)

struct AlibiWide : Wide {
  static inline __m256 fill(float a) { return _mm256_set1_ps(a); }
  static inline __m256d fill(double a) { return _mm256_set1_pd(a); }
  template <class A>
  static inline auto count(int64_t first) {
    const int32_t from = static_cast<int32_t>(first);
    if constexpr (sizeof(A) == 4) {
      const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_set1_epi32(from), lane));
    } else {
      const __m128i lane = _mm_setr_epi32(0, 1, 2, 3);
      return _mm256_cvtepi32_pd(_mm_add_epi32(_mm_set1_epi32(from), lane));
    }
  }
  static inline __m256 minus_abs(__m256 r) { return _mm256_or_ps(r, _mm256_set1_ps(-0.0f)); }
  static inline __m256d minus_abs(__m256d r) { return _mm256_or_pd(r, _mm256_set1_pd(-0.0)); }
  static inline __m256 larger(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
  static inline __m256d larger(__m256d a, __m256d b) { return _mm256_max_pd(a, b); }
  static inline __m256 masked(const uint8_t* keep, __m256 r) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(keep));
    const __m256i dropped = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_setzero_si256());
    return _mm256_blendv_ps(r, fill(-INFINITY), _mm256_castsi256_ps(dropped));
  }
  static inline __m256d masked(const uint8_t* keep, __m256d r) {
    int32_t four;
    std::memcpy(&four, keep, sizeof four);
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    const __m256i dropped = _mm256_cmpeq_epi64(bytes, _mm256_setzero_si256());
    return _mm256_blendv_pd(r, fill(-double{INFINITY}), _mm256_castsi256_pd(dropped));
  }
  static inline __m256 times_power(__m256 p, __m256 shifted) {
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
  }
  static inline __m256d times_power(__m256d p, __m256d shifted) {
    const __m256i n = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), n));
  }
  static inline __m256 zero_below(__m256 x, __m256 limit, __m256 r) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), r);
  }
  static inline __m256d zero_below(__m256d x, __m256d limit, __m256d r) {
    return _mm256_andnot_pd(_mm256_cmp_pd(x, limit, _CMP_LT_OQ), r);
  }
};

#else

using AlibiWide = AlibiScalar;

#endif
