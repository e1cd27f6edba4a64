// Row kernels of rope: the torch-free inner loops, one copy per instruction set.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "half.h"

namespace posenc {

// A block of tokens of one batch entry, times its heads. Strides count elements.
// x and out are the same pointer with the same strides, or do not overlap.
struct RopeTile {
  const void* x;
  void* out;
  int64_t tokens, heads, dim, pairs;  // dim = D, pairs = R/2
  int64_t x_token, x_head, x_dim;
  int64_t out_token, out_head, out_dim;
  const void* cos;  // float, or double for double x; unit stride in a row
  const void* sin;
  const int64_t* cos_row;  // [tokens], element offset of a token's row
  const int64_t* sin_row;
  void* scratch;  // [2 * pairs] elements of x, when it is `out` and the layouts of pairs differ
};

// What one block of tokens adds to the gradient of one table row, summed over heads in order.
struct RopeGradRow {
  const void* grad;
  const void* x;
  int64_t heads, pairs;
  int64_t grad_head, grad_dim, x_head, x_dim;
  double* dcos;  // [pairs]
  double* dsin;
};

struct RopeKernels {
  // [interleaved x][interleaved out][streamed]. Streamed: the result goes past the caches; every
  // row of `out` and each half of it is aligned to 64 bytes.
  void (*rotate[2][2][2])(const RopeTile&);
  void (*table_grad[2][2])(const RopeGradRow&);  // [interleaved x][interleaved grad]
};

struct RopeRows {
  RopeKernels of[4];  // [RopeDtype]
};

const RopeRows& rope_rows(Isa isa);

}  // namespace posenc
