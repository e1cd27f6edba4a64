// The ops that normalise and rotate, once for CPU, CUDA and meta tensors: check, allocate, and let
// the device do the work.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <initializer_list>
#include <tuple>

#include "norm_rope.h"
#include "rope_ops.h"

namespace posenc {

// x with its weights, and where the result goes.
struct NormOutput {
  const NormInput& in;
  const at::Tensor& out;
};

// Device::Int is int64_t, or c10::SymInt for the fake device; Device::empty(x) is a fresh output
// like x. Device::run(op, outputs, axes, norm, options) writes them, and Device::grad is below.
template <class Device>
struct NormRopeOps {
  using Tensor = at::Tensor;
  using OptionalTensor = std::optional<Tensor>;
  using Int = typename Device::Int;
  using Word = c10::string_view;
  using Outputs = std::initializer_list<NormOutput>;

  static Tensor norm_rope(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                          const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
                          const OptionalTensor& offsets, const OptionalTensor& cu_seqlens,
                          Int offset, Word layout, bool interleaved, bool inverse,
                          bool interleaved_out, double eps, double weight_offset, Word norm,
                          Word norm_dims, Word order, Word rounding) {
    const RopeOptions<Int> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                   offset, layout, interleaved, inverse, interleaved_out};
    const NormOptions rule{eps, weight_offset, norm, norm_dims, order, rounding};
    const NormInput in{{"x", x}, "weight", weight, "bias", bias};
    const RopeAxes axes = check_norm_rope("norm_rope", in, rule, options);
    const Tensor out = Device::empty(x);
    Device::run("norm_rope", Outputs{{in, out}}, axes, rule, options);
    return out;
  }

