// Row kernels of rope_table: the torch-free inner loops, one copy per instruction set.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "half.h"

namespace posenc {

constexpr int64_t kOffsetRows = 64;

// The exact rows of the offsets 0..63, made when first asked for.
struct OffsetRows {
  double* cos;     // [64, n]
  double* sin;     // [64, n]
  uint64_t ready;  // bit b: row b is made
};

// A run of positions of one thread.
struct RopeTableRun {
  const int64_t* whole;       // [count], or null
  const double* fractional;   // [count], if whole is null
  int64_t count, n;           // n frequencies
  const double* frequencies;  // [n]
  double factor;              // multiplies cos and sin
  double* base_cos;           // [n], scratch
  double* base_sin;
  OffsetRows offsets;
  void* cos;  // [count, n] of the dtype
  void* sin;
};

struct RopeTableRows {
  void (*exact_row)(double position, const double* frequencies, int64_t n, double* cos,
                    double* sin);
  void (*fill[4])(RopeTableRun&);  // [RopeDtype]
};

const RopeTableRows& rope_table_rows(Isa isa);

}  // namespace posenc
