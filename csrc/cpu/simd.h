// Loads and stores of one vector of channels, for each instruction set. Included by the *_rows
// bodies inside their namespace and target region, so there is no include guard.
//
// A policy P has P::width<A> lanes of the math type A (float or double) and
//   load(p)                one register of lanes from p[0..width)
//   store(p, r)            rounds once to the type of p
//   store<true>(p, r)      the same past the caches, for p aligned to what is written
//   store(p, low, high)    two registers at once, where stores_two<type of p> says it pays
//   load_pairs(p, u, v)    u = p[0], p[2], ...   v = p[1], p[3], ...
//   store_pairs(p, u, v)   the inverse
// and a wide one also
//   join(low, high)        one register of floats from two of doubles, rounded once

struct Scalar {
  template <class A>
  static constexpr int64_t width = 1;
  template <class T>
  static constexpr bool stores_two = false;

  template <class T>
  static inline math_t<T> load(const T* p) {
    return widen(*p);
  }
  template <bool streamed = false, class T>
  static inline void store(T* p, math_t<T> r) {
    narrow(r, *p);
  }
  template <class T>
  static inline void load_pairs(const T* p, math_t<T>& u, math_t<T>& v) {
    u = widen(p[0]);
    v = widen(p[1]);
  }
  template <bool streamed = false, class T>
  static inline void store_pairs(T* p, math_t<T> u, math_t<T> v) {
    narrow(u, p[0]);
    narrow(v, p[1]);
  }
  static inline void fence() {}
};

#if defined(POSENC_AVX512)
#include "cpu/simd_avx512.h"
#elif defined(POSENC_AVX2)
#include "cpu/simd_avx2.h"
#else
using Wide = Scalar;
#endif
