// Tensors as the row kernels of alibi want them, and the parallel walk over tiles of query rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <memory>

#include "cpu/alibi_rows.h"
#include "cpu/huge_pages.h"
#include "cpu/parallel.h"
#include "strides.h"

namespace posenc {

inline at::Tensor empty_like_scores(const at::Tensor& scores) {
  at::Tensor out =
      at::empty_strided(scores.sizes(), output_strides<int64_t>(scores), scores.options());
  prefer_huge_pages(out);
  return out;
}

// Data of [B, H, Q, K], or of [H, Q, K] for any batch.
struct AlibiOperand {
  char* data = nullptr;
  int64_t batch = 0, head = 0, row = 0, key = 0;  // strides in elements
  int64_t item = 0;

  AlibiOperand() = default;
  AlibiOperand(const at::Tensor& t, void* pointer)
      : data(static_cast<char*>(pointer)),
        batch(t.dim() == 4 ? t.stride(0) : 0),
        head(t.stride(-3)),
        row(t.stride(-2)),
        key(t.stride(-1)),
        item(static_cast<int64_t>(t.element_size())) {}
  static AlibiOperand input(const at::Tensor& t) {
    return {t, const_cast<void*>(t.const_data_ptr())};
  }
  static AlibiOperand output(const at::Tensor& t) { return {t, t.mutable_data_ptr()}; }

  void* at(int64_t b, int64_t h, int64_t q) const {
    return data == nullptr ? nullptr : data + (b * batch + h * head + q * row) * item;
  }
};

// Slopes [H] or [B, H] as doubles.
struct AlibiSlopes {
  at::Tensor values;
  explicit AlibiSlopes(const at::Tensor& slopes) : values(slopes.to(at::kDouble).contiguous()) {}
  double at(int64_t b, int64_t h) const {
    const int64_t row = values.dim() == 2 ? b * values.size(1) : 0;
    return values.const_data_ptr<double>()[row + h];
  }
};

// What one call works on.
struct AlibiWork {
  at::ScalarType type;
  int64_t batch, heads, q_len, k_len;
  bool causal;
  AlibiOperand x, grad, out;

  AlibiWork(const at::Tensor& shape, bool masked)
      : type(shape.scalar_type()),
        batch(shape.dim() == 4 ? shape.size(0) : 1),
        heads(shape.size(-3)),
        q_len(shape.size(-2)),
        k_len(shape.size(-1)),
        causal(masked) {}

  int64_t step() const { return alibi_tile_rows(q_len, k_len); }   // rows of one tile
  int64_t tiles() const { return (q_len + step() - 1) / step(); }  // of one head

  static constexpr int64_t kTileElements = 32768;
};

// Runs body(tile, b, h, index) for every tile; the tiles of head h of batch entry b have indices
// (b * heads + h) * tiles() ...
template <class Body>
void for_each_alibi_tile(const AlibiWork& work, const Body& body) {
  const int64_t step = work.step(), tiles = work.tiles();
  const int64_t grain =
      std::max<int64_t>(1, AlibiWork::kTileElements / std::max<int64_t>(step * work.k_len, 1));
  // Under a causal mask later rows are longer. Where a thread gets less than a few heads, the order
  // first, last, second, ... gives every thread both.
  const bool in_turns = work.causal && work.batch * work.heads < 4 * at::get_num_threads();
  const int64_t lanes = (work.k_len + kAlibiLanes - 1) / kAlibiLanes * kAlibiLanes;
  parallel_for(0, work.batch * work.heads * tiles, grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<double[]> scratch(new double[static_cast<size_t>(2 * lanes + 8)]);
    const auto address = reinterpret_cast<uintptr_t>(scratch.get());
    AlibiTile tile{};
    tile.scratch = reinterpret_cast<void*>((address + 63) / 64 * 64);
    tile.keys = work.k_len;
    tile.causal = work.causal;
    tile.x_row = work.x.row, tile.x_key = work.x.key;
    tile.grad_row = work.grad.row, tile.grad_key = work.grad.key;
    tile.out_row = work.out.row, tile.out_key = work.out.key;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / tiles / work.heads, h = i / tiles % work.heads, nth = i % tiles;
      const int64_t index = !in_turns ? nth : nth % 2 == 0 ? nth / 2 : tiles - 1 - nth / 2;
      const int64_t q = index * step;
      tile.rows = std::min(step, work.q_len - q);
      tile.position = q + work.k_len - work.q_len;
      tile.x = work.x.at(b, h, q);
      tile.grad = work.grad.at(b, h, q);
      tile.out = work.out.at(b, h, q);
      body(tile, b, h, i - nth + index);
    }
  });
}

}  // namespace posenc
