// Row kernels of add_sinusoidal: the torch-free inner loops, one copy per instruction set.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "half.h"

namespace posenc {

// Tokens of one batch entry and the rows of the table for them. Strides in elements.
struct SinusoidalTile {
  const void* x;
  void* out;
  const void* table;  // [tokens, dim], float (double for double x)
  double scale;       // of x
  int64_t tokens, dim;
  int64_t x_token, x_dim, out_token, out_dim;
};

struct SinusoidalRows {
  void (*add[4])(const SinusoidalTile&);  // [RopeDtype]
};

const SinusoidalRows& sinusoidal_rows(Isa isa);

}  // namespace posenc
