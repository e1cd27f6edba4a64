// The relative ops on meta tensors: the checks of the kernels, and outputs without data.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "relative.h"

namespace posenc {
namespace {

using at::Tensor;
using c10::SymInt;

Tensor relative_gather(const Tensor& x, const Tensor& index, SymInt k_len) {
  return at::empty_symint(check_relative_gather<SymInt>(x, index, k_len), x.options());
}

Tensor relative_scatter(const Tensor& y, const Tensor& index, SymInt size) {
  return at::empty_symint(check_relative_scatter<SymInt>(y, index, size), y.options());
}

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) {
  m.impl("relative_gather", relative_gather);
  m.impl("relative_scatter", relative_scatter);
}

}  // namespace
}  // namespace posenc
