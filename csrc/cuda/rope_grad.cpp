// Gradient of rope with respect to cos and sin on CUDA: find which tokens used each row, then add.
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include "cuda/launch.h"
#include "cuda/rope_arguments.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::tuple<Tensor, Tensor> rope_table_grad(const Tensor& grad, const Tensor& x, const Tensor& cos,
                                           const Tensor& sin, const OptionalTensor& positions,
                                           const OptionalTensor& offsets,
                                           const OptionalTensor& cu_seqlens, int64_t offset,
                                           c10::string_view layout, bool interleaved, bool inverse,
                                           bool interleaved_out) {
  const char* op = "rope_table_grad";
  const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                     offset, layout, interleaved, inverse, interleaved_out};
  const RopeAxes axes = check_rope_table_grad(op, grad, x, options);
  const auto size = [&](int axis) { return axis < 0 ? 1 : x.size(axis); };
  const auto stride = [](const Tensor& t, int axis) { return axis < 0 ? 0 : t.stride(axis); };

  Tensor dcos = at::empty(cos.sizes(), cos.options()), dsin = at::empty(sin.sizes(), sin.options());
  RopeTableGradCall call{};
  call.grad = static_cast<const char*>(grad.const_data_ptr());
  call.x = static_cast<const char*>(x.const_data_ptr());
  call.grad_batch = stride(grad, axes.batch), call.grad_token = stride(grad, axes.seq);
  call.grad_head = stride(grad, axes.heads), call.grad_dim = grad.stride(-1);
  call.x_batch = stride(x, axes.batch), call.x_token = stride(x, axes.seq);
  call.x_head = stride(x, axes.heads), call.x_dim = x.stride(-1);
  call.batch = size(axes.batch), call.heads = size(axes.heads), call.pairs = cos.size(-1);
  call.source = row_source(op, options, size(axes.seq), call.batch);
  call.batched = cos.dim() == 3 && cos.size(0) > 1;
  call.inverse = inverse;
  call.dcos = dcos.mutable_data_ptr(), call.dsin = dsin.mutable_data_ptr();
  call.table = rope_dtype(cos.scalar_type());
  if (dcos.numel() == 0) return {dcos, dsin};

  Tensor sorted, order;
  const int64_t tokens = call.batch * call.source.length;
  if ((positions || cu_seqlens) && tokens > 0) {
    Tensor rows = at::empty({tokens}, x.options().dtype(at::kLong));
    launch_on_device_of(x, [&](cudaStream_t stream) {
      launch_rope_rows(call.source, call.batch, rows.mutable_data_ptr<int64_t>(), stream);
    });
    std::tie(sorted, order) = at::sort(rows, /*stable=*/true, /*dim=*/0, /*descending=*/false);
    call.sorted_rows = sorted.const_data_ptr<int64_t>();
    call.tokens = order.const_data_ptr<int64_t>();
  }
  launch_on_device_of(x, [&](cudaStream_t stream) {
    launch_rope_table_grad(call, rope_dtype(x.scalar_type()), {interleaved, interleaved_out},
                           stream);
  });
  return {dcos, dsin};
}

POSENC_CUDA_LIBRARY(m) { m.impl("rope_table_grad", rope_table_grad); }

}  // namespace
}  // namespace posenc
