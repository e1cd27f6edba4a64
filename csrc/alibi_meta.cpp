// alibi on meta tensors: the checks of the kernels, and outputs of the same sizes and strides
// without data. Sizes are symbolic, so tracing under any length stays one graph.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "alibi.h"

namespace posenc {
namespace {

using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

Tensor empty_output(const Tensor& x) {
  return at::empty_strided_symint(x.sym_sizes(), output_strides<SymInt>(x), x.options());
}

Tensor empty_slopes(const Tensor& slopes) {
  return at::empty_symint(slopes.sym_sizes(), slopes.options());
}

Tensor alibi_bias(const Tensor& slopes, SymInt q_len, SymInt k_len, bool /*causal*/,
                  at::ScalarType dtype, const OptionalTensor& key_positions) {
  const auto size =
      check_alibi_bias<SymInt>("alibi_bias", slopes, q_len, k_len, dtype, key_positions);
  return at::empty_symint(size, slopes.options().dtype(dtype));
}

Tensor alibi_slope_grad(const Tensor& grad, const Tensor& slopes, bool /*causal*/,
                        const OptionalTensor& key_positions) {
  check_slope_grad<SymInt>("alibi_slope_grad", grad, slopes, key_positions);
  return empty_slopes(slopes);
}

Tensor add_alibi(const Tensor& scores, const Tensor& slopes, bool /*causal*/) {
  check_scores<SymInt>("add_alibi", scores, slopes);
  return empty_output(scores);
}

void add_alibi_(const Tensor& scores, const Tensor& slopes, bool /*causal*/) {
  check_scores<SymInt>("add_alibi", scores, slopes);
}

Tensor alibi_softmax(const Tensor& scores, const Tensor& slopes, double /*scale*/, bool /*causal*/,
                     const OptionalTensor& key_padding_mask) {
  check_scores<SymInt>("alibi_softmax", scores, slopes);
  check_key_padding_mask<SymInt>("alibi_softmax", scores, key_padding_mask);
  return empty_output(scores);
}

Tensor alibi_softmax_grad(const Tensor& grad, const Tensor& y, double /*scale*/, bool /*causal*/) {
  check_softmax_grad<SymInt>("alibi_softmax_grad", grad, y);
  return empty_output(y);
}

Tensor alibi_softmax_slope_grad(const Tensor& grad, const Tensor& y, const Tensor& slopes,
                                bool /*causal*/) {
  check_softmax_slope_grad<SymInt>("alibi_softmax_slope_grad", grad, y, slopes);
  return empty_slopes(slopes);
}

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) {
  m.impl("alibi_bias", alibi_bias);
  m.impl("alibi_slope_grad", alibi_slope_grad);
  m.impl("add_alibi", add_alibi);
  m.impl("add_alibi_", add_alibi_);
  m.impl("alibi_softmax", alibi_softmax);
  m.impl("alibi_softmax_grad", alibi_softmax_grad);
  m.impl("alibi_softmax_slope_grad", alibi_softmax_slope_grad);
}

}  // namespace
}  // namespace posenc
