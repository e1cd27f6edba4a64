// rope_table on CPU: check, allocate, fill runs of positions in parallel.
#include "rope_table.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <new>

#include "cpu/huge_pages.h"
#include "cpu/rope_table_rows.h"
#include "cpu/rope_types.h"

namespace posenc {
namespace {

using at::Tensor;

constexpr int64_t kSharedOffsets = 1024;  // positions from which all of them are made beforehand
constexpr int64_t kGrainElements = 16384;

// Rows of doubles on whole cache lines, not cleared: only those that get used are ever touched.
class Rows {
 public:
  Rows(int64_t count, int64_t n)
      : data_(static_cast<double*>(
            ::operator new[](sizeof(double) * static_cast<size_t>(count * n), alignment))) {}
  ~Rows() { ::operator delete[](data_, alignment); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  double* data() const { return data_; }

 private:
  static constexpr std::align_val_t alignment{64};
  double* data_;
};

void fill_tables(const Tensor& positions, const Tensor& inv_freq, double factor, const Tensor& cos,
                 const Tensor& sin) {
  const bool whole = positions.scalar_type() == at::kLong;
  const int64_t count = positions.numel(), n = inv_freq.numel();
  const double* frequencies = inv_freq.const_data_ptr<double>();
  const RopeTableRows& kernels = rope_table_rows(current_isa());
  const auto fill = kernels.fill[static_cast<int>(rope_dtype(cos.scalar_type()))];
  char* cos_data = static_cast<char*>(cos.mutable_data_ptr());
  char* sin_data = static_cast<char*>(sin.mutable_data_ptr());
  const auto row_bytes = n * static_cast<int64_t>(cos.element_size());

  const bool share = count >= kSharedOffsets;
  const Rows shared(share ? 2 * kOffsetRows : 0, n);
  if (share) {
    at::parallel_for(0, kOffsetRows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        kernels.exact_row(static_cast<double>(b), frequencies, n, shared.data() + b * n,
                          shared.data() + (kOffsetRows + b) * n);
      }
    });
  }
  const int64_t grain = std::max<int64_t>(1, kGrainElements / n);
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    const Rows base(2, n), own(share ? 0 : 2 * kOffsetRows, n);
    double* offsets = share ? shared.data() : own.data();
    RopeTableRun run{};
    run.whole = whole ? positions.const_data_ptr<int64_t>() + begin : nullptr;
    run.fractional = whole ? nullptr : positions.const_data_ptr<double>() + begin;
    run.count = end - begin;
    run.n = n;
    run.frequencies = frequencies;
    run.factor = factor;
    run.base_cos = base.data();
    run.base_sin = base.data() + n;
    run.offsets = {offsets, offsets + kOffsetRows * n, share ? ~uint64_t{0} : 0};
    run.cos = cos_data + begin * row_bytes;
    run.sin = sin_data + begin * row_bytes;
    fill(run);
  });
}

std::tuple<Tensor, Tensor> rope_table(const Tensor& positions, const Tensor& inv_freq,
                                      double attention_factor, at::ScalarType dtype) {
  const auto sizes = check_rope_table_inputs<int64_t>(positions, inv_freq, dtype);
  const auto options = inv_freq.options().dtype(dtype);
  Tensor cos = at::empty(sizes, options), sin = at::empty(sizes, options);
  if (cos.numel() == 0) return {cos, sin};
  prefer_huge_pages(cos);
  prefer_huge_pages(sin);
  prefer_huge_pages(cos);
  prefer_huge_pages(sin);
  // Both conversions are exact. Positions are few beside the tables that they make.
  const auto kind = at::isFloatingType(positions.scalar_type()) ? at::kDouble : at::kLong;
  fill_tables(positions.to(kind).contiguous(), inv_freq.contiguous(), attention_factor, cos, sin);
  return {cos, sin};
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) { m.impl("rope_table", rope_table); }

}  // namespace
}  // namespace posenc
