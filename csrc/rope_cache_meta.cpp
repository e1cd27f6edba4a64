// apply_rope_cache on meta tensors: the checks of the kernels, and an output without data.
#include <ATen/ops/empty_strided.h>

#include "rope_cache_ops.h"

namespace posenc {
namespace {

struct CacheOnMeta {
  using Int = c10::SymInt;
  static constexpr bool fake = true;

  static at::Tensor empty(const at::Tensor& q) {
    return at::empty_strided_symint(q.sym_sizes(), output_strides<Int>(q), q.options());
  }
};

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) { RopeCacheOps<CacheOnMeta>::add_to(m); }

}  // namespace
}  // namespace posenc
