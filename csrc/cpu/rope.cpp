// rope and apply_rope on CPU: check, allocate, walk tiles of tokens in parallel, call the row
// kernel.
#include <algorithm>
#include <vector>

#include "cpu/huge_pages.h"
#include "cpu/rope_index.h"
#include "cpu/rope_tiles.h"
#include "rope_ops.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;

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
  const TilePlan plan(operands[0].batch, length, heads * dim);

  parallel_for(0, plan.all, plan.grain, [&](int64_t begin, int64_t end) {
    TileTables<Math> tables{cos, sin, pairs, {}, {}, {}};
    RopeTile tile{};
    tile.dim = dim;
    tile.pairs = pairs;
    std::vector<char> scratch(reorders_in_place(operands, options) ? 2 * pairs * item : 0);
    tile.scratch = scratch.data();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = plan.batch_of(i), first = plan.first_of(i);
      tables.load(index, b, first, plan.tokens_from(first), tile);
      for (const auto& o : operands) {  // q and k of the same tokens share the table rows
        if (place_tile(tile, o, item, b, first, plan.step)) kernel(tile);
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
