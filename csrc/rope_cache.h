// Arguments of apply_rope_cache beside those of rope: what they must be, checked once for CPU, CUDA
// and meta tensors.
#pragma once

#include <string_view>

#include "cache_math.h"
#include "norm_rope.h"
#include "rope.h"

namespace posenc {

// Int is int64_t for a kernel and c10::SymInt for a fake one.
template <class Int>
struct CacheOptions {
  const at::Tensor& k_cache;               // [N, P, H, D] or [N, H, P, D]
  const at::Tensor& v_cache;               // the same with its own D
  const std::optional<at::Tensor>& slots;  // [T] or [B, S]
  std::string_view layout;
  Int window;                                // 0 for none
  const std::optional<at::Tensor>& k_scale;  // [] or [H]
  const std::optional<at::Tensor>& v_scale;
};

// The norm of q and k in the same call.
struct CacheNorm {
  bool given;
  NormInput q, k;
  NormOptions options;
};

// Where the axes of a cache stand: its rows (of a page or a sequence) and its heads; blocks are 0.
struct CacheAxes {
  int row, heads;
  bool paged;
};

inline CacheAxes cache_axes(const char* op, std::string_view layout) {
  const bool paged = layout == "nphd" || layout == "nhpd";
  POSENC_CHECK_VALUE(paged || layout == "blhd" || layout == "bhld", op,
                     "cache_layout must be one of blhd, bhld, nphd, nhpd, got '", layout, "'");
  const bool heads_first = layout[1] == 'h';
  return {heads_first ? 2 : 1, heads_first ? 1 : 2, paged};
}

inline CacheFormat cache_format(const at::Tensor& cache) {
  switch (cache.scalar_type()) {
    case at::kFloat8_e4m3fn:
      return CacheFormat::e4m3;
    case at::kFloat8_e5m2:
      return CacheFormat::e5m2;
    case at::kChar:
      return CacheFormat::int8;
    default:
      return CacheFormat::same;
  }
}

template <class Int>
void check_cache_tensor(const char* op, const char* name, const at::Tensor& cache, RopeInput x,
                        const CacheAxes& axes, const Int& heads) {
  const auto type = x.tensor.scalar_type(), own = cache.scalar_type();
  const bool eight = cache_format(cache) != CacheFormat::same && type != at::kDouble;
  POSENC_CHECK_TYPE(own == type || eight, op, name, " must have the dtype of ", x.name, " (", type,
                    ") or, unless that is float64, be float8_e4m3fn, float8_e5m2 or int8, got ",
                    own);
  POSENC_CHECK_TYPE(cache.layout() == at::kStrided, op, name, " must be a dense tensor, got ",
                    cache.layout());
  POSENC_CHECK_VALUE(cache.device() == x.tensor.device(), op, name, " must be on the device of ",
                     x.name, " (", x.tensor.device(), "), got ", cache.device());
  const auto size = sizes_of<Int>(cache);
  const auto dim = sizes_of<Int>(x.tensor).back();
  POSENC_CHECK_VALUE(size.size() == 4 && size[axes.heads] == heads && size[3] == dim, op, name,
                     " must have 4 axes, the heads ", heads, " and D = ", dim, " of ", x.name,
                     ", got ", size);
  check_allocated<Int>(op, name, cache);
}

template <class Int>
void check_cache_scale(const char* op, const char* name, const std::optional<at::Tensor>& scale,
                       const at::Tensor& cache, const Int& heads) {
  const CacheFormat format = cache_format(cache);
  POSENC_CHECK_VALUE(scale || format != CacheFormat::int8, op, name,
                     " must be given for a cache of int8, got None");
  if (!scale) return;
  POSENC_CHECK_VALUE(format != CacheFormat::same, op, name,
                     " must be given for a cache of 8 bits only, got one for ",
                     cache.scalar_type());
  POSENC_CHECK_TYPE(scale->scalar_type() == at::kFloat, op, name, " must be float32, got ",
                    scale->scalar_type());
  POSENC_CHECK_TYPE(scale->layout() == at::kStrided, op, name, " must be a dense tensor, got ",
                    scale->layout());
  POSENC_CHECK_VALUE(scale->device() == cache.device(), op, name,
                     " must be on the device of the cache (", cache.device(), "), got ",
                     scale->device());
  const auto size = sizes_of<Int>(*scale);
  POSENC_CHECK_VALUE(size.empty() || (size.size() == 1 && size[0] == heads), op, name,
                     " must be a number or have shape [H] = [", heads, "], got ", size);
  check_allocated<Int>(op, name, *scale);
}

template <class Int>
void check_cache_rows(const char* op, const at::Tensor& k, const RopeAxes& at,
                      const CacheAxes& axes, const RopeOptions<Int>& options,
                      const CacheOptions<Int>& cache) {
  const auto size = sizes_of<Int>(k), rows = sizes_of<Int>(cache.k_cache);
  const Int batch = at.batch < 0 ? Int(1) : size[at.batch], length = size[at.seq];
  POSENC_CHECK_VALUE(axes.paged == cache.slots.has_value(), op, "slots must ",
                     axes.paged ? "" : "not ", "be given with cache_layout '", cache.layout,
                     "', got ", cache.slots ? "a tensor" : "None");
  if (axes.paged) {
    const auto& slots = *cache.slots;
    check_rope_index(op, "slots", slots);
    POSENC_CHECK_TYPE(slots.layout() == at::kStrided, op, "slots must be a dense tensor, got ",
                      slots.layout());
    POSENC_CHECK_VALUE(slots.device() == k.device(), op, "slots must be on the device of k (",
                       k.device(), "), got ", slots.device());
    const auto given = sizes_of<Int>(slots);
    POSENC_CHECK_VALUE((given.size() == 1 && given[0] == batch * length) ||
                           (given.size() == 2 && given[0] == batch && given[1] == length),
                       op, "slots must have shape [T] or [B, S], one for each of ", batch, " * ",
                       length, " tokens of k, got ", given);
    check_allocated<Int>(op, "slots", slots);
    POSENC_CHECK_VALUE(cache.window == 0, op,
                       "window must be None with slots, which say where a token goes, got ",
                       cache.window);
    return;
  }
  POSENC_CHECK_VALUE(options.cos.dim() == 2 && !options.cu_seqlens, op,
                     "slots must be given when tokens have no position in a sequence of their own "
                     "(cu_seqlens, or cos of shape [B, S, R/2]), got None");
  POSENC_CHECK_VALUE(rows[0] == batch, op, "k_cache must have the batch size of k, ", batch,
                     ", got ", rows);
  POSENC_CHECK_VALUE(cache.window >= 0 && cache.window <= rows[axes.row], op,
                     "window must be None or from 1 to the rows of k_cache, ", rows[axes.row],
                     ", got ", cache.window);
}

template <class Int>
void check_cache_norm(const char* op, const CacheNorm& norm, const RopeOptions<Int>& options,
                      const CacheOptions<Int>& cache) {
  if (norm.given) {
    check_norm_rope(op, norm.q, norm.options, options);
    check_norm_rope(op, norm.k, norm.options, options);
    POSENC_CHECK_VALUE(
        cache_format(cache.k_cache) == CacheFormat::same || norm.options.rounding == "once", op,
        "rounding must be 'once' with a cache of 8 bits, got '", norm.options.rounding, "'");
    return;
  }
  for (const auto* in : {&norm.q, &norm.k}) {
    POSENC_CHECK_VALUE(!in->weight, op, "norm must be given with ", in->weight_name, ", got None");
    POSENC_CHECK_VALUE(!in->bias, op, "norm must be given with ", in->bias_name, ", got None");
  }
}

// Values of slots and positions are checked where they can be read.
template <class Int>
RopeAxes check_rope_cache(const char* op, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const RopeOptions<Int>& options,
                          const CacheOptions<Int>& cache, const CacheNorm& norm) {
  const RopeAxes at = check_apply_rope(op, q, k, options);
  check_cache_norm(op, norm, options, cache);
  POSENC_CHECK_TYPE(v.scalar_type() == k.scalar_type(), op, "v must have the dtype of k (",
                    k.scalar_type(), "), got ", v.scalar_type());
  POSENC_CHECK_TYPE(v.layout() == at::kStrided, op, "v must be a dense tensor, got ", v.layout());
  POSENC_CHECK_VALUE(v.device() == k.device(), op, "v must be on the device of k (", k.device(),
                     "), got ", v.device());
  const auto k_size = sizes_of<Int>(k), v_size = sizes_of<Int>(v);
  POSENC_CHECK_VALUE(v_size.size() == k_size.size() &&
                         v_size.slice(0, v_size.size() - 1) == k_size.slice(0, k_size.size() - 1),
                     op, "v must have the shape of k but for the last axis, ", k_size, ", got ",
                     v_size);
  check_allocated<Int>(op, "v", v);
  const CacheAxes axes = cache_axes(op, cache.layout);
  const Int heads = at.heads < 0 ? Int(1) : k_size[at.heads];
  check_cache_tensor(op, "k_cache", cache.k_cache, {"k", k}, axes, heads);
  check_cache_tensor(op, "v_cache", cache.v_cache, {"v", v}, axes, heads);
  POSENC_CHECK_TYPE(cache.v_cache.scalar_type() == cache.k_cache.scalar_type(), op,
                    "v_cache must have the dtype of k_cache (", cache.k_cache.scalar_type(),
                    "), got ", cache.v_cache.scalar_type());
  const auto k_rows = sizes_of<Int>(cache.k_cache), v_rows = sizes_of<Int>(cache.v_cache);
  POSENC_CHECK_VALUE(k_rows.slice(0, 3) == v_rows.slice(0, 3), op,
                     "v_cache must have the shape of k_cache but for the last axis, ", k_rows,
                     ", got ", v_rows);
  check_cache_scale(op, "k_scale", cache.k_scale, cache.k_cache, heads);
  check_cache_scale(op, "v_scale", cache.v_scale, cache.v_cache, heads);
  check_cache_rows(op, k, at, axes, options, cache);
  return at;
}

}  // namespace posenc
