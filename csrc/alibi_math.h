// The bias of one cell, the logit of one score, and exp. R is float, double, or a vector register
// of either with elements A; P supplies what has no operator (cpu/alibi_simd.h).
//
//   bias = slope * -|j - i|, i and j the positions of query and key
//   logit = score * scale + bias
//
// No product may be contracted into an FMA, and exp is the polynomial below and never the
// library's: that is what makes all instruction sets agree.
//
// No include guard and no includes: each instruction-set namespace includes its own copy.

// `offset` is j - i.
template <class P, class R>
POSENC_INLINE R alibi_cell(R slope, R offset) {
  return slope * P::minus_abs(offset);
}

template <class P, class R>
POSENC_INLINE R alibi_logit(R score, R scale, R slope, R offset) {
  return score * scale + alibi_cell<P>(slope, offset);
}

// The gradient of a score, from its probability y, the gradient g of that, and dot = sum(y * g).
template <class R>
POSENC_INLINE R alibi_score_grad(R y, R g, R dot, R scale) {
  return y * (g - dot) * scale;
}

// One lane, for scalar code on any device.
struct AlibiLane {
  POSENC_INLINE float fill(float a) { return a; }
  POSENC_INLINE double fill(double a) { return a; }
  template <class A>
  POSENC_INLINE A minus_abs(A r) {
    return r < 0 ? r : -r;
  }
  POSENC_INLINE float times_power(float p, float shifted) {
    return bits_float(float_bits(p) + (float_bits(shifted) << 23));
  }
  POSENC_INLINE double times_power(double p, double shifted) {
    uint64_t u, n;
    std::memcpy(&u, &p, sizeof u);
    std::memcpy(&n, &shifted, sizeof n);
    u += n << 52;
    std::memcpy(&p, &u, sizeof p);
    return p;
  }
  template <class A>
  POSENC_INLINE A zero_below(A x, A limit, A r) {
    return x < limit ? A(0) : r;
  }
};

// exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2. Adding `shift` rounds to a
// whole number, which then stands in the low bits. ln 2 in two parts makes n * ln2_high exact.
template <class A>
struct AlibiExp;

template <>
struct AlibiExp<float> {
  static constexpr float log2e = 1.44269504f, shift = 12582912.0f;  // 1.5 * 2^23
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float lowest = -87.3365f;  // just above the log of the least normal number
  // (exp(r) - 1 - r) / r^2, highest power first (Cephes)
  static constexpr int count = 6;
  POSENC_INLINE float term(int i) {
    constexpr float terms[count] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                    4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    return terms[i];
  }
};

template <>
struct AlibiExp<double> {
  static constexpr double log2e = 1.4426950408889634, shift = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
  static constexpr double lowest = -708.3964;
  // 1 / k! for k = 13 .. 2: what is left out is below 2^-57
  static constexpr int count = 12;
  POSENC_INLINE double term(int i) {
    constexpr double terms[count] = {
        1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
        1.0 / 5040,       1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2};
    return terms[i];
  }
};

// exp(x) for x <= 0, within about 1 ulp; exactly 1 at 0, 0 where the result would be subnormal, NaN
// at NaN: of a NaN, times_power would make a number of its payload, so x - x is added.
template <class P, class A, class R>
POSENC_INLINE R alibi_exp(R x) {
  using E = AlibiExp<A>;
  const R shifted = x * P::fill(E::log2e) + P::fill(E::shift);
  const R n = shifted - P::fill(E::shift);
  const R r = (x - n * P::fill(E::ln2_high)) - n * P::fill(E::ln2_low);
  R p = P::fill(E::term(0));
  for (int i = 1; i < E::count; ++i) p = p * r + P::fill(E::term(i));
  p = p * (r * r) + r + P::fill(A(1));
  return P::zero_below(x, P::fill(E::lowest), P::times_power(p, shifted) + (x - x));
}
