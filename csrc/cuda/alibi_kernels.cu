// alibi_bias and add_alibi on CUDA: each score is read once, unless it is masked, and each result
// written once. A thread keeps to W keys (16 bytes, or one where that is not aligned) and walks
// over rows of a head. Neighbouring threads take neighbouring keys, then neighbouring rows.
#include <type_traits>

#include "cuda/alibi_rows.cuh"

namespace posenc {
namespace {

struct AlibiTiling {
  unsigned columns, slots;  // units of a row, and rows, that a block takes at a time
  unsigned by_columns;      // what to multiply by, to divide by `columns`
  int rows;                 // of a tile
  int64_t column_tiles, row_tiles, tiles;
};

constexpr int kRows = 32;  // of a thread

// What stands at W keys from `key` in the row at key `position`, of which it sees `seen`: x too, or
// zeros.
template <class T, bool add, int W>
POSENC_DEVICE void alibi_cells(const AlibiCall& call, int64_t b, math_t<T> slope, int key,
                               int position, int seen, math_t<T> (&x)[W]) {
  using A = math_t<T>;
  const int at = key - position;
  // All are seen, and float counts exactly.
  if (seen >= W && call.key_positions.data == nullptr && at < 1 << 23 && at > -(1 << 23)) {
    const A first = static_cast<A>(at);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const A value = slope * -std::fabs(first + static_cast<A>(w));  // as alibi_cell
      x[w] = add ? x[w] + value : value;
    }
    return;
  }
#pragma unroll
  for (int w = 0; w < W; ++w) {
    A value = -static_cast<A>(INFINITY);
    if (w < seen) {
      const A offset = call.key_positions.data == nullptr
                           ? static_cast<A>(at + w)
                           : static_cast<A>(alibi_distance(call, b, key + w, position));
      value = alibi_cell<AlibiLane>(slope, offset);
      if constexpr (add) value = x[w] + value;
    }
    x[w] = value;
  }
}

template <class T, bool add, bool aligned>
__global__ void __launch_bounds__(kThreads, kWalkingBlocks)
    alibi_cells_kernel(const __grid_constant__ AlibiCall call,
                       const __grid_constant__ AlibiTiling tiling) {
  using A = math_t<T>;
  constexpr int W = aligned ? Pack<T>::size : 1;
  constexpr int at_once = !add ? 1 : W == 8 ? 2 : 4;  // rows whose loads do not wait for each other
  const unsigned slot = threadIdx.x * tiling.by_columns >> 16;
  const unsigned column = threadIdx.x - slot * tiling.columns;
  for (int64_t tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
    const Division rows = divide(tile, tiling.column_tiles);
    const Division of_head = divide(rows.quotient, tiling.row_tiles);
    const Division head = divide(of_head.quotient, call.heads);
    const int64_t unit = rows.remainder * tiling.columns + column, b = head.quotient;
    if (slot >= tiling.slots || unit * W >= call.k_len) continue;
    const int key = static_cast<int>(unit) * W;
    const A slope = static_cast<A>(alibi_slope(call, b, head.remainder));
    const int64_t first = of_head.remainder * tiling.rows;
    const int end = smaller(static_cast<int>(first) + tiling.rows, call.q_len);
    const auto place = [&](const AlibiCudaOperand& o) {
      return static_cast<T*>(const_cast<void*>(o.data)) + b * o.batch + head.remainder * o.head +
             key * o.key;
    };
    const T* x = place(call.x);
    T* out = place(call.out);
    const auto seen = [&](int row) {
      const int all = call.k_len - key, past = row + call.k_len - call.q_len + 1 - key;
      return call.causal ? smaller(past, all) : all;
    };
    for (int row = static_cast<int>(first + slot); row < end; row += at_once * tiling.slots) {
      Bytes16 bytes[at_once];
      T one[at_once];
#pragma unroll
      for (int r = 0; r < at_once; ++r) {
        const int at = row + r * static_cast<int>(tiling.slots);
        bytes[r] = {}, one[r] = T{};
        if (!add || at >= end || seen(at) <= 0) continue;
        if constexpr (aligned) {
          bytes[r] = load16(x + at * call.x.row);
        } else {
          one[r] = load(x + at * call.x.row);
        }
      }
#pragma unroll
      for (int r = 0; r < at_once; ++r) {
        const int at = row + r * static_cast<int>(tiling.slots);
        if (at >= end) continue;
        const int position = at + call.k_len - call.q_len;
        A cells[W];
        if constexpr (aligned) {
          widen_pack<T>(bytes[r], cells);
          alibi_cells<T, add>(call, b, slope, key, position, seen(at), cells);
          store16(out + at * call.out.row, narrow_pack<T>(cells));
        } else {
          cells[0] = widen(one[r]);
          alibi_cells<T, add>(call, b, slope, key, position, seen(at), cells);
          narrow(cells[0], one[r]);
          store(out + at * call.out.row, one[r]);
        }
      }
    }
  }
}

template <bool add>
void launch_cells(const AlibiCall& call, RopeDtype type, cudaStream_t stream) {
  for_type_and_alignment(call, type, [&](auto element, auto wide) {
    using T = decltype(element);
    constexpr bool aligned = decltype(wide)::value;
    const int64_t units = ceil_div(call.k_len, aligned ? Pack<T>::size : 1);
    if (call.batch * call.heads * call.q_len * units == 0) return;
    AlibiTiling t{};
    t.columns = static_cast<unsigned>(std::min<int64_t>(kThreads, units));
    t.slots = static_cast<unsigned>(std::min<int64_t>(kThreads / t.columns, call.q_len));
    t.by_columns = static_cast<unsigned>(ceil_div(65536, t.columns));
    const int64_t all = call.batch * call.heads * call.q_len * units;
    const int64_t walk = std::clamp<int64_t>(all / (kThreads * POSENC_FULL_GPU), 1, kRows);
    t.rows = static_cast<int>(t.slots * walk);
    t.column_tiles = ceil_div(units, t.columns);
    t.row_tiles = ceil_div(call.q_len, t.rows);
    t.tiles = call.batch * call.heads * t.row_tiles * t.column_tiles;
    POSENC_LAUNCH((alibi_cells_kernel<T, add, aligned>), grid_for(t.tiles), kThreads, stream, call,
                  t);
  });
}

}  // namespace

void launch_alibi_bias(const AlibiCall& call, RopeDtype type, cudaStream_t stream) {
  launch_cells<false>(call, type, stream);
}

void launch_add_alibi(const AlibiCall& call, RopeDtype type, cudaStream_t stream) {
  launch_cells<true>(call, type, stream);
}

}  // namespace posenc