  static void norm_rope_(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                         const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
                         const OptionalTensor& offsets, const OptionalTensor& cu_seqlens,
                         Int offset, Word layout, bool interleaved, bool inverse,
                         bool interleaved_out, double eps, double weight_offset, Word norm,
                         Word norm_dims, Word order, Word rounding) {
    const RopeOptions<Int> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                   offset, layout, interleaved, inverse, interleaved_out};
    const NormOptions rule{eps, weight_offset, norm, norm_dims, order, rounding};
    const NormInput in{{"x", x}, "weight", weight, "bias", bias};
    const RopeAxes axes = check_norm_rope("norm_rope", in, rule, options);
    check_written("norm_rope", "x", x, in, options);
    Device::run("norm_rope", Outputs{{in, x}}, axes, rule, options);
    if (!Device::fake) bump_version(x);
  }

  static void norm_rope_out(const Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, const Tensor& cos, const Tensor& sin,
                            const OptionalTensor& positions, const OptionalTensor& offsets,
                            const OptionalTensor& cu_seqlens, Int offset, Word layout,
                            bool interleaved, bool inverse, bool interleaved_out, double eps,
                            double weight_offset, Word norm, Word norm_dims, Word order,
                            Word rounding, const Tensor& out) {
    const RopeOptions<Int> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                   offset, layout, interleaved, inverse, interleaved_out};
    const NormOptions rule{eps, weight_offset, norm, norm_dims, order, rounding};
    const NormInput in{{"x", x}, "weight", weight, "bias", bias};
    const RopeAxes axes = check_norm_rope("norm_rope", in, rule, options);
    check_rope_out<Int>("norm_rope", x, out);
    check_written("norm_rope", "out", out, in, options);
    if (!Device::fake && !same_memory(x, out)) check_apart("norm_rope", "out", out, "x", x);
    Device::run("norm_rope", Outputs{{in, out}}, axes, rule, options);
    if (!Device::fake) bump_version(out);
  }

  static std::tuple<Tensor, Tensor> qk_norm_rope(
      const Tensor& q, const Tensor& k, const OptionalTensor& q_weight,
      const OptionalTensor& k_weight, const OptionalTensor& q_bias, const OptionalTensor& k_bias,
      const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
      const OptionalTensor& offsets, const OptionalTensor& cu_seqlens, Int offset, Word layout,
      bool interleaved, bool inverse, bool interleaved_out, double eps, double weight_offset,
      Word norm, Word norm_dims, Word order, Word rounding) {
    const RopeOptions<Int> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                   offset, layout, interleaved, inverse, interleaved_out};
    const NormOptions rule{eps, weight_offset, norm, norm_dims, order, rounding};
    const NormInput q_in{{"q", q}, "q_weight", q_weight, "q_bias", q_bias};
    const NormInput k_in{{"k", k}, "k_weight", k_weight, "k_bias", k_bias};
    const RopeAxes axes = check_qk_norm_rope("qk_norm_rope", q_in, k_in, rule, options);
    const Tensor q_out = Device::empty(q), k_out = Device::empty(k);
    Device::run("qk_norm_rope", Outputs{{q_in, q_out}, {k_in, k_out}}, axes, rule, options);
    return {q_out, k_out};
  }

  static void qk_norm_rope_(const Tensor& q, const Tensor& k, const OptionalTensor& q_weight,
                            const OptionalTensor& k_weight, const OptionalTensor& q_bias,
                            const OptionalTensor& k_bias, const Tensor& cos, const Tensor& sin,
                            const OptionalTensor& positions, const OptionalTensor& offsets,
                            const OptionalTensor& cu_seqlens, Int offset, Word layout,
                            bool interleaved, bool inverse, bool interleaved_out, double eps,
                            double weight_offset, Word norm, Word norm_dims, Word order,
                            Word rounding) {
    const RopeOptions<Int> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                   offset, layout, interleaved, inverse, interleaved_out};
    const NormOptions rule{eps, weight_offset, norm, norm_dims, order, rounding};
    const NormInput q_in{{"q", q}, "q_weight", q_weight, "q_bias", q_bias};
    const NormInput k_in{{"k", k}, "k_weight", k_weight, "k_bias", k_bias};
    const RopeAxes axes = check_qk_norm_rope("qk_norm_rope", q_in, k_in, rule, options);
    for (const auto* written : {&q_in, &k_in})
      for (const auto* in : {&q_in, &k_in})
        check_written("qk_norm_rope", written->x.name, written->x.tensor, *in, options);
    if (!Device::fake) check_apart("qk_norm_rope", "q", q, "k", k);
    Device::run("qk_norm_rope", Outputs{{q_in, q}, {k_in, k}}, axes, rule, options);
    if (!Device::fake) bump_version(q), bump_version(k);
  }

  static std::tuple<Tensor, Tensor, Tensor> norm_rope_grad(
      const Tensor& grad, const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
      bool parameters, const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
      const OptionalTensor& offsets, const OptionalTensor& cu_seqlens, Int offset, Word layout,
      bool interleaved, bool inverse, bool interleaved_out, double eps, double weight_offset,
      Word norm, Word norm_dims, Word order, Word rounding) {
    const RopeOptions<Int> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                   offset, layout, interleaved, inverse, interleaved_out};
    const NormOptions rule{eps, weight_offset, norm, norm_dims, order, rounding};
    const NormInput in{{"x", x}, "weight", weight, "bias", bias};
    const RopeAxes axes = check_norm_rope_grad("norm_rope_grad", grad, in, rule, options);
    const Tensor dx = Device::empty(x);
    const auto like = [&](const OptionalTensor& t) {
      return parameters && t ? Device::empty(*t) : at::empty({0}, t ? t->options() : x.options());
    };
    const Tensor dweight = like(weight), dbias = like(bias);
    Device::grad(grad, in, axes, rule, options, dx, dweight, dbias);
    return {dx, dweight, dbias};
  }

  static void add_to(torch::Library& m) {
    m.impl("norm_rope", norm_rope);
    m.impl("norm_rope_", norm_rope_);
    m.impl("norm_rope_out", norm_rope_out);
    m.impl("qk_norm_rope", qk_norm_rope);
    m.impl("qk_norm_rope_", qk_norm_rope_);
    m.impl("norm_rope_grad", norm_rope_grad);
  }

 private:
  // A tensor to write into shares no memory with itself nor with what is read beside x.
  static void check_written(const char* op, const char* name, const Tensor& t, const NormInput& in,
                            const RopeOptions<Int>& options) {
    // Without data only an overlap with itself can be told, and only for known sizes.
    if (!t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) check_writable(op, name, t);
    if (Device::fake) return;
    check_apart(op, name, t, "cos", options.cos);
    check_apart(op, name, t, "sin", options.sin);
    if (in.weight) check_apart(op, name, t, in.weight_name, *in.weight);
    if (in.bias) check_apart(op, name, t, in.bias_name, *in.bias);
  }
};

}  // namespace posenc
