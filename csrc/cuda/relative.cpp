// The relative ops on CUDA: check, allocate, one launch.
#include "relative.h"

#include <ATen/ops/empty.h>

#include "cuda/launch.h"
#include "cuda/relative_kernels.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;

// The rows of t, if they are few enough dimensions once those that follow from each other are one.
bool find_rows(const Tensor& t, RelativeRows& rows) {
  rows.dims = 0;
  for (int64_t d = 0; d < t.dim() - 1; ++d) {
    if (t.size(d) == 1) continue;
    const int last = rows.dims - 1;
    if (last >= 0 && rows.stride[last] == t.size(d) * t.stride(d)) {
      rows.size[last] *= t.size(d);
      rows.stride[last] = t.stride(d);
    } else if (rows.dims == RelativeRows::most) {
      return false;
    } else {
      rows.size[rows.dims] = t.size(d);
      rows.stride[rows.dims++] = t.stride(d);
    }
  }
  return true;
}

// `from` has no empty dimension. It is replaced by a copy if its rows lie too wildly.
RelativeCall call_of(Tensor& from, const Tensor& index, const Tensor& out, int64_t k_len,
                     int64_t columns) {
  RelativeCall call{};
  if (!find_rows(from, call.rows)) {
    from = from.contiguous();
    find_rows(from, call.rows);
  }
  call.from = from.const_data_ptr();
  call.step = from.stride(-1);
  call.out = out.mutable_data_ptr();
  call.index = index.const_data_ptr();
  call.wide = index.scalar_type() == at::kLong;
  call.index_step = index.stride(0);
  call.count = from.numel() / from.size(-1);
  call.q_len = from.size(-2);
  call.k_len = k_len;
  call.columns = columns;
  return call;
}

Tensor relative_gather(const Tensor& x, const Tensor& index, int64_t k_len) {
  const auto sizes = check_relative_gather<int64_t>(x, index, k_len);
  const Tensor out = at::empty(sizes, x.options());
  if (out.numel() == 0) return out;
  if (x.size(-1) == 0) return out.zero_();
  Tensor from = x;
  const RelativeCall call = call_of(from, index, out, k_len, x.size(-1));
  launch_on_device_of(
      x, [&](cudaStream_t stream) { launch_relative_gather(call, x.element_size(), stream); });
  return out;
}

Tensor relative_scatter(const Tensor& y, const Tensor& index, int64_t size) {
  const auto sizes = check_relative_scatter<int64_t>(y, index, size);
  const Tensor out = at::empty(sizes, y.options());
  if (out.numel() == 0) return out;
  if (y.size(-1) == 0) return out.zero_();
  Tensor from = y;
  const RelativeCall call = call_of(from, index, out, y.size(-1), size);
  launch_on_device_of(y, [&](cudaStream_t stream) {
    launch_relative_scatter(call, rope_dtype(y.scalar_type()), stream);
  });
  return out;
}

POSENC_CUDA_LIBRARY(m) {
  m.impl("relative_gather", relative_gather);
  m.impl("relative_scatter", relative_scatter);
}

}  // namespace
}  // namespace posenc
