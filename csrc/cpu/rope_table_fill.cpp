#include "cpu/rope_table_fill.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "cpu/parallel.h"
#include "rope_types.h"

namespace posenc {
namespace {

constexpr int64_t kOffsetCount = 64;      // rows of OffsetRows
constexpr int64_t kSharedOffsets = 1024;  // positions from which all of them are made beforehand
constexpr int64_t kGrainElements = 16384;

// Not cleared: only rows that are used get written, and then touched.
Rows scratch(int64_t rows, int64_t n) {
  const size_t bytes = sizeof(double) * static_cast<size_t>(rows * n);
  return Rows(static_cast<double*>(::operator new[](bytes, FreeRows::alignment)));
}

// src into dst, in pieces that ATen copies in the calling thread: see parallel.h.
void copy_in_pieces(const at::Tensor& dst, const at::Tensor& src) {
  constexpr int64_t most = 16384;
  if (src.numel() <= most) {
    dst.copy_(src);
  } else if (src.dim() > 1) {
    for (int64_t i = 0; i < src.size(0); ++i) copy_in_pieces(dst.select(0, i), src.select(0, i));
  } else {
    for (int64_t i = 0; i < src.size(0); i += most) {
      const int64_t count = std::min(most, src.size(0) - i);
      dst.narrow(0, i, count).copy_(src.narrow(0, i, count));
    }
  }
}

// positions as int64 or float64, contiguous.
at::Tensor dense_positions(const at::Tensor& positions) {
  const bool whole = !at::isFloatingType(positions.scalar_type());
  const auto type = whole ? at::kLong : at::kDouble;
  if (!in_forked_child() || (positions.scalar_type() == type && positions.is_contiguous()))
    return positions.to(type).contiguous();
  at::Tensor result = at::empty(positions.sizes(), positions.options().dtype(type));
  copy_in_pieces(result, positions);
  return result;
}

}  // namespace

TableBuilder::TableBuilder(const at::Tensor& frequencies, double factor, int64_t positions)
    : frequencies_(frequencies.const_data_ptr<double>()), n_(frequencies.numel()), factor_(factor) {
  if (positions < kSharedOffsets) return;
  const auto exact_row = rope_table_rows(current_isa()).exact_row;
  shared_ = scratch(2 * kOffsetCount, n_);
  parallel_for(0, kOffsetCount, 8, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      exact_row(static_cast<double>(b), frequencies_, n_, shared_.get() + b * n_,
                shared_.get() + (kOffsetCount + b) * n_);
    }
  });
}

TableWorker TableBuilder::worker() const {
  TableWorker worker{{}, scratch(2, n_), shared_ ? Rows() : scratch(2 * kOffsetCount, n_)};
  double* offsets = shared_ ? shared_.get() : worker.offsets.get();
  RopeTableRun& run = worker.run;
  run.n = n_;
  run.frequencies = frequencies_;
  run.factor = factor_;
  run.base = std::numeric_limits<double>::quiet_NaN();
  run.base_cos = worker.base.get();
  run.base_sin = worker.base.get() + n_;
  run.offsets = {offsets, offsets + kOffsetCount * n_, shared_ ? ~uint64_t{0} : 0};
  return worker;
}

void fill_table(const at::Tensor& positions, const at::Tensor& frequencies, double factor,
                at::ScalarType type, const TableLayout& out) {
  const int64_t count = positions.numel(), n = frequencies.numel();
  if (count == 0 || n == 0) return;
  // Both conversions are exact. Positions are few beside the tables that they make.
  const bool whole = !at::isFloatingType(positions.scalar_type());
  const at::Tensor given = dense_positions(positions);
  const at::Tensor dense = frequencies.contiguous();
  const TableBuilder builder(dense, factor, count);
  const auto fill = rope_table_rows(current_isa()).fill[static_cast<int>(rope_dtype(type))];
  const auto row_bytes = out.stride * static_cast<int64_t>(c10::elementSize(type));

  const int64_t grain = std::max<int64_t>(1, kGrainElements / n);
  parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    TableWorker worker = builder.worker();
    RopeTableRun& run = worker.run;
    run.whole = whole ? given.const_data_ptr<int64_t>() + begin : nullptr;
    run.fractional = whole ? nullptr : given.const_data_ptr<double>() + begin;
    run.count = end - begin;
    run.out = out;
    run.out.cos = static_cast<char*>(out.cos) + begin * row_bytes;
    run.out.sin = static_cast<char*>(out.sin) + begin * row_bytes;
    fill(run);
  });
}

}  // namespace posenc
