// The rotation of one pair. A is float, double, or a vector register of either.
//
//   u' = u*c - v*s        v' = v*c + u*s
//
// The order of operations is that of the eager x*cos + rotate_half(x)*sin (negation is exact), and
// no product may be contracted into an FMA: that is what makes all devices and instruction sets
// agree.
//
// No include guard and no includes: each instruction-set namespace includes its own copy.

template <class A>
POSENC_INLINE void rotate_pair(A u, A v, A c, A s, A& u_out, A& v_out) {
  u_out = u * c - v * s;
  v_out = v * c + u * s;
}

// Adds to dc and ds what one pair contributes to the gradient of its cos and sin.
// (gu, gv) is the gradient of (u', v').
template <class A>
POSENC_INLINE void rotate_pair_table_grad(A u, A v, A gu, A gv, A& dc, A& ds) {
  dc += gu * u + gv * v;
  ds += gv * u - gu * v;
}
