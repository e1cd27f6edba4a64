// The kernels of tables of cos and sin, as the torch side calls them. Torch-free.
#pragma once

#include <cstdint>

#include "cuda/runtime.h"
#include "half.h"

namespace posenc {

// The position of every row: from `data`, dense; or, where that is null, first, first + 1, ... with
// a `first` for each group from `firsts`, if that is not null.
struct TablePositions {
  const void* data;
  bool whole, wide;  // integers, of 64 bits; otherwise reals of `type`
  RopeDtype type;
  const void* firsts;  // int64 if wide, else int32
  int64_t firsts_step;
  int64_t first;
};

// Rows of groups that share their positions, each with some entries. Strides in elements.
struct TableOperand {
  void* data;
  int64_t group, entry, row, column;
};

// out = table, or x * scale + table.
struct TableCall {
  TablePositions positions;
  int64_t groups, entries, rows;
  const double* frequencies;
  int64_t frequency_step, n;
  double factor, scale;  // factor multiplies cos and sin
  // cos and sin of frequency i stand in columns cos + i * step and sin + i * step. With
  // n = pairs + 1 frequencies, whichever stands first has one column more. `zero` is one more
  // column, of zeros, or -1.
  int64_t cos, sin, zero, step, pairs;
  TableOperand out, x;  // x.data is null for a table
  void* sin_data;       // the memory of sin, laid out as that of cos: out.data
};

void launch_table(const TableCall& call, RopeDtype type, cudaStream_t stream);
void launch_add_table(const TableCall& call, RopeDtype type, cudaStream_t stream);

// Copies host memory to `out` in arguments of kernels: nothing waits, and a CUDA graph keeps them.
void launch_write_doubles(const double* values, int64_t count, double* out, cudaStream_t stream);

}  // namespace posenc
