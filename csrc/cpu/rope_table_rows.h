// Row kernels of tables of cos and sin: the torch-free inner loops, one copy per instruction set.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "half.h"

namespace posenc {

// The exact rows of the offsets 0..63, made when first asked for.
struct OffsetRows {
  double* cos;     // [64, n]
  double* sin;     // [64, n]
  uint64_t ready;  // bit b: row b is made
};

// Where the cos and the sin of the first frequency go in row 0, and from there the others. A row is
// either two blocks of adjacent columns, or (interleaved) one of pairs, whose first is the lower
// address.
struct TableLayout {
  void* cos;
  void* sin;
  int64_t stride;  // elements from row to row
  int64_t pairs;   // columns of cos and of sin; with n = pairs + 1 frequencies, whichever of them
                   // stands first has one more
  bool interleaved;
};

// A run of positions of one thread.
struct RopeTableRun {
  const int64_t* whole;       // [count], or null
  const double* fractional;   // [count], if whole is null
  int64_t count, n;           // n frequencies
  const double* frequencies;  // [n]
  double factor;              // multiplies cos and sin
  double base;                // the position that base_cos and base_sin are of; NaN: none yet
  double* base_cos;           // [n], scratch
  double* base_sin;
  OffsetRows offsets;
  TableLayout out;  // of the dtype
};

struct RopeTableRows {
  void (*exact_row)(double position, const double* frequencies, int64_t n, double* cos,
                    double* sin);
  void (*fill[4])(RopeTableRun&);  // [RopeDtype]
};

const RopeTableRows& rope_table_rows(Isa isa);

}  // namespace posenc
