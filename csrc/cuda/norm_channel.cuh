// One channel of norm_rope, and its weights.
#pragma once

#include "cuda/norm_rope_rows.cuh"

namespace posenc {

// One channel. Shifted: as the CPU's kernel that takes off a mean or adds a bias.
template <class T>
struct NormChannel {
  using A = math_t<T>;
  NormStatistics<A> statistic;
  bool shifted, unit_first, round_after;

  POSENC_DEVICE_METHOD A norm(A x, A weight, A bias) const {
    A unit = shifted ? norm_unit(x, statistic.mean, statistic.scale) : x * statistic.scale;
    if (unit_first) unit = rounded<T>(shifted ? unit * A(1) + A(0) : unit);
    A y = unit * weight;
    if (shifted) y = y + bias;
    return round_after ? rounded<T>(y) : y;
  }
};

template <class T>
POSENC_DEVICE NormChannel<T> norm_channel(const NormRule& rule, const NormCudaOperand& o,
                                          const NormStatistics<math_t<T>>& statistic) {
  return {statistic, rule.centred || o.bias.data != nullptr, rule.round_unit,
          rule.round_between && !rule.rope_first};
}

// The weights of channels at, at + 1, ...
template <class A, int width>
POSENC_DEVICE void read_weights(const NormCudaOperand& o, bool wide, A offset, int64_t at,
                                A* weight, A* bias) {
#pragma unroll
  for (int i = 0; i < width; ++i) weight[i] = 1, bias[i] = 0;
  if (o.weight.data != nullptr) {
    read_entries<A, width>(o.weight, wide, at * o.weight.column, weight);
#pragma unroll
    for (int i = 0; i < width; ++i) weight[i] = weight[i] + offset;
  }
  if (o.bias.data != nullptr) read_entries<A, width>(o.bias, wide, at * o.bias.column, bias);
}

}  // namespace posenc
