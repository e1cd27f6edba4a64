// rope and apply_rope on CPU: check, allocate, walk tiles of tokens in parallel, call the row
// kernel.
#include <algorithm>
#include <vector>

#include "cpu/huge_pages.h"
#include "cpu/parallel.h"
#include "cpu/rope_index.h"
#include "cpu/rope_rows.h"
#include "cpu/rope_tables.h"
#include "rope_ops.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;

constexpr int64_t kGrainElements = 32768;  // less work than this is not worth a second thread

// Write past the caches? Worth it for results that no cache will hold: a plain store first reads
// the line that it overwrites. Rows and halves of rows must then be whole cache lines.
bool stream(c10::ArrayRef<RopeOperand> operands, int64_t item, int64_t pairs) {
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
bool reorders_in_place(c10::ArrayRef<RopeOperand> operands, const RopeOptions<int64_t>& options) {
  return options.interleaved != options.interleaved_out &&
         std::any_of(operands.begin(), operands.end(), [](const auto& o) { return o.x == o.out; });
}

template <class Math>
void rotate_tiles(c10::ArrayRef<RopeOperand> operands, const RopeOptions<int64_t>& options,
                  const RopeIndex& index, at::ScalarType type, int64_t dim) {
  const auto math = sizeof(Math) == 8 ? at::kDouble : at::kFloat;
  const Table cos(options.cos, false, math), sin(options.sin, options.inverse, math);
  const int64_t pairs = options.cos.size(-1);
  const auto item = static_cast<int64_t>(c10::elementSize(type));

  int64_t length = 0, heads = 0;
  for (const auto& operand : operands) {
    length = std::max(length, operand.tokens);
    heads += operand.heads;
  }
  const auto kernel =
      rope_rows(current_isa())
          .of[static_cast<int>(rope_dtype(type))]
          .rotate[options.interleaved][options.interleaved_out][stream(operands, item, pairs)];
  const int64_t per_token = std::max<int64_t>(heads * dim, 1);
  const int64_t batch = operands[0].batch;
  // Tiles of one batch entry; smaller ones when there are too few for all threads.
  const int64_t step = batch * length >= 4 * kTileTokens * at::get_num_threads()
                           ? kTileTokens
                           : std::clamp<int64_t>(kGrainElements / per_token, 1, kTileTokens);
  const int64_t tiles = (length + step - 1) / step;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (per_token * step));

  parallel_for(0, batch * tiles, grain, [&](int64_t begin, int64_t end) {
    TileTables<Math> tables{cos, sin, pairs, {}, {}, {}};
    RopeTile tile{};
    tile.dim = dim;
    tile.pairs = pairs;
    std::vector<char> scratch(reorders_in_place(operands, options) ? 2 * pairs * item : 0);
    tile.scratch = scratch.data();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / tiles, first = i % tiles * step;
      tables.load(index, b, first, std::min(step, length - first), tile);
      for (const auto& o : operands) {  // q and k of the same tokens share the table rows
        tile.tokens = std::min(step, o.tokens - first);
        if (tile.tokens <= 0) continue;
        tile.x = o.x + (b * o.x_batch + first * o.x_token) * item;
        tile.out = o.out + (b * o.out_batch + first * o.out_token) * item;
        tile.heads = o.heads;
        tile.x_token = o.x_token, tile.x_head = o.x_head, tile.x_dim = o.x_dim;
        tile.out_token = o.out_token, tile.out_head = o.out_head, tile.out_dim = o.out_dim;
        kernel(tile);
      }
    }
  });
}

struct OnCpu {
  static constexpr bool kReordersInPlace = true;
  static void prepare(const Tensor& out) { prefer_huge_pages(out); }

  static void rotate(const char* op, const Tensor& like, c10::ArrayRef<RopeOperand> operands,
                     const RopeOptions<int64_t>& options) {
    const int64_t dim = like.size(-1);
    int64_t length = 0, elements = 0;
    for (const auto& operand : operands) {
      length = std::max(length, operand.tokens);
      elements += operand.batch * operand.tokens * operand.heads * dim;
    }
    const RopeIndex index = rope_index(op, options, operands[0].batch, length);
    if (elements == 0) return;
    const auto type = like.scalar_type();
    if (type == at::kDouble) {
      rotate_tiles<double>(operands, options, index, type, dim);
    } else {
      rotate_tiles<float>(operands, options, index, type, dim);
    }
  }
};

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) { RopeOps<OnCpu>::add_to(m); }

}  // namespace
}  // namespace posenc
