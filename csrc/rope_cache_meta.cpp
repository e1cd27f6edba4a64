// apply_rope_cache on meta tensors: the checks of the kernels, and an output without data.
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "overlap.h"
#include "rope_cache.h"

namespace posenc {
namespace {

using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kOp = "apply_rope_cache";

void check(const Tensor& q, const Tensor& k, const Tensor& v, const RopeOptions<SymInt>& options,
           const CacheOptions<SymInt>& cache, bool inplace) {
  check_rope_cache(kOp, q, k, v, options, cache);
  const auto writable = [](const char* name, const Tensor& t) {
    if (!t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) check_writable(kOp, name, t);
  };
  if (inplace) writable("q", q);
  writable("k_cache", cache.k_cache);
  writable("v_cache", cache.v_cache);
}

Tensor apply_rope_cache(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache,
                        const Tensor& v_cache, const Tensor& cos, const Tensor& sin,
                        const OptionalTensor& positions, const OptionalTensor& offsets,
                        const OptionalTensor& cu_seqlens, SymInt offset, c10::string_view layout,
                        bool interleaved, bool inverse, bool interleaved_out,
                        const OptionalTensor& slots, c10::string_view cache_layout, SymInt window,
                        const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
  check(q, k, v,
        {cos, sin, positions, offsets, cu_seqlens, offset, layout, interleaved, inverse,
         interleaved_out},
        {k_cache, v_cache, slots, cache_layout, window, k_scale, v_scale}, false);
  return at::empty_strided_symint(q.sym_sizes(), output_strides<SymInt>(q), q.options());
}

void apply_rope_cache_(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache,
                       const Tensor& v_cache, const Tensor& cos, const Tensor& sin,
                       const OptionalTensor& positions, const OptionalTensor& offsets,
                       const OptionalTensor& cu_seqlens, SymInt offset, c10::string_view layout,
                       bool interleaved, bool inverse, bool interleaved_out,
                       const OptionalTensor& slots, c10::string_view cache_layout, SymInt window,
                       const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
  check(q, k, v,
        {cos, sin, positions, offsets, cu_seqlens, offset, layout, interleaved, inverse,
         interleaved_out},
        {k_cache, v_cache, slots, cache_layout, window, k_scale, v_scale}, true);
}

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) {
  m.impl("apply_rope_cache", apply_rope_cache);
  m.impl("apply_rope_cache_", apply_rope_cache_);
}

}  // namespace
}  // namespace posenc
