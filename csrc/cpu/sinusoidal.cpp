// The sinusoidal ops on CPU: check, allocate, and fill a table, or add it a tile of rows at a time.
#include "sinusoidal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <numeric>
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

// Of a contiguous table [..., dim], by our own loop: see parallel.h.
void zero_column(const Tensor& table, int64_t column) {
  const int64_t item = table.element_size(), stride = table.size(-1) * item;
  char* const first = static_cast<char*>(table.mutable_data_ptr()) + column * item;
  const int64_t rows = stride ? table.numel() / table.size(-1) : 0;
  parallel_for(0, rows, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memset(first + i * stride, 0, item);
  });
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
  if (dim > 2 * n) zero_column(table, dim - 1);
  return table;
}

// Rows of the table made at a time, then added to one batch entry after the other: long runs of x
// come from memory fastest, and the rows stay in the second-level cache.
constexpr int64_t kTileBytes = 131072;
constexpr int64_t kTileTokens = 256;
constexpr int64_t kGrainElements = 32768;

// Rows of the tables that a thread has added last: a model in training adds the same ones at every
// step, and decoding those that follow. Values depend on the position and the key alone.
constexpr size_t kKeptTables = 4;
constexpr int64_t kKeptBytes = int64_t{8} << 20;  // of each
constexpr int64_t kRowsAhead = 32;                // made at once for a call that goes on

template <class Math>
struct KeptRows {
  std::vector<double> frequencies;
  int64_t dim, first, count;
  bool interleaved, cos_first;
  std::vector<Math> rows;

  bool matches(const Tensor& given, int64_t width, bool interleaved_, bool cos_first_) const {
    return dim == width && interleaved == interleaved_ && cos_first == cos_first_ &&
           std::equal(frequencies.begin(), frequencies.end(), given.const_data_ptr<double>(),
                      given.const_data_ptr<double>() + given.numel());
  }
};

// Rows first .. first + count - 1, [count, dim], which stay until this thread asks for others.
template <class Math>
const Math* kept_rows(const Tensor& frequencies, int64_t dim, int64_t first, int64_t count,
                      bool interleaved, bool cos_first) {
  thread_local std::deque<KeptRows<Math>> tables;  // the last used first
  const auto found = std::find_if(tables.begin(), tables.end(), [&](const auto& t) {
    return t.matches(frequencies, dim, interleaved, cos_first);
  });
  int64_t ahead = 0;
  if (found != tables.end()) {
    std::rotate(tables.begin(), found, found + 1);
    const auto& t = tables.front();
    if (t.first <= first && first + count <= t.first + t.count)
      return t.rows.data() + (first - t.first) * dim;
    const int64_t most = kKeptBytes / (dim * static_cast<int64_t>(sizeof(Math))) - count;
    if (first > t.first && first <= t.first + t.count) ahead = std::min(kRowsAhead, most);
    tables.pop_front();
  }
  const auto n = frequencies.numel();
  const auto* const values = frequencies.const_data_ptr<double>();
  KeptRows<Math> made{{values, values + n}, dim, first, count + ahead, interleaved, cos_first, {}};
  made.rows.resize(static_cast<size_t>(made.count * dim));  // zero: some columns stay so
  Tensor positions = at::empty({made.count}, frequencies.options().dtype(at::kLong));
  auto* const position = positions.mutable_data_ptr<int64_t>();
  std::iota(position, position + made.count, first);
  fill_table(positions, frequencies, 1.0, sizeof(Math) == 8 ? at::kDouble : at::kFloat,
             layout_of(reinterpret_cast<char*>(made.rows.data()), dim, n, sizeof(Math), interleaved,
                       cos_first));
  tables.push_front(std::move(made));
  if (tables.size() > kKeptTables) tables.pop_back();
  return tables.front().rows.data();
}

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

SinusoidalTile tile_of(const Tensor& x, const Tensor& out, double scale, int64_t dim) {
  SinusoidalTile tile{};
  tile.scale = scale;
  tile.dim = dim;
  tile.x_token = x.stride(-2), tile.x_dim = x.stride(-1);
  tile.out_token = out.stride(-2), tile.out_dim = out.stride(-1);
  return tile;
}

