// The ops that rotate and write into a cache, once for CPU, CUDA and meta tensors: check, allocate,
// and let the device do it.
#pragma once

#include <type_traits>

#include "rope_cache.h"
#include "rope_cache_operand.h"
#include "rope_ops.h"

namespace posenc {

inline CacheOperand cache_operand(const at::Tensor& x, const at::Tensor& cache,
                                  const std::optional<at::Tensor>& scale, RopeAxes at,
                                  const CacheAxes& axes) {
  const auto size = [&](int axis) { return axis < 0 ? 1 : x.size(axis); };
  const auto stride = [&](int axis) { return axis < 0 ? 0 : x.stride(axis); };
  return {.x = static_cast<const char*>(x.const_data_ptr()),
          .out = static_cast<char*>(cache.mutable_data_ptr()),
          .scale = scale ? scale->const_data_ptr<float>() : nullptr,
          .scale_head = scale && scale->dim() == 1 ? scale->stride(0) : 0,
          .batch = size(at.batch),
          .tokens = size(at.seq),
          .heads = size(at.heads),
          .dim = x.size(-1),
          .x_batch = stride(at.batch),
          .x_token = stride(at.seq),
          .x_head = stride(at.heads),
          .x_dim = x.stride(-1),
          .out_block = cache.stride(0),
          .out_row = cache.stride(axes.row),
          .out_head = cache.stride(axes.heads),
          .out_dim = cache.stride(3)};
}

// Device::Int is int64_t, or c10::SymInt for the fake device. Device::empty(q) is a fresh output
// like q. Device::store(op, q, q_out, at, options, cache, norm) does the work.
template <class Device>
struct RopeCacheOps {
  using Tensor = at::Tensor;
  using OptionalTensor = std::optional<Tensor>;
  using Int = typename Device::Int;
  using Word = c10::string_view;
  static constexpr const char* op = "apply_rope_cache";

  // Without data only an overlap of a tensor with itself can be told, and only for known sizes.
  static void check_memory(bool inplace, const Tensor& k, const Tensor& v,
                           const RopeOptions<Int>& options, const CacheOptions<Int>& cache,
                           const CacheNorm& norm) {
    const Tensor& q = norm.q.x.tensor;
    const auto apart = [&](const char* name, const Tensor& t) {
      if (!t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) check_writable(op, name, t);
      if (Device::fake) return;
      check_apart(op, name, t, "k", k);
      check_apart(op, name, t, "v", v);
      check_apart(op, name, t, "cos", options.cos);
      check_apart(op, name, t, "sin", options.sin);
      for (const auto* in : {&norm.q, &norm.k}) {
        if (in->weight) check_apart(op, name, t, in->weight_name, *in->weight);
        if (in->bias) check_apart(op, name, t, in->bias_name, *in->bias);
      }
    };
    if (inplace) apart("q", q);
    apart("k_cache", cache.k_cache);
    apart("v_cache", cache.v_cache);
    if (Device::fake) return;
    check_apart(op, "k_cache", cache.k_cache, "q", q);
    check_apart(op, "v_cache", cache.v_cache, "q", q);
    check_apart(op, "k_cache", cache.k_cache, "v_cache", cache.v_cache);
  }

  // Returns the rotated q: q itself if in place.
  template <bool inplace>
  static std::conditional_t<inplace, void, Tensor> apply_rope_cache(
      const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache,
      const Tensor& v_cache, const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
      const OptionalTensor& offsets, const OptionalTensor& cu_seqlens, Int offset, Word layout,
      bool interleaved, bool inverse, bool interleaved_out, const OptionalTensor& slots,
      Word cache_layout, Int window, const OptionalTensor& k_scale, const OptionalTensor& v_scale,
      const OptionalTensor& q_weight, const OptionalTensor& k_weight, const OptionalTensor& q_bias,
      const OptionalTensor& k_bias, double eps, double weight_offset, std::optional<Word> norm_name,
      Word norm_dims, Word order, Word rounding) {
    const RopeOptions<Int> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                   offset, layout, interleaved, inverse, interleaved_out};
    const CacheOptions<Int> cache{k_cache, v_cache, slots, cache_layout, window, k_scale, v_scale};
    const CacheNorm norm{
        norm_name.has_value(),
        {{"q", q}, "q_weight", q_weight, "q_bias", q_bias},
        {{"k", k}, "k_weight", k_weight, "k_bias", k_bias},
        {eps, weight_offset, norm_name.value_or(Word()), norm_dims, order, rounding}};
    const RopeAxes at = check_rope_cache(op, q, k, v, options, cache, norm);
    check_memory(inplace, k, v, options, cache, norm);
    if constexpr (Device::fake) {
      if constexpr (!inplace) return Device::empty(q);
    } else {
      using Ops = RopeOps<Device>;
      const Tensor out = inplace ? Ops::target(q, q, options) : Ops::empty_output(q);
      const CacheAxes axes = cache_axes(op, cache.layout);
      Device::store(op, q, rope_operand(q, out, at), cache_operand(k, k_cache, k_scale, at, axes),
                    cache_operand(v, v_cache, v_scale, at, axes), options, cache, axes, norm);
      bump_version(k_cache);
      bump_version(v_cache);
      if constexpr (inplace) {
        Ops::finish(q, out);
      } else {
        return out;
      }
    }
  }

  static void add_to(torch::Library& m) {
    m.impl("apply_rope_cache", apply_rope_cache<false>);
    m.impl("apply_rope_cache_", apply_rope_cache<true>);
  }
};

}  // namespace posenc
