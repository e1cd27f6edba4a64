// A tensor to rotate and where the result goes, as kernels see it. Torch-free.
#pragma once

#include <cstdint>

namespace posenc {

// x and out are the same pointer with the same strides, or do not overlap. Strides count elements.
struct RopeOperand {
  const char* x;
  char* out;
  int64_t batch, tokens, heads;
  int64_t x_batch, x_token, x_head, x_dim, out_batch, out_token, out_head, out_dim;
};

}  // namespace posenc
