// apply_rope_cache on CUDA: one launch rotates q, another stores k and v.
#include "rope_cache.h"

#include <algorithm>

#include "cuda/norm_rope_arguments.h"
#include "cuda/rope_cache_kernels.h"
#include "cuda/rope_device.h"
#include "rope_cache_ops.h"

namespace posenc {
namespace {

using at::Tensor;

struct CacheOnCuda : OnCuda {
  using Int = int64_t;
  static constexpr bool fake = false;

  static void store(const char* op, const Tensor& like, const RopeOperand& q, const CacheOperand& k,
                    const CacheOperand& v, const RopeOptions<int64_t>& options,
                    const CacheOptions<int64_t>& cache, const CacheAxes& axes,
                    const CacheNorm& norm) {
    RopeCacheCall call{};
    call.k = k, call.v = v;
    call.cos = cuda_table(options.cos), call.sin = cuda_table(options.sin);
    call.source = row_source(op, options, std::max(q.tokens, k.tokens), k.batch);
    call.slots = index_tensor(cache.slots);
    if (cache.slots && cache.slots->dim() == 1) call.slots.batch = k.tokens * call.slots.step;
    call.blocks = cache.k_cache.size(0), call.rows = cache.k_cache.size(axes.row);
    call.window = cache.window;
    call.consecutive = !options.positions;
    call.pairs = options.cos.size(-1);
    call.pairing = {options.interleaved, options.interleaved_out};
    call.inverse = options.inverse;
    const auto type = rope_dtype(like.scalar_type());
    const CacheFormat format = cache_format(cache.k_cache);
    if (norm.given) {
      store_normed(op, like, q, call, norm, options, format);
      return;
    }
    rotate(op, like, q, options);
    if (k.batch * k.tokens * k.heads == 0) return;
    launch_on_device_of(
        like, [&](cudaStream_t stream) { launch_rope_cache(call, type, format, stream); });
  }

  static void store_normed(const char* op, const Tensor& like, const RopeOperand& q,
                           const RopeCacheCall& cache, const CacheNorm& norm,
                           const RopeOptions<int64_t>& options, CacheFormat format) {
    const auto type = rope_dtype(like.scalar_type());
    const int64_t dim = like.size(-1);
    const auto call_of = [&](const NormCudaOperand& operand) {
      return norm_call(op, operand, dim, norm.options, options, std::max(q.tokens, cache.k.tokens));
    };
    RopeOperand k{};  // whose result goes elsewhere
    k.batch = cache.k.batch;
    launch_on_device_of(like, [&](cudaStream_t stream) {
      if (q.batch * q.tokens * q.heads * dim > 0)
        launch_norm_rope(call_of(norm_operand(q, norm.q)), type, options.interleaved, stream);
      if (k.batch * cache.k.tokens * cache.k.heads > 0)
        launch_norm_cache({cache, call_of(norm_operand(k, norm.k))}, type, format, stream);
    });
  }
};

POSENC_CUDA_LIBRARY(m) { RopeCacheOps<CacheOnCuda>::add_to(m); }

}  // namespace
}  // namespace posenc
