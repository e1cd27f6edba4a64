// The ops that rotate, once for CPU and CUDA: check, allocate, and let the device rotate.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "overlap.h"
#include "rope.h"
#include "rope_operand.h"

namespace posenc {

inline RopeOperand rope_operand(const at::Tensor& x, const at::Tensor& out, RopeAxes axes) {
  const auto size = [&](int axis) { return axis < 0 ? 1 : x.size(axis); };
  const auto stride = [](const at::Tensor& t, int axis) { return axis < 0 ? 0 : t.stride(axis); };
  return {.x = static_cast<const char*>(x.const_data_ptr()),
          .out = static_cast<char*>(out.mutable_data_ptr()),
          .batch = size(axes.batch),
          .tokens = size(axes.seq),
          .heads = size(axes.heads),
          .x_batch = stride(x, axes.batch),
          .x_token = stride(x, axes.seq),
          .x_head = stride(x, axes.heads),
          .x_dim = x.stride(-1),
          .out_batch = stride(out, axes.batch),
          .out_token = stride(out, axes.seq),
          .out_head = stride(out, axes.heads),
          .out_dim = out.stride(-1)};
}

// The version counter tells autograd that a saved tensor has changed.
inline void bump_version(const at::Tensor& t) {
  if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

// Device::rotate(op, x, operands, options) writes the results, x being one that has their dtype,
// head dim and device; Device::prepare(out) is told of each fresh output. Device::kReordersInPlace:
// x may be `out` where the pairs of the two stand in different order.
template <class Device>
struct RopeOps {
  using Tensor = at::Tensor;
  using OptionalTensor = std::optional<Tensor>;

  static Tensor empty_output(const Tensor& x) {
    Tensor out = at::empty_strided(x.sizes(), output_strides<int64_t>(x), x.options());
    Device::prepare(out);
    return out;
  }

  // Where the result for `out` is written: a tensor of its own where it may not be.
  static Tensor target(const Tensor& x, const Tensor& out, const RopeOptions<int64_t>& options) {
    const bool reorders = options.interleaved != options.interleaved_out;
    const bool apart = x.const_data_ptr() != out.const_data_ptr();
    return Device::kReordersInPlace || !reorders || apart ? out : empty_output(out);
  }

  static void finish(const Tensor& out, const Tensor& written) {
    if (!written.is_same(out)) out.copy_(written);
    bump_version(out);
  }

  static Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin,
                     const OptionalTensor& positions, const OptionalTensor& offsets,
                     const OptionalTensor& cu_seqlens, int64_t offset, c10::string_view layout,
                     bool interleaved, bool inverse, bool interleaved_out) {
    const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                       offset, layout, interleaved, inverse, interleaved_out};
    const RopeAxes axes = check_rope("rope", {"x", x}, options);
    Tensor out = empty_output(x);
    Device::rotate("rope", x, rope_operand(x, out, axes), options);
    return out;
  }

  static void rope_(const Tensor& x, const Tensor& cos, const Tensor& sin,
                    const OptionalTensor& positions, const OptionalTensor& offsets,
                    const OptionalTensor& cu_seqlens, int64_t offset, c10::string_view layout,
                    bool interleaved, bool inverse, bool interleaved_out) {
    const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                       offset, layout, interleaved, inverse, interleaved_out};
    const RopeAxes axes = check_rope("rope", {"x", x}, options);
    check_writable("rope", "x", x);
    check_apart("rope", "x", x, "cos", cos);
    check_apart("rope", "x", x, "sin", sin);
    const Tensor written = target(x, x, options);
    Device::rotate("rope", x, rope_operand(x, written, axes), options);
    finish(x, written);
  }

  static void rope_out(const Tensor& x, const Tensor& cos, const Tensor& sin,
                       const OptionalTensor& positions, const OptionalTensor& offsets,
                       const OptionalTensor& cu_seqlens, int64_t offset, c10::string_view layout,
                       bool interleaved, bool inverse, bool interleaved_out, const Tensor& out) {
    const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                       offset, layout, interleaved, inverse, interleaved_out};
    const RopeAxes axes = check_rope("rope", {"x", x}, options);
    check_rope_out<int64_t>("rope", x, out);
    check_writable("rope", "out", out);
    if (!same_memory(x, out)) check_apart("rope", "out", out, "x", x);
    check_apart("rope", "out", out, "cos", cos);
    check_apart("rope", "out", out, "sin", sin);
    const Tensor written = target(x, out, options);
    Device::rotate("rope", x, rope_operand(x, written, axes), options);
    finish(out, written);
  }

  static std::tuple<Tensor, Tensor> apply_rope(const Tensor& q, const Tensor& k, const Tensor& cos,
                                               const Tensor& sin, const OptionalTensor& positions,
                                               const OptionalTensor& offsets,
                                               const OptionalTensor& cu_seqlens, int64_t offset,
                                               c10::string_view layout, bool interleaved,
                                               bool inverse, bool interleaved_out) {
    const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                       offset, layout, interleaved, inverse, interleaved_out};
    const RopeAxes axes = check_apply_rope("apply_rope", q, k, options);
    Tensor q_out = empty_output(q), k_out = empty_output(k);
    Device::rotate("apply_rope", q, {rope_operand(q, q_out, axes), rope_operand(k, k_out, axes)},
                   options);
    return {q_out, k_out};
  }

  static void apply_rope_(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                          const OptionalTensor& positions, const OptionalTensor& offsets,
                          const OptionalTensor& cu_seqlens, int64_t offset, c10::string_view layout,
                          bool interleaved, bool inverse, bool interleaved_out) {
    const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                       offset, layout, interleaved, inverse, interleaved_out};
    const RopeAxes axes = check_apply_rope("apply_rope", q, k, options);
    for (const auto& [name, t] : {std::pair<const char*, const Tensor&>{"q", q}, {"k", k}}) {
      check_writable("apply_rope", name, t);
      check_apart("apply_rope", name, t, "cos", cos);
      check_apart("apply_rope", name, t, "sin", sin);
    }
    check_apart("apply_rope", "q", q, "k", k);
    const Tensor q_out = target(q, q, options), k_out = target(k, k, options);
    Device::rotate("apply_rope", q, {rope_operand(q, q_out, axes), rope_operand(k, k_out, axes)},
                   options);
    finish(q, q_out);
    finish(k, k_out);
  }

  static void add_to(torch::Library& m) {
    m.impl("rope", rope);
    m.impl("rope_", rope_);
    m.impl("rope_out", rope_out);
    m.impl("apply_rope", apply_rope);
    m.impl("apply_rope_", apply_rope_);
  }
};

}  // namespace posenc
