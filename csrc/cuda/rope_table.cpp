// rope_table on CUDA: check, allocate, one launch.
#include "rope_table.h"

#include <ATen/ops/empty.h>

#include "cuda/launch.h"
#include "cuda/table_positions.h"

namespace posenc {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> rope_table(const Tensor& positions, const Tensor& inv_freq,
                                      double attention_factor, at::ScalarType dtype) {
  const auto sizes = check_rope_table_inputs<int64_t>(positions, inv_freq, dtype);
  const auto options = inv_freq.options().dtype(dtype);
  Tensor cos = at::empty(sizes, options), sin = at::empty(sizes, options);
  if (cos.numel() == 0) return {cos, sin};
  const Tensor dense = positions.contiguous();
  TableCall call = table_call(dense, inv_freq);
  call.factor = attention_factor;
  call.out = {cos.mutable_data_ptr(), 0, 0, call.n, 1};
  call.sin_data = sin.mutable_data_ptr();
  launch_on_device_of(cos,
                      [&](cudaStream_t stream) { launch_table(call, rope_dtype(dtype), stream); });
  return {cos, sin};
}

POSENC_CUDA_LIBRARY(m) { m.impl("rope_table", rope_table); }

}  // namespace
}  // namespace posenc
