// Row kernels of the cache: the torch-free inner loops, one copy per instruction set.
#pragma once

#include <cstdint>

#include "cache_math.h"
#include "cpu/isa.h"

namespace posenc {

// `n` floats to quotients by `scale` in 8 bits. Strides count elements.
struct CacheRow {
  const float* x;
  void* out;
  int64_t n, out_dim;
  float scale;
};

struct CacheRows {
  // n elements of each RopeDtype, x_dim apart, as adjacent floats (a double rounds to float).
  void (*widen[4])(const void* x, int64_t x_dim, int64_t n, float* out);
  void (*store[4])(const CacheRow&);  // [CacheFormat]; none for `same`
};

const CacheRows& cache_rows(Isa isa);

}  // namespace posenc
