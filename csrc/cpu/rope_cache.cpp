// apply_rope_cache on CPU: find where every token goes, then walk tiles of tokens in parallel.
#include "rope_cache.h"

#include <cstring>
#include <vector>

#include "cpu/cache_rows.h"
#include "cpu/huge_pages.h"
#include "cpu/norm_rope_tiles.h"
#include "cpu/rope_index.h"
#include "cpu/rope_tiles.h"
#include "rope_cache_ops.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;

// ---- Where each token goes. ----

// [batch, tokens], -1 for a token that is not stored.
using Slots = c10::SmallVector<int64_t, 8>;

void check_distinct(const char* op, const char* name, const Slots& slots) {
  int64_t last = -1;
  bool rising = true;
  for (const int64_t slot : slots) {
    if (slot < 0) continue;
    rising = rising && slot > last;
    last = slot;
  }
  if (rising) return;
  Slots sorted;
  std::copy_if(slots.begin(), slots.end(), std::back_inserter(sorted),
               [](int64_t slot) { return slot >= 0; });
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  POSENC_CHECK_VALUE(twice == sorted.end(), op, name,
                     " must give every token a slot of its own, got two for slot ",
                     twice == sorted.end() ? -1 : *twice);
}

Slots given_slots(const char* op, const Tensor& slots, int64_t batch, int64_t tokens,
                  int64_t limit) {
  Slots found;
  found.reserve(static_cast<size_t>(batch * tokens));
  const int64_t step = slots.stride(-1);
  const int64_t batch_step = slots.dim() == 2 ? slots.stride(0) : tokens * step;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t s = 0; s < tokens; ++s) {
      const int64_t slot = read_index(slots, b * batch_step + s * step);
      POSENC_CHECK_INDEX(slot >= -1 && slot < limit, op,
                         "slots must be -1 or places in the cache, 0 <= slot < N * P = ", limit,
                         ", got ", slot);
      found.push_back(slot);
    }
  }
  check_distinct(op, "slots", found);
  return found;
}

// The row of a contiguous cache is the position. In a ring, consecutive tokens that others of the
// same call would overwrite are not stored.
Slots slots_of_positions(const char* op, const RopeIndex& index, bool consecutive, int64_t batch,
                         int64_t tokens, int64_t rows, int64_t window) {
  Slots found;
  found.reserve(static_cast<size_t>(batch * tokens));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t s = 0; s < tokens; ++s) {
      const int64_t position = *index.of(b, s), row = window > 0 ? position % window : position;
      POSENC_CHECK_INDEX(row < rows, op, "k_cache must have a row for each position, got position ",
                         position, " with L = ", rows);
      const bool overwritten = window > 0 && consecutive && s < tokens - window;
      found.push_back(overwritten ? -1 : b * rows + row);
    }
  }
  if (!consecutive) check_distinct(op, "positions", found);
  return found;
}

// ---- What is written there. ----

struct Store {
  const CacheOperand &k, &v;
  const Slots& slots;
  int64_t rows;
  at::ScalarType type;
  CacheFormat format;

  int64_t x_item() const { return static_cast<int64_t>(c10::elementSize(type)); }
  int64_t out_item() const { return format == CacheFormat::same ? x_item() : 1; }

  int64_t slot_of(int64_t b, int64_t s) const {
    return slots[static_cast<size_t>(b * k.tokens + s)];
  }
  const char* x(const CacheOperand& o, int64_t b, int64_t s) const {
    return o.x + (b * o.x_batch + s * o.x_token) * x_item();
  }
  char* out(const CacheOperand& o, int64_t slot) const {
    return o.out + (slot / rows * o.out_block + slot % rows * o.out_row) * out_item();
  }
  // How many tokens from s on go to rows one after the other.
  int64_t run(int64_t b, int64_t s, int64_t end) const {
    const int64_t slot = slot_of(b, s);
    int64_t n = 1;
    while (s + n < end && slot_of(b, s + n) == slot + n && (slot + n) % rows != 0) ++n;
    return n;
  }
};

