// The kernel of apply_rope_cache, as the torch side calls it. Torch-free.
#pragma once

#include "cache_math.h"
#include "cuda/norm_rope_kernels.h"
#include "cuda/rope_kernels.h"
#include "rope_cache_operand.h"

namespace posenc {

struct RopeCacheCall {
  CacheOperand k, v;
  RopeCudaTable cos, sin;
  RopeRowSource source;
  RopeIndexTensor slots;  // data is null when a token goes to the row of its position
  int64_t blocks, rows;   // of the cache, rows of one block
  int64_t window;         // 0 for none
  bool consecutive;       // positions follow one another, so a full ring overwrites the first
  int64_t pairs;          // R/2
  RopePairing pairing;
  bool inverse;
};

// With a norm: `norm.q` is k with its weights.
struct NormCacheCall {
  RopeCacheCall cache;
  NormCall norm;
};

void launch_rope_cache(const RopeCacheCall& call, RopeDtype type, CacheFormat format,
                       cudaStream_t stream);
void launch_norm_cache(const NormCacheCall& call, RopeDtype type, CacheFormat format,
                       cudaStream_t stream);

}  // namespace posenc
