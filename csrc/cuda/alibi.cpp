// The alibi ops on CUDA: check, allocate, and the arguments as the kernels want them.
#include "alibi.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "cuda/alibi_kernels.h"
#include "cuda/launch.h"
#include "overlap.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Strides of single entries do not matter; as 0 they do not stand in the way of 16-byte access.
AlibiCudaOperand operand(const Tensor& t, const void* data) {
  const auto stride = [&](int64_t d) { return t.size(d) > 1 ? t.stride(d) : 0; };
  return {data, t.dim() == 4 ? stride(0) : 0, stride(-3), stride(-2),
          t.size(-1) > 1 ? t.stride(-1) : 1};
}
AlibiCudaOperand input(const Tensor& t) { return operand(t, t.const_data_ptr()); }
AlibiCudaOperand output(const Tensor& t) { return operand(t, t.mutable_data_ptr()); }

AlibiCudaKeys keys(const OptionalTensor& t) {
  if (!t) return {};
  return {t->const_data_ptr(), t->scalar_type() == at::kLong, t->stride(0), t->stride(1)};
}

// For scores, or a bias, of the shape of t.
AlibiCall call_of(const Tensor& t, bool causal) {
  AlibiCall call{};
  call.batch = t.dim() == 4 ? t.size(0) : 1;
  call.heads = t.size(-3);
  call.q_len = static_cast<int>(t.size(-2));
  call.k_len = static_cast<int>(t.size(-1));
  call.causal = causal;
  return call;
}

AlibiCudaSlopes slopes_of(const Tensor& slopes) {
  return {slopes.const_data_ptr(), rope_dtype(slopes.scalar_type()),
          slopes.dim() == 2 ? slopes.stride(0) : 0, slopes.stride(-1)};
}

Tensor empty_like_scores(const Tensor& t) {
  return at::empty_strided(t.sizes(), output_strides<int64_t>(t), t.options());
}

using Launch = void (*)(const AlibiCall&, RopeDtype, cudaStream_t);

void run(const Tensor& t, const AlibiCall& call, Launch launch) {
  if (t.numel() == 0) return;
  launch_on_device_of(
      t, [&](cudaStream_t stream) { launch(call, rope_dtype(t.scalar_type()), stream); });
}

Tensor alibi_bias(const Tensor& slopes, int64_t q_len, int64_t k_len, bool causal,
                  at::ScalarType dtype, const OptionalTensor& key_positions) {
  const auto size =
      check_alibi_bias<int64_t>("alibi_bias", slopes, q_len, k_len, dtype, key_positions);
  Tensor out = at::empty(size, slopes.options().dtype(dtype));
  AlibiCall call = call_of(out, causal);
  call.out = output(out);
  call.slopes = slopes_of(slopes);
  call.key_positions = keys(key_positions);
  run(out, call, launch_alibi_bias);
  return out;
}

void add(const Tensor& scores, const Tensor& slopes, bool causal, const Tensor& out) {
  AlibiCall call = call_of(scores, causal);
  call.x = input(scores);
  call.out = output(out);
  call.slopes = slopes_of(slopes);
  run(out, call, launch_add_alibi);
}

Tensor add_alibi(const Tensor& scores, const Tensor& slopes, bool causal) {
  check_scores<int64_t>("add_alibi", scores, slopes);
  Tensor out = empty_like_scores(scores);
  add(scores, slopes, causal, out);
  return out;
}

void add_alibi_(const Tensor& scores, const Tensor& slopes, bool causal) {
  check_scores<int64_t>("add_alibi", scores, slopes);
  check_writable("add_alibi", "scores", scores);
  check_apart("add_alibi", "scores", scores, "slopes", slopes);
  add(scores, slopes, causal, scores);
  // The version counter tells autograd that a saved tensor has changed.
  if (!scores.is_inference()) scores.unsafeGetTensorImpl()->bump_version();
}

Tensor alibi_softmax(const Tensor& scores, const Tensor& slopes, double scale, bool causal,
                     const OptionalTensor& key_padding_mask) {
  check_scores<int64_t>("alibi_softmax", scores, slopes);
  check_key_padding_mask<int64_t>("alibi_softmax", scores, key_padding_mask);
  Tensor out = empty_like_scores(scores);
  AlibiCall call = call_of(scores, causal);
  call.x = input(scores);
  call.out = output(out);
  call.slopes = slopes_of(slopes);
  call.keep = keys(key_padding_mask);
  call.scale = scale;
  run(out, call, launch_alibi_softmax);
  return out;
}

Tensor alibi_softmax_grad(const Tensor& grad, const Tensor& y, double scale, bool causal) {
  check_softmax_grad<int64_t>("alibi_softmax_grad", grad, y);
  Tensor out = empty_like_scores(y);
  AlibiCall call = call_of(y, causal);
  call.x = input(y);
  call.grad = input(grad);
  call.out = output(out);
  call.scale = scale;
  run(out, call, launch_alibi_softmax_grad);
  return out;
}

// Besides the result, memory for one double per tile: 8 bytes for 32768 scores.
Tensor slope_grad(const Tensor& grad, AlibiCall& call, const Tensor& slopes, bool softmax) {
  Tensor out = at::empty(slopes.sizes(), slopes.options());
  if (out.numel() == 0) return out;
  call.grad = input(grad);
  call.slopes = slopes_of(slopes);
  if (slopes.dim() == 2) call.slopes.batch = 1;  // only whether the batch shares them matters
  const int64_t rows = alibi_tile_rows(call.q_len, call.k_len);
  const int64_t tiles = call.batch * call.heads * ((call.q_len + rows - 1) / rows);
  const Tensor sums = at::empty({tiles}, grad.options().dtype(at::kDouble));
  const AlibiSlopeGrads to{out.mutable_data_ptr(), sums.mutable_data_ptr<double>(),
                           static_cast<int>(rows), softmax};
  launch_on_device_of(grad, [&](cudaStream_t stream) {
    launch_alibi_slope_grad(call, to, rope_dtype(grad.scalar_type()), stream);
  });
  return out;
}

Tensor alibi_slope_grad(const Tensor& grad, const Tensor& slopes, bool causal,
                        const OptionalTensor& key_positions) {
  check_slope_grad<int64_t>("alibi_slope_grad", grad, slopes, key_positions);
  AlibiCall call = call_of(grad, causal);
  call.key_positions = keys(key_positions);
  return slope_grad(grad, call, slopes, false);
}

Tensor alibi_softmax_slope_grad(const Tensor& grad, const Tensor& y, const Tensor& slopes,
                                bool causal) {
  check_softmax_slope_grad<int64_t>("alibi_softmax_slope_grad", grad, y, slopes);
  AlibiCall call = call_of(y, causal);
  call.x = input(y);
  return slope_grad(grad, call, slopes, true);
}

POSENC_CUDA_LIBRARY(m) {
  m.impl("alibi_bias", alibi_bias);
  m.impl("add_alibi", add_alibi);
  m.impl("add_alibi_", add_alibi_);
  m.impl("alibi_softmax", alibi_softmax);
  m.impl("alibi_slope_grad", alibi_slope_grad);
  m.impl("alibi_softmax_grad", alibi_softmax_grad);
  m.impl("alibi_softmax_slope_grad", alibi_softmax_slope_grad);
}

}  // namespace
}  // namespace posenc
