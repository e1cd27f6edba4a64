// rope_table on CPU: check, allocate, fill.
#include "rope_table.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cpu/huge_pages.h"
#include "cpu/rope_table_fill.h"

namespace posenc {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> rope_table(const Tensor& positions, const Tensor& inv_freq,
                                      double attention_factor, at::ScalarType dtype) {
  const auto sizes = check_rope_table_inputs<int64_t>(positions, inv_freq, dtype);
  const auto options = inv_freq.options().dtype(dtype);
  Tensor cos = at::empty(sizes, options), sin = at::empty(sizes, options);
  prefer_huge_pages(cos);
  prefer_huge_pages(sin);
  const int64_t n = inv_freq.numel();
  fill_table(positions, inv_freq, attention_factor, dtype,
             {cos.mutable_data_ptr(), sin.mutable_data_ptr(), n, n, false});
  return {cos, sin};
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) { m.impl("rope_table", rope_table); }

}  // namespace
}  // namespace posenc
