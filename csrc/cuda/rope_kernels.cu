// Rotation on CUDA. A block takes a tile: some tokens, all their heads in q and k, and a range of
// pairs. It looks up the table row of each token once and holds it in shared memory, converted;
// then its threads share out the pairs of all heads. In the aligned kernels a thread moves 16 bytes
// at a time and has four such loads in flight. Channels beyond R are tiles of their own.
//
// Bytes moved: each channel of q and k is read once and written once, and each table row is read
// once per token (once per 4096 heads).
#include <algorithm>

#include "cuda/rope_tile.cuh"

namespace posenc {
namespace {

POSENC_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T, bool of_x, bool of_out, bool aligned>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(const __grid_constant__ RopeCall call, const __grid_constant__ RopeTiling tiling) {
  constexpr int width = aligned ? Pack<T>::size : 1;
  __shared__ Bytes16 tables[kTableBytes / 16];
  __shared__ RopeTokens found;
  math_t<T>* cos = reinterpret_cast<math_t<T>*>(tables);
  math_t<T>* sin = cos + table_capacity<T>;
  check_cu_seqlens(call.source);
  for (int64_t i = blockIdx.x; i < tiling.all_tiles; i += gridDim.x) {
    const int64_t token_tile = i % tiling.token_tiles, rest = i / tiling.token_tiles;
    const int64_t head_tile = rest % tiling.head_tiles, column_tile = rest / tiling.head_tiles;
    const int64_t tokens = call.batch * call.source.length, heads = call.q.heads + call.k.heads;
    const bool rotates = column_tile < tiling.pair_tiles;
    RopeTile tile;
    tile.first_token = token_tile * tiling.tokens;
    tile.first_head = head_tile * tiling.heads;
    tile.tokens = static_cast<unsigned>(smaller(tiling.tokens, tokens - tile.first_token));
    tile.heads = static_cast<unsigned>(smaller(tiling.heads, heads - tile.first_head));
    __syncthreads();  // the tile before is done with shared memory
    find_tokens(call, tile, rotates, found);
    __syncthreads();
    if (rotates) {
      tile.first_column = column_tile * tiling.pairs;
      const auto pairs =
          static_cast<unsigned>(smaller(tiling.pairs, call.pairs - tile.first_column));
      tile.columns = pairs / width;
      read_tables(call, found, tile.tokens, tile.first_column, pairs, cos, sin);
      __syncthreads();
      rotate_tile<T, of_x, of_out, aligned>(call, found, tile, tiling.tokens_inner, cos, sin);
    } else {
      tile.first_column = 2 * call.pairs + (column_tile - tiling.pair_tiles) * kChannels;
      tile.columns =
          static_cast<unsigned>(smaller(kChannels, call.dim - tile.first_column)) / width;
      copy_tile<T, aligned>(call, found, tile, tiling.tokens_inner);
    }
  }
}

// ---- Launch. ----

constexpr int64_t kManyUnits = int64_t{1} << 20;

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

template <class T, bool of_x, bool of_out, bool aligned>
void launch_tiles(const RopeCall& call, cudaStream_t stream) {
  constexpr int64_t width = aligned ? Pack<T>::size : 1;
  const int64_t heads = call.q.heads + call.k.heads, tokens = call.batch * call.source.length;
  const auto copied = [](const RopeOperand& o) { return !is_empty(o) && o.x != o.out; };
  const int64_t beyond = copied(call.q) || copied(call.k) ? call.dim - 2 * call.pairs : 0;
  RopeTiling t{};
  t.heads = static_cast<int>(std::min<int64_t>(heads, kHeads));
  t.pairs = static_cast<int>(std::min<int64_t>(call.pairs, table_capacity<T>));
  // Enough units for every thread to have its loads in flight. Where there is work for a thousand
  // blocks, more: what lies next to each other in memory is then read at about the same time.
  const int64_t units = std::max<int64_t>(1, t.heads * (std::max(t.pairs, 1) / width));
  const int64_t held = t.pairs > 0 ? table_capacity<T> / t.pairs : kTokens;
  const int64_t per_thread = tokens * units < kManyUnits ? kInFlight<aligned> : 4;
  t.tokens = static_cast<int>(std::clamp<int64_t>(kThreads * per_thread / units, 1,
                                                  std::min({held, tokens, int64_t{kTokens}})));
  t.token_tiles = ceil_div(tokens, t.tokens);
  t.head_tiles = ceil_div(heads, t.heads);
  t.pair_tiles = call.pairs > 0 ? ceil_div(call.pairs, t.pairs) : 0;
  t.all_tiles = t.token_tiles * t.head_tiles * (t.pair_tiles + ceil_div(beyond, kChannels));
  t.tokens_inner = call.q.tokens > 1 && call.q.heads > 1 && call.q.x_head > call.q.x_token;
  if (t.all_tiles == 0) return;
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
