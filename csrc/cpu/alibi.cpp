// alibi_bias, add_alibi and alibi_softmax on CPU: check, allocate, walk tiles of query rows in
// parallel, call the row kernel.
#include "alibi.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cpu/alibi_tiles.h"
#include "overlap.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

int kernel_of(at::ScalarType type) { return static_cast<int>(rope_dtype(type)); }

Tensor alibi_bias(const Tensor& slopes, int64_t q_len, int64_t k_len, bool causal,
                  at::ScalarType dtype, const OptionalTensor& key_positions) {
  const auto size =
      check_alibi_bias<int64_t>("alibi_bias", slopes, q_len, k_len, dtype, key_positions);
  Tensor out = at::empty(size, slopes.options().dtype(dtype));
  if (out.numel() == 0) return out;
  prefer_huge_pages(out);
  AlibiWork work(out, causal);
  work.out = AlibiOperand::output(out);
  const AlibiSlopes slope(slopes);
  const Tensor positions =
      key_positions ? key_positions->to(at::kLong).contiguous() : Tensor();  // [B, K]
  const int64_t* position = key_positions ? positions.const_data_ptr<int64_t>() : nullptr;
  const auto kernel = alibi_rows(current_isa()).bias[kernel_of(dtype)];
  for_each_alibi_tile(work, [&](AlibiTile& tile, int64_t b, int64_t h, int64_t) {
    tile.slope = slope.at(b, h);
    tile.key_positions = position == nullptr ? nullptr : position + b * k_len;
    kernel(tile);
  });
  return out;
}

void add(const Tensor& scores, const Tensor& slopes, bool causal, const Tensor& out) {
  if (out.numel() == 0) return;
  AlibiWork work(scores, causal);
  work.x = AlibiOperand::input(scores);
  work.out = AlibiOperand::output(out);
  const AlibiSlopes slope(slopes);
  const auto kernel = alibi_rows(current_isa()).add[kernel_of(scores.scalar_type())];
  for_each_alibi_tile(work, [&](AlibiTile& tile, int64_t b, int64_t h, int64_t) {
    tile.slope = slope.at(b, h);
    kernel(tile);
  });
}

Tensor add_alibi(const Tensor& scores, const Tensor& slopes, bool causal) {
  check_scores<int64_t>("add_alibi", scores, slopes);
  Tensor out = empty_like_scores(scores);
  add(scores, slopes, causal, out);
  return out;
}

void add_alibi_(const Tensor& scores, const Tensor& slopes, bool causal) {
  check_scores<int64_t>("add_alibi", scores, slopes);
  check_writable("add_alibi", "scores", scores);
  check_apart("add_alibi", "scores", scores, "slopes", slopes);
  add(scores, slopes, causal, scores);
  // The version counter tells autograd that a saved tensor has changed.
  if (!scores.is_inference()) scores.unsafeGetTensorImpl()->bump_version();
}

Tensor alibi_softmax(const Tensor& scores, const Tensor& slopes, double scale, bool causal,
                     const OptionalTensor& key_padding_mask) {
  check_scores<int64_t>("alibi_softmax", scores, slopes);
  check_key_padding_mask<int64_t>("alibi_softmax", scores, key_padding_mask);
  Tensor out = empty_like_scores(scores);
  if (out.numel() == 0) return out;
  AlibiWork work(scores, causal);
  work.x = AlibiOperand::input(scores);
  work.out = AlibiOperand::output(out);
  const AlibiSlopes slope(slopes);
  const Tensor mask = key_padding_mask ? key_padding_mask->contiguous() : Tensor();  // [B, K]
  const auto* keep =
      key_padding_mask ? static_cast<const uint8_t*>(mask.const_data_ptr()) : nullptr;
  const auto kernel = alibi_rows(current_isa()).softmax[kernel_of(scores.scalar_type())];
  for_each_alibi_tile(work, [&](AlibiTile& tile, int64_t b, int64_t h, int64_t) {
    tile.slope = slope.at(b, h);
    tile.scale = scale;
    tile.keep = keep == nullptr ? nullptr : keep + b * work.k_len;
    kernel(tile);
  });
  return out;
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) {
  m.impl("alibi_bias", alibi_bias);
  m.impl("add_alibi", add_alibi);
  m.impl("add_alibi_", add_alibi_);
  m.impl("alibi_softmax", alibi_softmax);
}

}  // namespace
}  // namespace posenc
