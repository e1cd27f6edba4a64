// How the tokens of a rotation are shared out among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/parallel.h"
#include "cpu/rope_rows.h"
#include "cpu/rope_tables.h"
#include "rope.h"
#include "rope_operand.h"

namespace posenc {

constexpr int64_t kGrainElements = 32768;  // less work than this is not worth a second thread

// Tiles of one batch entry; smaller ones when there are too few for all threads.
struct TilePlan {
  int64_t length, step, tiles, all, grain;

  TilePlan(int64_t batch, int64_t length, int64_t elements_per_token,
           int64_t grain_elements = kGrainElements)
      : length(length) {
    const int64_t per_token = std::max<int64_t>(elements_per_token, 1);
    step = batch * length >= 4 * kTileTokens * at::get_num_threads()
               ? kTileTokens
               : std::clamp<int64_t>(grain_elements / per_token, 1, kTileTokens);
    tiles = (length + step - 1) / step;
    all = batch * tiles;
    grain = std::max<int64_t>(1, grain_elements / (per_token * step));
  }

  int64_t batch_of(int64_t tile) const { return tile / tiles; }
  int64_t first_of(int64_t tile) const { return tile % tiles * step; }
  int64_t tokens_from(int64_t first) const { return std::min(step, length - first); }
};

// Write past the caches? Worth it for results that no cache will hold: a plain store first reads
// the line that it overwrites. Rows and halves of rows must then be whole cache lines.
inline bool stream(c10::ArrayRef<RopeOperand> operands, int64_t item, int64_t pairs) {
  constexpr int64_t line = 64, large = int64_t{1} << 25;
  int64_t bytes = 0;
  for (const auto& o : operands) {
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(o.out));
    const int64_t all = address | (o.out_batch | o.out_token | o.out_head | pairs) * item;
    if (o.x == o.out || o.out_dim != 1 || all % line != 0) return false;
    bytes += o.batch * o.tokens * o.heads * 2 * pairs * item;
  }
  return bytes >= large;
}

// Is a row written over itself in another order?
inline bool reorders_in_place(c10::ArrayRef<RopeOperand> operands,
                              const RopeOptions<int64_t>& options) {
  return options.interleaved != options.interleaved_out &&
         std::any_of(operands.begin(), operands.end(), [](const auto& o) { return o.x == o.out; });
}

// The tokens [first, first + at most step) of one batch entry; false if the operand has none.
inline bool place_tile(RopeTile& tile, const RopeOperand& o, int64_t item, int64_t batch,
                       int64_t first, int64_t step) {
  tile.tokens = std::min(step, o.tokens - first);
  if (tile.tokens <= 0) return false;
  tile.x = o.x + (batch * o.x_batch + first * o.x_token) * item;
  tile.out = o.out + (batch * o.out_batch + first * o.out_token) * item;
  tile.heads = o.heads;
  tile.x_token = o.x_token, tile.x_head = o.x_head, tile.x_dim = o.x_dim;
  tile.out_token = o.out_token, tile.out_head = o.out_head, tile.out_dim = o.out_dim;
  return true;
}

}  // namespace posenc
