#include "rope_graph.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <tuple>

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class Result, class... Lead>
using RopeOp = Result(Lead..., const Tensor&, const Tensor&, const OptionalTensor&,
                      const OptionalTensor&, const OptionalTensor&, c10::SymInt, c10::string_view,
                      bool, bool, bool);

template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

Tensor rotate(const Tensor& x, const RopeGraphOptions& o) {
  static const auto op = find_op<RopeOp<Tensor, const Tensor&>>("posenc_ext::rope");
  return op.call(x, o.cos, o.sin, o.positions, o.offsets, o.cu_seqlens, o.offset, o.layout,
                 o.interleaved, o.inverse, o.interleaved_out);
}

std::tuple<Tensor, Tensor> rotate(const Tensor& q, const Tensor& k, const RopeGraphOptions& o) {
  using Pair = std::tuple<Tensor, Tensor>;
  static const auto op =
      find_op<RopeOp<Pair, const Tensor&, const Tensor&>>("posenc_ext::apply_rope");
  return op.call(q, k, o.cos, o.sin, o.positions, o.offsets, o.cu_seqlens, o.offset, o.layout,
                 o.interleaved, o.inverse, o.interleaved_out);
}

// The gradient of a rotation is the inverse rotation of the gradient, by the op itself, which has
// derivatives of its own.
struct Rotation : torch::autograd::Function<Rotation> {
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const OptionalTensor& k,
                               const RopeGraphOptions& o) {
    const auto saved = [](const OptionalTensor& t) { return t.value_or(Tensor()); };
    ctx->save_for_backward(
        {o.cos, o.sin, saved(o.positions), saved(o.offsets), saved(o.cu_seqlens)});
    ctx->set_materialize_grads(false);
    ctx->saved_data["offset"] = o.offset;
    ctx->saved_data["layout"] = std::string(o.layout);
    ctx->saved_data["interleaved"] = o.interleaved;
    ctx->saved_data["inverse"] = o.inverse;
    ctx->saved_data["interleaved_out"] = o.interleaved_out;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (!k) return {rotate(q, o)};
    auto [q_out, k_out] = rotate(q, *k, o);
    if (!q.requires_grad()) ctx->mark_non_differentiable({q_out});
    if (!k->requires_grad()) ctx->mark_non_differentiable({k_out});
    return {q_out, k_out};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    const std::string layout = ctx->saved_data["layout"].toStringRef();
    const RopeGraphOptions o{saved[0],
                             saved[1],
                             optional(saved[2]),
                             optional(saved[3]),
                             optional(saved[4]),
                             ctx->saved_data["offset"].toInt(),
                             layout,
                             ctx->saved_data["interleaved_out"].toBool(),
                             !ctx->saved_data["inverse"].toBool(),
                             ctx->saved_data["interleaved"].toBool()};
    variable_list result(3);  // for q, k and the options
    const auto needed = [&](size_t i) {
      return i < grads.size() && grads[i].defined() && ctx->needs_input_grad(i);
    };
    if (needed(0) && needed(1)) {
      std::tie(result[0], result[1]) = rotate(grads[0], grads[1], o);
    } else {
      for (size_t i : {0, 1})
        if (needed(i)) result[i] = rotate(grads[i], o);
    }
    return result;
  }
};

}  // namespace

std::pair<Tensor, Tensor> rotate_with_graph(const Tensor& q, const OptionalTensor& k,
                                            const RopeGraphOptions& options) {
  variable_list rotated = Rotation::apply(q, k, options);
  return {rotated[0], k ? rotated[1] : Tensor()};
}

}  // namespace posenc