// The tile at token `first` of batch entry b.
SinusoidalTile placed(SinusoidalTile tile, const Tensor& x, const Tensor& out, int64_t b,
                      int64_t first) {
  const int64_t item = x.element_size();
  const int64_t x_batch = x.dim() == 3 ? x.stride(0) : 0;
  const int64_t out_batch = x.dim() == 3 ? out.stride(0) : 0;
  tile.x =
      static_cast<const char*>(x.const_data_ptr()) + (b * x_batch + first * tile.x_token) * item;
  tile.out =
      static_cast<char*>(out.mutable_data_ptr()) + (b * out_batch + first * tile.out_token) * item;
  return tile;
}

template <class Math>
void add(const Tokens& tokens, const Tensor& frequencies, double scale, bool interleaved,
         bool cos_first, const Tensor& out) {
  const Tensor& x = tokens.x;
  const int64_t dim = x.size(-1), n = frequencies.numel();
  const int64_t sharing = tokens.batch / tokens.groups;  // batch entries of a group
  const auto add_tile =
      sinusoidal_rows(current_isa()).add[static_cast<int>(rope_dtype(x.scalar_type()))];
  const auto math = sizeof(Math) == 8 ? RopeDtype::f64 : RopeDtype::f32;
  const auto fill = rope_table_rows(current_isa()).fill[static_cast<int>(math)];

  const int64_t threads = at::get_num_threads();
  const int64_t share = (tokens.groups * tokens.length + threads - 1) / threads;
  const int64_t step =
      std::min({kTileTokens, share, 1 + kTileBytes / (dim * static_cast<int64_t>(sizeof(Math)))});
  const int64_t tiles = (tokens.length + step - 1) / step;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (step * dim * sharing));

  const bool keep =
      tokens.groups == 1 && tokens.length * dim * static_cast<int64_t>(sizeof(Math)) <= kKeptBytes;
  if (keep) {
    const Math* rows =
        kept_rows<Math>(frequencies, dim, tokens.start(0), tokens.length, interleaved, cos_first);
    parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
      SinusoidalTile tile = tile_of(x, out, scale, dim);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i * step;
        tile.tokens = std::min(step, tokens.length - first);
        tile.table = rows + first * dim;
        for (int64_t b = 0; b < sharing; ++b) add_tile(placed(tile, x, out, b, first));
      }
    });
    return;
  }

  const TableBuilder builder(frequencies, 1.0, tokens.groups * tokens.length);
  parallel_for(0, tokens.groups * tiles, grain, [&](int64_t begin, int64_t end) {
    TableWorker worker = builder.worker();
    std::vector<Math> table(static_cast<size_t>(step * dim));  // zero: some columns stay so
    std::array<int64_t, kTileTokens> positions;
    RopeTableRun& run = worker.run;
    run.whole = positions.data();
    run.out = layout_of(reinterpret_cast<char*>(table.data()), dim, n, sizeof(Math), interleaved,
                        cos_first);
    SinusoidalTile tile = tile_of(x, out, scale, dim);
    tile.table = table.data();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / tiles, first = i % tiles * step;
      tile.tokens = run.count = std::min(step, tokens.length - first);
      for (int64_t t = 0; t < run.count; ++t) positions[t] = tokens.start(group) + first + t;
      if (n > 0) fill(run);
      for (int64_t b = group * sharing; b < (group + 1) * sharing; ++b)
        add_tile(placed(tile, x, out, b, first));
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

const Tensor& kept_frequencies(int64_t count, double base, double denominator) {
  thread_local struct {
    int64_t count = -1;
    double base = 0, denominator = 0;
    Tensor values;
  } last;
  if (last.count != count || last.base != base || last.denominator != denominator) {
    last.values = sinusoidal_frequencies(at::empty({0}, at::kDouble), count, base, denominator);
    last.count = count, last.base = base, last.denominator = denominator;
  }
  return last.values;
}

}  // namespace posenc
