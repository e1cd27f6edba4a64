// Strides of a fresh output that follows its input: dense, with the input's order of dimensions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

namespace posenc {

// Sizes and strides as int64_t for real tensors, as c10::SymInt for traced ones, so that one piece
// of code serves the kernels and their fake versions.
template <class Int>
c10::ArrayRef<Int> sizes_of(const at::Tensor& t);
template <>
inline c10::ArrayRef<int64_t> sizes_of<int64_t>(const at::Tensor& t) {
  return t.sizes();
}
template <>
inline c10::ArrayRef<c10::SymInt> sizes_of<c10::SymInt>(const at::Tensor& t) {
  return t.sym_sizes();
}

template <class Int>
c10::ArrayRef<Int> strides_of(const at::Tensor& t);
template <>
inline c10::ArrayRef<int64_t> strides_of<int64_t>(const at::Tensor& t) {
  return t.strides();
}
template <>
inline c10::ArrayRef<c10::SymInt> strides_of<c10::SymInt>(const at::Tensor& t) {
  return t.sym_strides();
}

// A dense input keeps its strides. Any other keeps the order of its strides without the gaps;
// expanded dimensions (stride 0) and dimensions of size 1 stay where they stand.
template <class Int>
c10::SmallVector<Int, 4> output_strides(const at::Tensor& t) {
  const auto sizes = sizes_of<Int>(t);
  const auto strides = strides_of<Int>(t);
  const int64_t n = t.dim();
  c10::SmallVector<int64_t, 4> order(n);  // outermost first
  for (int64_t i = 0; i < n; ++i) {
    int64_t place = i;
    order[i] = i;
    for (int64_t j = i; j-- > 0;) {
      const int64_t other = order[j];
      if (strides[other] == 0 || strides[i] == 0 || sizes[other] == 1 || sizes[i] == 1) continue;
      if (strides[other] >= strides[i]) break;
      std::swap(order[place], order[j]);
      place = j;
    }
  }
  c10::SmallVector<Int, 4> result(n, Int(1));
  Int step(1);
  for (int64_t i = n; i-- > 0;) {
    result[order[i]] = step;
    if (sizes[order[i]] > 1) step = step * sizes[order[i]];
  }
  return result;
}

}  // namespace posenc
