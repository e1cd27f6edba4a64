// Keys or values, and the cache that they go to, as kernels see them. Torch-free.
#pragma once

#include <cstdint>

namespace posenc {

// x [batch, tokens, heads, dim] goes to row `slot % rows` of block `slot / rows`. Strides count
// elements.
struct CacheOperand {
  const char* x;
  char* out;
  const float* scale;  // null for 1
  int64_t scale_head;
  int64_t batch, tokens, heads, dim;
  int64_t x_batch, x_token, x_head, x_dim;
  int64_t out_block, out_row, out_head, out_dim;
};

}  // namespace posenc