// All heads of one token of v as they are.
void copy_token(const CacheOperand& v, const char* x, char* out, int64_t item) {
  if (v.heads * v.dim == 0) return;
  const bool adjacent = v.x_dim == 1 && v.out_dim == 1;
  if (adjacent && v.x_head == v.dim && v.out_head == v.dim) {
    std::memcpy(out, x, static_cast<size_t>(v.heads * v.dim * item));
    return;
  }
  for (int64_t head = 0; head < v.heads; ++head) {
    const char* from = x + head * v.x_head * item;
    char* to = out + head * v.out_head * item;
    if (adjacent) {
      std::memcpy(to, from, static_cast<size_t>(v.dim * item));
    } else {
      for (int64_t d = 0; d < v.dim; ++d)
        std::memcpy(to + d * v.out_dim * item, from + d * v.x_dim * item,
                    static_cast<size_t>(item));
    }
  }
}

// Rotates a tile, normalised if there are weights for it.
template <class Math>
struct Turn {
  void (*rotate)(const RopeTile&);
  void (*norm)(const NormTile&);
  const NormWeights<Math>* weights;
  Math* buffer;

  void operator()(const RopeTile& tile) const {
    if (weights == nullptr) return rotate(tile);
    norm({tile, weights->rows(buffer)});
  }
};

// The tokens [first, end) of k, turned, and of v; `tables` has their rows, from `first` on.
template <class Math>
void store_same(const Store& to, const RopeTile& tables, const Turn<Math>& turn, int64_t b,
                int64_t first, int64_t end) {
  const CacheOperand& k = to.k;
  for (int64_t s = first, n = 1; s < end; s += n) {
    const int64_t slot = to.slot_of(b, s);
    n = 1;
    if (slot < 0) continue;
    n = to.run(b, s, end);
    RopeTile tile = tables;
    tile.cos_row += s - first, tile.sin_row += s - first;
    tile.x = to.x(k, b, s), tile.out = to.out(k, slot);
    tile.tokens = n, tile.heads = k.heads;
    tile.x_token = k.x_token, tile.x_head = k.x_head, tile.x_dim = k.x_dim;
    tile.out_token = k.out_row, tile.out_head = k.out_head, tile.out_dim = k.out_dim;
    turn(tile);
    for (int64_t i = 0; i < n; ++i)
      copy_token(to.v, to.x(to.v, b, s + i), to.out(to.v, slot + i), to.x_item());
  }
}

// The heads of one token as adjacent floats.
void widen_token(const CacheOperand& o, const char* x, const Store& to, float* rows) {
  const auto widen = cache_rows(current_isa()).widen[static_cast<int>(rope_dtype(to.type))];
  for (int64_t head = 0; head < o.heads; ++head)
    widen(x + head * o.x_head * to.x_item(), o.x_dim, o.dim, rows + head * o.dim);
}

// And from there to the cache, divided and rounded.
void store_token(const CacheOperand& o, const float* rows, char* out, const Store& to) {
  const auto store = cache_rows(current_isa()).store[static_cast<int>(to.format)];
  for (int64_t head = 0; head < o.heads; ++head) {
    const float scale = o.scale == nullptr ? 1.0f : o.scale[head * o.scale_head];
    store({rows + head * o.dim, out + head * o.out_head, o.dim, o.out_dim, scale});
  }
}

// `rows` is two tokens of floats.
template <class Math>
void store_eight_bits(const Store& to, const RopeTile& tables, const Turn<Math>& turn, int64_t b,
                      int64_t first, int64_t end, float* rows) {
  for (int64_t s = first; s < end; ++s) {
    const int64_t slot = to.slot_of(b, s);
    if (slot < 0) continue;
    RopeTile tile = tables;
    float* turned = rows + to.k.heads * to.k.dim;
    tile.cos_row += s - first, tile.sin_row += s - first;
    tile.x = rows, tile.out = turned;
    tile.tokens = tile.x_dim = tile.out_dim = 1, tile.heads = to.k.heads;
    tile.x_token = tile.out_token = 0, tile.x_head = tile.out_head = to.k.dim;
    widen_token(to.k, to.x(to.k, b, s), to, rows);
    turn(tile);
    store_token(to.k, turned, to.out(to.k, slot), to);
    widen_token(to.v, to.x(to.v, b, s), to, rows);
    store_token(to.v, rows, to.out(to.v, slot), to);
  }
}

