// cos and sin tables of any dtype and stride, as the row kernels want them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "cpu/rope_index.h"
#include "cpu/rope_rows.h"
#include "rope_types.h"

namespace posenc {

// cos or sin. The row kernels read adjacent float (double for double x) columns; a table of any
// other kind is converted a tile at a time, once for all heads.
struct Table {
  const char* data;
  at::ScalarType type;
  int64_t batch, row, column;  // strides in elements; batch is 0 for a table shared by the batch
  bool negate, direct;

  Table(const at::Tensor& t, bool negate, at::ScalarType math)
      : data(static_cast<const char*>(t.const_data_ptr())),
        type(t.scalar_type()),
        batch(t.dim() == 3 && t.size(0) > 1 ? t.stride(0) : 0),
        row(t.stride(-2)),
        column(t.stride(-1)),
        negate(negate),
        direct(type == math && !negate && (column == 1 || t.size(-1) <= 1)) {}

  template <class Stored, class Math>
  void convert(int64_t start, int64_t pairs, Math* out) const {
    const Stored* in = reinterpret_cast<const Stored*>(data) + start;
    for (int64_t i = 0; i < pairs; ++i) {
      const Math value = static_cast<Math>(widen(in[i * column]));
      out[i] = negate ? -value : value;
    }
  }

  template <class Math>
  void read_row(int64_t start, int64_t pairs, Math* out) const {
    switch (rope_dtype(type)) {
      case RopeDtype::f32:
        return convert<float>(start, pairs, out);
      case RopeDtype::f64:
        return convert<double>(start, pairs, out);
      case RopeDtype::bf16:
        return convert<bf16>(start, pairs, out);
      case RopeDtype::f16:
        return convert<f16>(start, pairs, out);
    }
  }
};

constexpr int64_t kTileTokens = 32;  // tokens of one tile at most

// The cos and sin of the tile at hand, as the row kernels want them.
template <class Math>
struct TileTables {
  const Table &cos, &sin;
  int64_t pairs;
  std::vector<Math>
      buffer;  // [2, kTileTokens, pairs], allocated only when a table needs converting
  std::array<int64_t, kTileTokens> cos_row, sin_row;

  void load(const RopeIndex& index, int64_t batch, int64_t first, int64_t tokens, RopeTile& tile) {
    const int64_t* rows = index.of(batch, first);
    if (buffer.empty() && !(cos.direct && sin.direct)) buffer.resize(2 * kTileTokens * pairs);
    tile.cos = load(cos, rows, batch, tokens, buffer.data(), cos_row);
    tile.sin = load(sin, rows, batch, tokens, buffer.data() + kTileTokens * pairs, sin_row);
    tile.cos_row = cos_row.data();
    tile.sin_row = sin_row.data();
  }

 private:
  const void* load(const Table& table, const int64_t* rows, int64_t batch, int64_t tokens,
                   Math* converted, std::array<int64_t, kTileTokens>& offsets) {
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t start = batch * table.batch + rows[i] * table.row;
      if (!table.direct) table.read_row(start, pairs, converted + i * pairs);
      offsets[i] = table.direct ? start : i * pairs;
    }
    return table.direct ? static_cast<const void*>(table.data) : converted;
  }
};

}  // namespace posenc
