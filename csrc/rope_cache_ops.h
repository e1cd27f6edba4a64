// The ops that rotate and write into a cache, once for CPU and CUDA: check, allocate, and let the
// device do it.
#pragma once

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

// Device::store(op, like, q, k, v, options, cache): `like` is the q that has the dtype and device.
template <class Device>
struct RopeCacheOps {
  using Tensor = at::Tensor;
  using OptionalTensor = std::optional<Tensor>;
  static constexpr const char* op = "apply_rope_cache";

  static void check_memory(const Tensor& q, bool inplace, const Tensor& k, const Tensor& v,
                           const RopeOptions<int64_t>& options,
                           const CacheOptions<int64_t>& cache) {
    const auto apart = [&](const char* name, const Tensor& t) {
      check_writable(op, name, t);
      check_apart(op, name, t, "k", k);
      check_apart(op, name, t, "v", v);
      check_apart(op, name, t, "cos", options.cos);
      check_apart(op, name, t, "sin", options.sin);
    };
    if (inplace) apart("q", q);
    apart("k_cache", cache.k_cache);
    apart("v_cache", cache.v_cache);
    check_apart(op, "k_cache", cache.k_cache, "q", q);
    check_apart(op, "v_cache", cache.v_cache, "q", q);
    check_apart(op, "k_cache", cache.k_cache, "v_cache", cache.v_cache);
  }

  static void store(const Tensor& q, const Tensor& q_out, const Tensor& k, const Tensor& v,
                    RopeAxes at, const RopeOptions<int64_t>& options,
                    const CacheOptions<int64_t>& cache) {
    const CacheAxes axes = cache_axes(op, cache.layout);
    Device::store(op, q, rope_operand(q, q_out, at),
                  cache_operand(k, cache.k_cache, cache.k_scale, at, axes),
                  cache_operand(v, cache.v_cache, cache.v_scale, at, axes), options, cache, axes);
    bump_version(cache.k_cache);
    bump_version(cache.v_cache);
  }

  static Tensor apply_rope_cache(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& k_cache, const Tensor& v_cache, const Tensor& cos,
                                 const Tensor& sin, const OptionalTensor& positions,
                                 const OptionalTensor& offsets, const OptionalTensor& cu_seqlens,
                                 int64_t offset, c10::string_view layout, bool interleaved,
                                 bool inverse, bool interleaved_out, const OptionalTensor& slots,
                                 c10::string_view cache_layout, int64_t window,
                                 const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
    const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                       offset, layout, interleaved, inverse, interleaved_out};
    const CacheOptions<int64_t> cache{k_cache, v_cache, slots,  cache_layout,
                                      window,  k_scale, v_scale};
    const RopeAxes at = check_rope_cache(op, q, k, v, options, cache);
    check_memory(q, false, k, v, options, cache);
    Tensor q_out = RopeOps<Device>::empty_output(q);
    store(q, q_out, k, v, at, options, cache);
    return q_out;
  }

  static void apply_rope_cache_(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& k_cache, const Tensor& v_cache, const Tensor& cos,
                                const Tensor& sin, const OptionalTensor& positions,
                                const OptionalTensor& offsets, const OptionalTensor& cu_seqlens,
                                int64_t offset, c10::string_view layout, bool interleaved,
                                bool inverse, bool interleaved_out, const OptionalTensor& slots,
                                c10::string_view cache_layout, int64_t window,
                                const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
    const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                       offset, layout, interleaved, inverse, interleaved_out};
    const CacheOptions<int64_t> cache{k_cache, v_cache, slots,  cache_layout,
                                      window,  k_scale, v_scale};
    const RopeAxes at = check_rope_cache(op, q, k, v, options, cache);
    check_memory(q, true, k, v, options, cache);
    const Tensor written = RopeOps<Device>::target(q, q, options);
    store(q, written, k, v, at, options, cache);
    RopeOps<Device>::finish(q, written);
  }

  static void add_to(torch::Library& m) {
    m.impl("apply_rope_cache", apply_rope_cache);
    m.impl("apply_rope_cache_", apply_rope_cache_);
  }
};

}  // namespace posenc
