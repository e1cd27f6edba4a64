// The norm of one channel, and its gradient. A is float, double, or a vector register of either, S
// the float or double that one row shares.
//
//   scale = 1 / sqrt(sum((x - mean)^2) / count + eps)      unit = (x - mean) * scale
//   y = unit * weight + bias
//
// Sums over channels have one order everywhere: channel d of each head, in the order of heads, is
// added to partial sum d % 16, and the 16 are added up in halves: s[i] + s[i + 8], then + 4, 2, 1.
//
// No include guard and no includes: each instruction-set namespace includes its own copy.

template <class S>
POSENC_INLINE S norm_scale(S sum, S count, S eps) {
  return S(1) / std::sqrt(sum / count + eps);
}

template <class A, class S>
POSENC_INLINE A norm_unit(A x, S mean, S scale) {
  return (x - mean) * scale;
}

// The gradient of x, for the gradient g of y. `along` is sum(g * weight * unit) / count, `flat` is
// sum(g * weight) / count if the mean was taken off, else 0.
template <class A, class S>
POSENC_INLINE A norm_grad(A g, A weight, A unit, S scale, S along, S flat) {
  return ((g * weight - unit * along) - flat) * scale;
}
