// rope_table on meta tensors: the checks of the kernel, and outputs without data.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "rope_table.h"

namespace posenc {
namespace {

std::tuple<at::Tensor, at::Tensor> rope_table(const at::Tensor& positions,
                                              const at::Tensor& inv_freq, double,
                                              at::ScalarType dtype) {
  const auto sizes = check_rope_table_inputs<c10::SymInt>(positions, inv_freq, dtype);
  const auto options = inv_freq.options().dtype(dtype);
  return {at::empty_symint(sizes, options), at::empty_symint(sizes, options)};
}

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) { m.impl("rope_table", rope_table); }

}  // namespace
}  // namespace posenc