template <class Math>
void rotate_and_store(const RopeOperand& q, const Store& to, const RopeOptions<int64_t>& options,
                      const RopeIndex& index, const CacheNorm& norm) {
  const auto math = sizeof(Math) == 8 ? at::kDouble : at::kFloat;
  const Table cos(options.cos, false, math), sin(options.sin, options.inverse, math);
  const int64_t pairs = options.cos.size(-1), dim = to.k.dim, item = to.x_item();
  const bool same = to.format == CacheFormat::same;
  const RopeDtype own = rope_dtype(to.type), of_k = same ? own : RopeDtype::f32;
  const NormRule rule =
      norm.given ? check_norm_options("apply_rope_cache", norm.options) : NormRule{};
  c10::SmallVector<NormWeights<Math>, 2> weights;
  int64_t scratch = 0;
  if (norm.given) {
    weights.emplace_back(norm.q, norm.options, rule, q.heads);
    weights.emplace_back(norm.k, norm.options, rule, to.k.heads);
    if (!plain_norm(rule, q.x_dim, q.out_dim)) scratch = weights[0].scratch;
    if (!plain_norm(rule, same ? to.k.x_dim : 1, same ? to.k.out_dim : 1))
      scratch = std::max(scratch, weights[1].scratch);
  }
  const auto turn = [&](RopeDtype type, bool streamed, const NormInput& in, size_t which) {
    const auto at = static_cast<size_t>(type);
    const bool shifted = rule.centred || in.bias.has_value();
    return Turn<Math>{rope_rows(current_isa())
                          .of[at]
                          .rotate[options.interleaved][options.interleaved_out][streamed],
                      norm_rope_rows(current_isa()).of[at].norm[options.interleaved][shifted],
                      norm.given ? &weights[which] : nullptr, nullptr};
  };
  const int64_t elements = q.heads * dim + to.k.heads * (dim + to.v.dim);
  const TilePlan plan(q.batch, std::max(q.tokens, to.k.tokens), elements);

  parallel_for(0, plan.all, plan.grain, [&](int64_t begin, int64_t end) {
    TileTables<Math> tables{cos, sin, pairs, {}, {}, {}};
    RopeTile tile{};
    tile.dim = dim;
    tile.pairs = pairs;
    std::vector<char> reordered(reorders_in_place(q, options) ? 2 * pairs * item : 0);
    tile.scratch = reordered.data();
    std::vector<float> rows(same ? 0 : to.k.heads * std::max(2 * dim, to.v.dim));
    std::vector<Math> buffer(scratch);
    Turn<Math> turn_q = turn(own, stream(q, item, pairs), norm.q, 0);
    Turn<Math> turn_k = turn(of_k, /*streamed=*/false, norm.k, 1);
    turn_q.buffer = turn_k.buffer = buffer.data();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = plan.batch_of(i), first = plan.first_of(i);
      const int64_t count = plan.tokens_from(first);
      tables.load(index, b, first, count, tile);
      if (place_tile(tile, q, item, b, first, plan.step)) turn_q(tile);
      const int64_t last = std::min(first + count, to.k.tokens);
      if (same) {
        store_same(to, tile, turn_k, b, first, last);
      } else {
        store_eight_bits(to, tile, turn_k, b, first, last, rows.data());
      }
    }
  });
}

struct CacheOnCpu {
  using Int = int64_t;
  static constexpr bool fake = false;
  static constexpr bool kReordersInPlace = true;

  static void prepare(const Tensor& out) { prefer_huge_pages(out); }

  static void store(const char* op, const Tensor& like, const RopeOperand& q, const CacheOperand& k,
                    const CacheOperand& v, const RopeOptions<int64_t>& options,
                    const CacheOptions<int64_t>& cache, const CacheAxes& axes,
                    const CacheNorm& norm) {
    const RopeIndex index = rope_index(op, options, k.batch, std::max(q.tokens, k.tokens));
    const int64_t blocks = cache.k_cache.size(0), rows = cache.k_cache.size(axes.row);
    const Slots slots = axes.paged ? given_slots(op, *cache.slots, k.batch, k.tokens, blocks * rows)
                                   : slots_of_positions(op, index, !options.positions, k.batch,
                                                        k.tokens, rows, cache.window);
    const Store to{k, v, slots, rows, like.scalar_type(), cache_format(cache.k_cache)};
    if (to.type == at::kDouble) {
      rotate_and_store<double>(q, to, options, index, norm);
    } else {
      rotate_and_store<float>(q, to, options, index, norm);
    }
  }
};

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) { RopeCacheOps<CacheOnCpu>::add_to(m); }

}  // namespace
}  // namespace posenc
