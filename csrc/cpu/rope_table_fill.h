// Fills tables of cos and sin, for rope_table and for the sinusoidal ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <new>

#include "cpu/rope_table_rows.h"

namespace posenc {

// Rows of doubles on whole cache lines.
struct FreeRows {
  static constexpr std::align_val_t alignment{64};
  void operator()(double* rows) const { ::operator delete[](rows, alignment); }
};
using Rows = std::unique_ptr<double[], FreeRows>;

// A run and the scratch it works in: what one thread needs. Positions and output are left open.
struct TableWorker {
  RopeTableRun run;
  Rows base, offsets;
};

// What the threads that build one table share.
class TableBuilder {
 public:
  // frequencies: float64 [n], contiguous. positions: how many rows will be asked for in all.
  TableBuilder(const at::Tensor& frequencies, double factor, int64_t positions);

  TableWorker worker() const;

 private:
  const double* frequencies_;
  int64_t n_;
  double factor_;
  Rows shared_;  // the rows of all offsets, when that many positions pay
};

// positions: integer or floating, of any shape and strides, one row each; the table has `type`.
void fill_table(const at::Tensor& positions, const at::Tensor& frequencies, double factor,
                at::ScalarType type, const TableLayout& out);

}  // namespace posenc
