// rope and apply_rope on CPU: check, allocate, walk tiles of tokens in parallel, call the row
// kernel.
#include "rope.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "cpu/huge_pages.h"
#include "cpu/rope_index.h"
#include "cpu/rope_tables.h"
#include "overlap.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrainElements = 32768;  // less work than this is not worth a second thread

// A tensor to rotate and where the result goes.
struct Operand {
  const char* x;
  char* out;
  int64_t batch, tokens, heads;
  int64_t x_batch, x_token, x_head, x_dim, out_batch, out_token, out_head, out_dim;

  Operand(const Tensor& in, const Tensor& result, RopeAxes axes)
      : x(static_cast<const char*>(in.const_data_ptr())),
        out(static_cast<char*>(result.mutable_data_ptr())) {
    const auto size = [&](int axis) { return axis < 0 ? 1 : in.size(axis); };
    const auto stride = [](const Tensor& t, int axis) { return axis < 0 ? 0 : t.stride(axis); };
    batch = size(axes.batch);
    tokens = size(axes.seq);
    heads = size(axes.heads);
    x_batch = stride(in, axes.batch), out_batch = stride(result, axes.batch);
    x_token = stride(in, axes.seq), out_token = stride(result, axes.seq);
    x_head = stride(in, axes.heads), out_head = stride(result, axes.heads);
    x_dim = in.stride(-1), out_dim = result.stride(-1);
  }
};

// Write past the caches? Worth it for results that no cache will hold: a plain store first reads
// the line that it overwrites. Rows and halves of rows must then be whole cache lines.
bool stream(c10::ArrayRef<Operand> operands, int64_t item, int64_t pairs) {
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

template <class Math>
void rotate(c10::ArrayRef<Operand> operands, const RopeOptions<int64_t>& options,
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
  const auto kernel = rope_rows(current_isa())
                          .of[static_cast<int>(rope_dtype(type))]
                          .rotate[options.interleaved][stream(operands, item, pairs)];
  const int64_t per_token = std::max<int64_t>(heads * dim, 1);
  const int64_t batch = operands[0].batch;
  // Tiles of one batch entry; smaller ones when there are too few for all threads.
  const int64_t step = batch * length >= 4 * kTileTokens * at::get_num_threads()
                           ? kTileTokens
                           : std::clamp<int64_t>(kGrainElements / per_token, 1, kTileTokens);
  const int64_t tiles = (length + step - 1) / step;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (per_token * step));

  at::parallel_for(0, batch * tiles, grain, [&](int64_t begin, int64_t end) {
    TileTables<Math> tables{cos, sin, pairs, {}, {}, {}};
    RopeTile tile{};
    tile.dim = dim;
    tile.pairs = pairs;
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

// Rotates each operand. All checks but those of rope_index have passed.
void rotate(const char* op, c10::ArrayRef<Operand> operands, const RopeOptions<int64_t>& options,
            at::ScalarType type, int64_t dim) {
  int64_t length = 0, elements = 0;
  for (const auto& operand : operands) {
    length = std::max(length, operand.tokens);
    elements += operand.batch * operand.tokens * operand.heads * dim;
  }
  const RopeIndex index = rope_index(op, options, operands[0].batch, length);
  if (elements == 0) return;
  if (type == at::kDouble) {
    rotate<double>(operands, options, index, type, dim);
  } else {
    rotate<float>(operands, options, index, type, dim);
  }
}

Tensor empty_output(const Tensor& x) {
  Tensor out = at::empty_strided(x.sizes(), output_strides<int64_t>(x), x.options());
  prefer_huge_pages(out);
  return out;
}

// The version counter tells autograd that a saved tensor has changed.
void bump_version(const Tensor& t) {
  if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
            const OptionalTensor& offsets, const OptionalTensor& cu_seqlens, int64_t offset,
            c10::string_view layout, bool interleaved, bool inverse) {
  const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                     offset, layout, interleaved, inverse};
  const RopeAxes axes = check_rope("rope", {"x", x}, options);
  Tensor out = empty_output(x);
  rotate("rope", Operand(x, out, axes), options, x.scalar_type(), x.size(-1));
  return out;
}

void rope_(const Tensor& x, const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
           const OptionalTensor& offsets, const OptionalTensor& cu_seqlens, int64_t offset,
           c10::string_view layout, bool interleaved, bool inverse) {
  const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                     offset, layout, interleaved, inverse};
  const RopeAxes axes = check_rope("rope", {"x", x}, options);
  check_writable("rope", "x", x);
  check_apart("rope", "x", x, "cos", cos);
  check_apart("rope", "x", x, "sin", sin);
  rotate("rope", Operand(x, x, axes), options, x.scalar_type(), x.size(-1));
  bump_version(x);
}

void rope_out(const Tensor& x, const Tensor& cos, const Tensor& sin,
              const OptionalTensor& positions, const OptionalTensor& offsets,
              const OptionalTensor& cu_seqlens, int64_t offset, c10::string_view layout,
              bool interleaved, bool inverse, const Tensor& out) {
  const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                     offset, layout, interleaved, inverse};
  const RopeAxes axes = check_rope("rope", {"x", x}, options);
  check_rope_out<int64_t>("rope", x, out);
  check_writable("rope", "out", out);
  if (!same_memory(x, out)) check_apart("rope", "out", out, "x", x);
  check_apart("rope", "out", out, "cos", cos);
  check_apart("rope", "out", out, "sin", sin);
  rotate("rope", Operand(x, out, axes), options, x.scalar_type(), x.size(-1));
  bump_version(out);
}

std::tuple<Tensor, Tensor> apply_rope(const Tensor& q, const Tensor& k, const Tensor& cos,
                                      const Tensor& sin, const OptionalTensor& positions,
                                      const OptionalTensor& offsets,
                                      const OptionalTensor& cu_seqlens, int64_t offset,
                                      c10::string_view layout, bool interleaved, bool inverse) {
  const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                     offset, layout, interleaved, inverse};
  const RopeAxes axes = check_apply_rope("apply_rope", q, k, options);
  Tensor q_out = empty_output(q), k_out = empty_output(k);
  rotate("apply_rope", {Operand(q, q_out, axes), Operand(k, k_out, axes)}, options, q.scalar_type(),
         q.size(-1));
  return {q_out, k_out};
}

void apply_rope_(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                 const OptionalTensor& positions, const OptionalTensor& offsets,
                 const OptionalTensor& cu_seqlens, int64_t offset, c10::string_view layout,
                 bool interleaved, bool inverse) {
  const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                     offset, layout, interleaved, inverse};
  const RopeAxes axes = check_apply_rope("apply_rope", q, k, options);
  for (const auto& [name, t] : {std::pair<const char*, const Tensor&>{"q", q}, {"k", k}}) {
    check_writable("apply_rope", name, t);
    check_apart("apply_rope", name, t, "cos", cos);
    check_apart("apply_rope", name, t, "sin", sin);
  }
  check_apart("apply_rope", "q", q, "k", k);
  rotate("apply_rope", {Operand(q, q, axes), Operand(k, k, axes)}, options, q.scalar_type(),
         q.size(-1));
  bump_version(q);
  bump_version(k);
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) {
  m.impl("rope", rope);
  m.impl("rope_", rope_);
  m.impl("rope_out", rope_out);
  m.impl("apply_rope", apply_rope);
  m.impl("apply_rope_", apply_rope_);
}

}  // namespace
}  // namespace posenc
