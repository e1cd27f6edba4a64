// norm_rope, qk_norm_rope and their gradient on CUDA: the arguments as the kernels want them.
#include <ATen/ops/zero.h>

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/norm_rope_arguments.h"
#include "norm_rope_ops.h"

namespace posenc {
namespace {

using at::Tensor;

struct OnCuda {
  using Int = int64_t;
  static constexpr bool fake = false;

  static Tensor empty(const Tensor& x) {
    return at::empty_strided(x.sizes(), output_strides<int64_t>(x), x.options());
  }

  static void run(const char* op, std::initializer_list<NormOutput> outputs, RopeAxes axes,
                  const NormOptions& norm, const RopeOptions<int64_t>& options) {
    int64_t length = 0, elements = 0;
    for (const auto& [in, out] : outputs) {
      length = std::max(length, out.size(axes.seq));
      elements += out.numel();
    }
    if (elements == 0) return;
    const auto operand = [&](const NormOutput& o) {
      return norm_operand(rope_operand(o.in.x.tensor, o.out, axes), o.in);
    };
    const Tensor& like = outputs.begin()->out;
    NormCall call = norm_call(op, operand(*outputs.begin()), like.size(-1), norm, options, length);
    if (outputs.size() > 1) call.k = operand(*(outputs.begin() + 1));
    launch_on_device_of(like, [&](cudaStream_t stream) {
      launch_norm_rope(call, rope_dtype(like.scalar_type()), options.interleaved, stream);
    });
  }

  static void grad(const Tensor& grad, const NormInput& in, RopeAxes axes, const NormOptions& norm,
                   const RopeOptions<int64_t>& options, const Tensor& dx, const Tensor& dweight,
                   const Tensor& dbias) {
    if (dx.numel() == 0) {
      dweight.zero_();
      dbias.zero_();
      return;
    }
    const auto type = dx.scalar_type();
    NormGradCall call{};
    call.norm = norm_call("norm_rope_grad", norm_operand(rope_operand(in.x.tensor, dx, axes), in),
                          dx.size(-1), norm, options, dx.size(axes.seq));
    const RopeOperand g = rope_operand(grad, dx, axes);
    call.grad = g.x;
    call.grad_batch = g.x_batch, call.grad_token = g.x_token;
    call.grad_head = g.x_head, call.grad_dim = g.x_dim;
    call.dweight = dweight.mutable_data_ptr(), call.dbias = dbias.mutable_data_ptr();
    call.weight_type = rope_dtype(dweight.scalar_type());
    call.bias_type = rope_dtype(dbias.scalar_type());
    const int64_t tiles = g.batch * ((g.tokens + kNormGradTokens - 1) / kNormGradTokens);
    const auto doubles = dx.options().dtype(at::kDouble);
    const Tensor weight_sums = at::empty({tiles * dweight.numel()}, doubles);
    const Tensor bias_sums = at::empty({tiles * dbias.numel()}, doubles);
    const int64_t groups = g.batch * g.tokens * g.heads;
    const Tensor statistics =
        at::empty({2 * groups}, dx.options().dtype(type == at::kDouble ? at::kDouble : at::kFloat));
    call.statistics = statistics.mutable_data_ptr();
    if (dweight.numel() > 0) call.weight_sums = weight_sums.mutable_data_ptr<double>();
    if (dbias.numel() > 0) call.bias_sums = bias_sums.mutable_data_ptr<double>();
    launch_on_device_of(dx, [&](cudaStream_t stream) {
      launch_norm_rope_grad(call, rope_dtype(type), options.interleaved, stream);
    });
  }
};

POSENC_CUDA_LIBRARY(m) { NormRopeOps<OnCuda>::add_to(m); }

}  // namespace
}  // namespace posenc
