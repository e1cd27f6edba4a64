// The sinusoidal ops on CPU: check, allocate, and fill a table, or add it a tile of rows at a time.
#include "sinusoidal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cpu/huge_pages.h"
#include "cpu/parallel.h"
#include "cpu/rope_table_fill.h"
#include "cpu/sinusoidal_rows.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor sinusoidal_frequencies(const Tensor& like, int64_t count, double base, double denominator) {
  check_sinusoidal_rule(count, base, denominator);
  // First of all: a count beyond memory fails here, and not after hours of work.
  Tensor result = at::empty({count}, like.options().dtype(at::kDouble));
  auto* out = static_cast<double*>(result.mutable_data_ptr());
  const auto& first = first_frequencies(count, base, denominator);
  const auto kept = std::min(count, static_cast<int64_t>(first.size()));
  std::copy_n(first.begin(), kept, out);
  for (int64_t i = kept; i < count; ++i) out[i] = sinusoidal_frequency(i, base, denominator);
  return result;
}

// n frequencies in rows of `dim` elements of `item` bytes.
TableLayout layout_of(char* row, int64_t dim, int64_t n, int64_t item, bool interleaved,
                      bool cos_first) {
  char* second = row + (interleaved ? 1 : n) * item;
  return {cos_first ? row : second, cos_first ? second : row, dim, dim / 2, interleaved};
}

Tensor sinusoidal_table(const Tensor& positions, const Tensor& frequencies, int64_t dim,
                        bool interleaved, bool cos_first, at::ScalarType dtype) {
  const auto sizes = check_sinusoidal_table<int64_t>(positions, frequencies, dim, dtype);
  Tensor table = at::empty(sizes, positions.options().dtype(dtype));
  prefer_huge_pages(table);
  const int64_t n = frequencies.numel();
  fill_table(positions, frequencies, 1.0, dtype,
             layout_of(static_cast<char*>(table.mutable_data_ptr()), dim, n, table.element_size(),
                       interleaved, cos_first));
  if (dim > 2 * n) table.select(-1, dim - 1).zero_();
  return table;
}

// Rows of the table made at a time, then added to one batch entry after the other: long runs of x
// come from memory fastest, and the rows stay in the second-level cache.
constexpr int64_t kTileBytes = 131072;
constexpr int64_t kTileTokens = 256;
constexpr int64_t kGrainElements = 32768;

// The tokens of the batch entries that share their positions (all of them, or each its own).
struct Tokens {
  const Tensor& x;
  const OptionalTensor& offsets;
  int64_t offset, batch, length, groups;

  Tokens(const Tensor& x, const OptionalTensor& offsets, int64_t offset)
      : x(x),
        offsets(offsets),
        offset(offset),
        batch(x.dim() == 3 ? x.size(0) : 1),
        length(x.size(-2)),
        groups(offsets && offsets->dim() == 1 ? batch : 1) {
    for (int64_t g = 0; g < groups; ++g) check_sinusoidal_offset(start(g));
  }

  int64_t start(int64_t group) const {
    if (!offsets) return offset;
    const int64_t at = offsets->dim() == 1 ? group * offsets->stride(0) : 0;
    return offsets->scalar_type() == at::kInt
               ? static_cast<const int32_t*>(offsets->const_data_ptr())[at]
               : static_cast<const int64_t*>(offsets->const_data_ptr())[at];
  }
};

template <class Math>
void add(const Tokens& tokens, const Tensor& frequencies, double scale, bool interleaved,
         bool cos_first, const Tensor& out) {
  const Tensor& x = tokens.x;
  const int64_t dim = x.size(-1), n = frequencies.numel(), item = x.element_size();
  const bool batched = x.dim() == 3;
  const int64_t x_batch = batched ? x.stride(0) : 0, out_batch = batched ? out.stride(0) : 0;
  const int64_t sharing = tokens.batch / tokens.groups;  // batch entries of a group
  const auto add_tile =
      sinusoidal_rows(current_isa()).add[static_cast<int>(rope_dtype(x.scalar_type()))];
  const TableBuilder builder(frequencies, 1.0, tokens.groups * tokens.length);
  const auto math = sizeof(Math) == 8 ? RopeDtype::f64 : RopeDtype::f32;
  const auto fill = rope_table_rows(current_isa()).fill[static_cast<int>(math)];

  const int64_t threads = at::get_num_threads();
  const int64_t share = (tokens.groups * tokens.length + threads - 1) / threads;
  const int64_t step =
      std::min({kTileTokens, share, 1 + kTileBytes / (dim * static_cast<int64_t>(sizeof(Math)))});
  const int64_t tiles = (tokens.length + step - 1) / step;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (step * dim * sharing));

  parallel_for(0, tokens.groups * tiles, grain, [&](int64_t begin, int64_t end) {
    TableWorker worker = builder.worker();
    std::vector<Math> table(static_cast<size_t>(step * dim));  // zero: some columns stay so
    std::array<int64_t, kTileTokens> positions;
    RopeTableRun& run = worker.run;
    run.whole = positions.data();
    run.out = layout_of(reinterpret_cast<char*>(table.data()), dim, n, sizeof(Math), interleaved,
                        cos_first);
    SinusoidalTile tile{};
    tile.table = table.data();
    tile.scale = scale;
    tile.dim = dim;
    tile.x_token = x.stride(-2), tile.x_dim = x.stride(-1);
    tile.out_token = out.stride(-2), tile.out_dim = out.stride(-1);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / tiles, first = i % tiles * step;
      tile.tokens = run.count = std::min(step, tokens.length - first);
      for (int64_t t = 0; t < run.count; ++t) positions[t] = tokens.start(group) + first + t;
      if (n > 0) fill(run);
      for (int64_t b = group * sharing; b < (group + 1) * sharing; ++b) {
        tile.x = static_cast<const char*>(x.const_data_ptr()) +
                 (b * x_batch + first * tile.x_token) * item;
        tile.out = static_cast<char*>(out.mutable_data_ptr()) +
                   (b * out_batch + first * tile.out_token) * item;
        add_tile(tile);
      }
    }
  });
}

Tensor add_sinusoidal(const Tensor& x, const Tensor& frequencies, const OptionalTensor& offsets,
                      int64_t offset, double scale, bool interleaved, bool cos_first) {
  check_add_sinusoidal<int64_t>(x, frequencies, offsets, scale);
  const Tokens tokens(x, offsets, offset);
  Tensor out = at::empty_strided(x.sizes(), output_strides<int64_t>(x), x.options());
  prefer_huge_pages(out);
  if (out.numel() == 0) return out;
  const Tensor dense = frequencies.contiguous();
  if (x.scalar_type() == at::kDouble) {
    add<double>(tokens, dense, scale, interleaved, cos_first, out);
  } else {
    add<float>(tokens, dense, scale, interleaved, cos_first, out);
  }
  return out;
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) {
  m.impl("sinusoidal_frequencies", sinusoidal_frequencies);
  m.impl("sinusoidal_table", sinusoidal_table);
  m.impl("add_sinusoidal", add_sinusoidal);
}

}  // namespace
}  // namespace posenc
