// The short calls of norm_rope and qk_norm_rope.
#include <torch/csrc/Exceptions.h>

#include "short_arguments.h"

namespace posenc {
namespace {

template <class Result, class... Lead>
using NormOp = Result(Lead..., const Tensor&, const Tensor&, const OptionalTensor&,
                      const OptionalTensor&, const OptionalTensor&, SymInt, c10::string_view, bool,
                      bool, bool, double, double, c10::string_view, c10::string_view,
                      c10::string_view, c10::string_view);

// Calls an op with `lead` and the options after it.
template <class Op, class... Lead>
auto call(const Op& op, int64_t elements, const RopeArguments& a, const NormArguments& n,
          const Lead&... lead) {
  return run(elements, [&] {
    return op.call(lead..., a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
                   a.interleaved, a.inverse, a.interleaved_out, n.eps, n.weight_offset, n.norm,
                   n.norm_dims, n.order, n.rounding);
  });
}

py::object norm_rope(py::handle x_, py::handle weight_, py::handle bias_, py::handle cos,
                     py::handle sin, py::handle layout, py::handle positions, py::handle offset,
                     py::handle cu_seqlens, py::handle interleaved, py::handle inverse,
                     py::handle inplace, py::handle eps, py::handle weight_offset, py::handle norm,
                     py::handle norm_dims, py::handle order, py::handle rounding, py::handle out) {
  using Op = NormOp<Tensor, const Tensor&, const OptionalTensor&, const OptionalTensor&>;
  using Op_ = NormOp<void, const Tensor&, const OptionalTensor&, const OptionalTensor&>;
  static const auto op = find_op<Op>("posenc_ext::norm_rope");
  static const auto op_ = find_op<Op_>("posenc_ext::norm_rope_");
  PlainArguments read(!modes_active() && out.is_none());
  const Tensor& x = read.tensor(x_);
  const OptionalTensor weight = read.optional_tensor(weight_), bias = read.optional_tensor(bias_);
  const RopeArguments a(read, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
                        inplace, py::none());
  const NormArguments n(read, eps, weight_offset, norm, norm_dims, order, rounding);
  if (!read.plain()) return py::none();
  if (!a.inplace) return wrap(call(op, x.numel(), a, n, x, weight, bias));
  call(op_, x.numel(), a, n, x, weight, bias);
  return py::reinterpret_borrow<py::object>(x_);
}

py::object qk_norm_rope(py::handle q_, py::handle k_, py::handle q_weight_, py::handle k_weight_,
                        py::handle q_bias_, py::handle k_bias_, py::handle cos, py::handle sin,
                        py::handle layout, py::handle positions, py::handle offset,
                        py::handle cu_seqlens, py::handle interleaved, py::handle inverse,
                        py::handle inplace, py::handle eps, py::handle weight_offset,
                        py::handle norm, py::handle norm_dims, py::handle order,
                        py::handle rounding) {
  using Op = NormOp<std::tuple<Tensor, Tensor>, const Tensor&, const Tensor&, const OptionalTensor&,
                    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&>;
  using Op_ = NormOp<void, const Tensor&, const Tensor&, const OptionalTensor&,
                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&>;
  static const auto op = find_op<Op>("posenc_ext::qk_norm_rope");
  static const auto op_ = find_op<Op_>("posenc_ext::qk_norm_rope_");
  PlainArguments read(!modes_active());
  const Tensor &q = read.tensor(q_), &k = read.tensor(k_);
  const OptionalTensor q_weight = read.optional_tensor(q_weight_),
                       k_weight = read.optional_tensor(k_weight_),
                       q_bias = read.optional_tensor(q_bias_),
                       k_bias = read.optional_tensor(k_bias_);
  const RopeArguments a(read, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
                        inplace, py::none());
  const NormArguments n(read, eps, weight_offset, norm, norm_dims, order, rounding);
  if (!read.plain()) return py::none();
  const int64_t elements = q.numel() + k.numel();
  if (a.inplace) {
    call(op_, elements, a, n, q, k, q_weight, k_weight, q_bias, k_bias);
    return py::make_tuple(q_, k_);
  }
  auto [q_out, k_out] = call(op, elements, a, n, q, k, q_weight, k_weight, q_bias, k_bias);
  return py::make_tuple(wrap(std::move(q_out)), wrap(std::move(k_out)));
}

}  // namespace

void bind_norm_rope(py::module_& m) {
  m.def("norm_rope", torch::wrap_pybind_function(norm_rope));
  m.def("qk_norm_rope", torch::wrap_pybind_function(qk_norm_rope));
}

}  // namespace posenc
