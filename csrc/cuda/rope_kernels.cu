// Rotation on CUDA. A thread keeps to a token and a few pairs: it looks up their cos and sin once,
// holds them in registers and walks over heads of q and k. Neighbouring threads take neighbouring
// pairs, then neighbouring heads (tokens, where those are the nearer ones in memory). In the
// aligned kernels a thread moves 16 bytes at a time and has four such loads in flight. Nothing
// waits for another thread. Channels beyond R are tiles of their own.
//
// Bytes moved: each channel of q and k is read once and written once; a table row is read by each
// group of heads, for all but the first from the L1 cache.
#include <algorithm>

#include "cuda/rope_tile.cuh"

namespace posenc {
namespace {

POSENC_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T, bool of_x, bool of_out, bool aligned>
__global__ void __launch_bounds__(kThreads, kWalkingBlocks)
    rope_kernel(const __grid_constant__ RopeCall call, const __grid_constant__ RopeTiling tiling) {
  using Units = RopeUnits<T, of_x, of_out, aligned>;
  check_cu_seqlens(call.source);
  // What the thread takes of each tile.
  const unsigned rest = threadIdx.x * tiling.by_columns >> 16;
  const unsigned column = threadIdx.x - rest * tiling.columns;
  const unsigned inner = tiling.tokens_inner ? tiling.tokens : tiling.slots;
  const unsigned high = rest * tiling.by_inner >> 16, low = rest - high * inner;
  const unsigned slot = tiling.tokens_inner ? high : low, place = tiling.tokens_inner ? low : high;
  for (int64_t i = blockIdx.x; i < tiling.all_tiles; i += gridDim.x) {
    const Division tile = divide(i, tiling.parts);
    const Division part = divide(tile.remainder, tiling.head_tiles);
    const int64_t at = tile.quotient * tiling.tokens + place;
    if (place >= tiling.tokens || slot >= tiling.slots || at >= call.batch * call.source.length)
      continue;
    const Division token = divide(at, call.source.length);
    const int64_t first = part.remainder * tiling.heads;
    const int64_t end = smaller(first + tiling.heads, call.q.heads + call.k.heads);
    if (part.quotient < tiling.pair_tiles) {
      const int64_t unit = part.quotient * tiling.columns + column;
      if (unit * Units::width < call.pairs)
        rotate_heads<Units, T>(call, tiling, token.quotient, token.remainder, unit, first + slot,
                               end);
    } else {
      const int64_t unit = (part.quotient - tiling.pair_tiles) * tiling.columns + column;
      if (2 * call.pairs + unit * (aligned ? Pack<T>::size : 1) < call.dim)
        copy_heads<T, aligned>(call, tiling, token.quotient, token.remainder, unit, first + slot,
                               end);
    }
  }
}

// ---- Launch. ----

constexpr int64_t kWalk = 16;  // packs of a thread at most, of x

bool is_empty(const RopeOperand& o) { return o.batch * o.tokens * o.heads == 0; }

template <class T>
bool is_aligned(const RopeCall& call, const RopeOperand& o) {
  constexpr int64_t item = sizeof(T);
  const auto used = [](int64_t size, int64_t stride) { return size > 1 ? stride : 0; };
  return is_empty(o) || (o.x_dim == 1 && o.out_dim == 1 && call.pairs % Pack<T>::size == 0 &&
                         call.dim % Pack<T>::size == 0 &&
                         aligned16(o.x, item, used(o.batch, o.x_batch), used(o.tokens, o.x_token),
                                   used(o.heads, o.x_head)) &&
                         aligned16(o.out, item, used(o.batch, o.out_batch),
                                   used(o.tokens, o.out_token), used(o.heads, o.out_head)));
}

bool has_wide_rows(const RopeCudaTable& t) {
  const int64_t item = t.type == RopeDtype::f64 ? 8 : t.type == RopeDtype::f32 ? 4 : 2;
  return t.column == 1 && aligned16(t.data, item, t.batch, t.row);
}

// Shares a block out to heads and tokens. The more heads a thread walks over, the less it pays for
// cos and sin; but few tokens must fill the GPU, and few threads be idle.
void set_slots(RopeTiling& t, int64_t tokens, int64_t heads, int64_t units, int64_t packs) {
  const int64_t places = kThreads / t.columns;
  const int64_t most = std::clamp<int64_t>(units / (kThreads * POSENC_FULL_GPU), 1, kWalk / packs);
  double best = 0;
  for (int64_t walk = 1; walk <= most; ++walk) {
    const int64_t all = ceil_div(heads, walk);
    const int64_t slots = t.tokens_inner ? std::max<int64_t>(1, places / tokens) : places;
    const int64_t used = std::min(all, slots), taken = std::min(places / used, tokens);
    const double busy = double(taken * heads) / double(walk * ceil_div(all, used));
    if (busy < best) continue;
    best = busy;
    t.slots = static_cast<unsigned>(used);
    t.tokens = static_cast<unsigned>(taken);
    t.heads = static_cast<int>(used * walk);
  }
}

template <class T, bool of_x, bool of_out, bool aligned>
void launch_tiles(const RopeCall& call, cudaStream_t stream) {
  using Units = RopeUnits<T, of_x, of_out, aligned>;
  constexpr int64_t width = aligned ? Pack<T>::size : 1;
  const int64_t heads = call.q.heads + call.k.heads, tokens = call.batch * call.source.length;
  const auto copied = [](const RopeOperand& o) { return !is_empty(o) && o.x != o.out; };
  const int64_t beyond = copied(call.q) || copied(call.k) ? call.dim - 2 * call.pairs : 0;
  const int64_t pair_units = call.pairs / Units::width;
  const int64_t copy_units = beyond / width;
  if (tokens * heads * (pair_units + copy_units) == 0) return;
  RopeTiling t{};
  t.columns =
      static_cast<unsigned>(std::min<int64_t>(kThreads, pair_units ? pair_units : copy_units));
  t.tokens_inner = call.q.tokens > 1 && call.q.heads > 1 && call.q.x_head > call.q.x_token;
  t.wide_tables = has_wide_rows(call.cos) && has_wide_rows(call.sin);
  set_slots(t, tokens, heads, tokens * heads * (pair_units + copy_units),
            aligned ? sizeof(Units) / 16 : 2);
  // n * ceil(2^16 / d) / 2^16 is n / d for n and d up to 256: no division in the kernel.
  t.by_columns = static_cast<unsigned>(ceil_div(65536, t.columns));
  t.by_inner = static_cast<unsigned>(ceil_div(65536, t.tokens_inner ? t.tokens : t.slots));
  t.token_tiles = ceil_div(tokens, t.tokens);
  t.head_tiles = ceil_div(heads, t.heads);
  t.pair_tiles = ceil_div(pair_units, t.columns);
  t.parts = t.head_tiles * (t.pair_tiles + ceil_div(copy_units, t.columns));
  t.all_tiles = t.token_tiles * t.parts;
  POSENC_LAUNCH((rope_kernel<T, of_x, of_out, aligned>), grid_for(t.all_tiles), kThreads, stream,
                call, t);
}

template <class T, bool of_x, bool of_out>
void launch_pairs(const RopeCall& call, cudaStream_t stream) {
  const bool aligned = is_aligned<T>(call, call.q) && is_aligned<T>(call, call.k);
  aligned ? launch_tiles<T, of_x, of_out, true>(call, stream)
          : launch_tiles<T, of_x, of_out, false>(call, stream);
}

template <class T>
void launch_typed(const RopeCall& call, RopePairing pairing, cudaStream_t stream) {
  if (pairing.x) {
    pairing.out ? launch_pairs<T, true, true>(call, stream)
                : launch_pairs<T, true, false>(call, stream);
  } else {
    pairing.out ? launch_pairs<T, false, true>(call, stream)
                : launch_pairs<T, false, false>(call, stream);
  }
}

}  // namespace

void launch_rope(const RopeCall& call, RopeDtype type, RopePairing pairing, cudaStream_t stream) {
  switch (type) {
    case RopeDtype::f32:
      return launch_typed<float>(call, pairing, stream);
    case RopeDtype::f64:
      return launch_typed<double>(call, pairing, stream);
    case RopeDtype::bf16:
      return launch_typed<bf16>(call, pairing, stream);
    case RopeDtype::f16:
      return launch_typed<f16>(call, pairing, stream);
  }
}

}  // namespace posenc
