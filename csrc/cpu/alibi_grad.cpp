// Gradients of the alibi ops on CPU. With the unit bias u = -|j - i| and dot = sum_j(y * g):
//
//   alibi_slope_grad          sum(g * u)                  over the cells of a head
//   alibi_softmax_grad        scale * y * (g - dot)       for every score
//   alibi_softmax_slope_grad  sum(y * (g - dot) * u)      over the cells of a head
//
// Sums are taken in double, tile by tile in the order of batch, head, row: the same bits for any
// number of threads.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "alibi.h"
#include "cpu/alibi_tiles.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The sums of the tiles of each head, and of all batch entries when slopes have no batch.
Tensor sum_tiles(const AlibiWork& work, const std::vector<double>& sums, const Tensor& slopes) {
  Tensor total = at::empty(slopes.sizes(), slopes.options().dtype(at::kDouble));
  double* out = total.mutable_data_ptr<double>();
  std::fill(out, out + total.numel(), 0.0);
  const int64_t tiles = work.tiles();
  for (int64_t b = 0; b < work.batch; ++b) {
    for (int64_t h = 0; h < work.heads; ++h) {
      double& slot = out[(slopes.dim() == 2 ? b * work.heads : 0) + h];
      for (int64_t i = 0; i < tiles; ++i) slot += sums[(b * work.heads + h) * tiles + i];
    }
  }
  return total.to(slopes.scalar_type());
}

Tensor alibi_slope_grad(const Tensor& grad, const Tensor& slopes, bool causal,
                        const OptionalTensor& key_positions) {
  check_slope_grad<int64_t>("alibi_slope_grad", grad, slopes, key_positions);
  AlibiWork work(grad, causal);
  work.grad = AlibiOperand::input(grad);
  const Tensor positions =
      key_positions ? key_positions->to(at::kLong).contiguous() : Tensor();  // [B, K]
  const int64_t* position = key_positions ? positions.const_data_ptr<int64_t>() : nullptr;
  const int type = static_cast<int>(rope_dtype(grad.scalar_type()));
  const auto kernel = alibi_rows(current_isa()).slope_grad[type];
  std::vector<double> sums(work.batch * work.heads * work.tiles());
  for_each_alibi_tile(work, [&](AlibiTile& tile, int64_t b, int64_t, int64_t index) {
    tile.key_positions = position == nullptr ? nullptr : position + b * work.k_len;
    sums[index] = kernel(tile);
  });
  return sum_tiles(work, sums, slopes);
}

Tensor alibi_softmax_grad(const Tensor& grad, const Tensor& y, double scale, bool causal) {
  check_softmax_grad<int64_t>("alibi_softmax_grad", grad, y);
  Tensor out = empty_like_scores(y);
  if (out.numel() == 0) return out;
  AlibiWork work(y, causal);
  work.x = AlibiOperand::input(y);
  work.grad = AlibiOperand::input(grad);
  work.out = AlibiOperand::output(out);
  const int type = static_cast<int>(rope_dtype(y.scalar_type()));
  const auto kernel = alibi_rows(current_isa()).softmax_grad[type];
  for_each_alibi_tile(work, [&](AlibiTile& tile, int64_t, int64_t, int64_t) {
    tile.scale = scale;
    kernel(tile);
  });
  return out;
}

Tensor alibi_softmax_slope_grad(const Tensor& grad, const Tensor& y, const Tensor& slopes,
                                bool causal) {
  check_softmax_slope_grad<int64_t>("alibi_softmax_slope_grad", grad, y, slopes);
  AlibiWork work(y, causal);
  work.x = AlibiOperand::input(y);
  work.grad = AlibiOperand::input(grad);
  const int type = static_cast<int>(rope_dtype(y.scalar_type()));
  const auto kernel = alibi_rows(current_isa()).softmax_slope_grad[type];
  std::vector<double> sums(work.batch * work.heads * work.tiles());
  for_each_alibi_tile(
      work, [&](AlibiTile& tile, int64_t, int64_t, int64_t index) { sums[index] = kernel(tile); });
  return sum_tiles(work, sums, slopes);
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) {
  m.impl("alibi_slope_grad", alibi_slope_grad);
  m.impl("alibi_softmax_grad", alibi_softmax_grad);
  m.impl("alibi_softmax_slope_grad", alibi_softmax_slope_grad);
}

}  // namespace
}  // namespace posenc
