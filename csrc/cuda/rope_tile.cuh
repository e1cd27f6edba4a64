// The pieces of the rotation kernel: a tile of tokens, heads and channels, shared out to the
// threads of a block.
#pragma once

#include "cuda/rope_rows.cuh"
#include "rope_math.h"

namespace posenc {

constexpr int kTableBytes = 8192;  // of cos and sin in shared memory
// Units of work that a thread loads before it stores any: two loads each.
template <bool aligned>
constexpr int kInFlight = aligned ? 2 : 4;
constexpr int kTokens = 32, kHeads = 4096, kChannels = 1024;  // of a tile at most

template <class T>
constexpr int table_capacity = kTableBytes / 2 / static_cast<int>(sizeof(math_t<T>));

// How the work is cut. A unit of work is `width` pairs (or channels beyond R) of one head.
struct RopeTiling {
  int tokens, heads, pairs;                                // of a tile
  int64_t token_tiles, head_tiles, pair_tiles, all_tiles;  // all_tiles counts those beyond R too
  bool tokens_inner;  // neighbouring threads take tokens of one head, not heads of one token
};

// Element offsets of the tile's tokens; -1 for a token that q or k lacks.
struct RopeTokens {
  int64_t cos[kTokens], sin[kTokens], q_x[kTokens], q_out[kTokens], k_x[kTokens], k_out[kTokens];
};

// What one block works at: `columns` units in each of `heads` heads of `tokens` tokens.
struct RopeTile {
  int64_t first_token, first_head, first_column;
  unsigned tokens, heads, columns;

  POSENC_DEVICE_METHOD unsigned units() const { return tokens * heads * columns; }
};

template <class T>
POSENC_DEVICE T widen_entry(const RopeCudaTable& table, int64_t at) {
  switch (table.type) {
    case RopeDtype::f32:
      return static_cast<T>(load(static_cast<const float*>(table.data) + at));
    case RopeDtype::f64:
      return static_cast<T>(load(static_cast<const double*>(table.data) + at));
    case RopeDtype::bf16:
      return static_cast<T>(widen(load(static_cast<const bf16*>(table.data) + at)));
    default:
      return static_cast<T>(widen(load(static_cast<const f16*>(table.data) + at)));
  }
}

POSENC_DEVICE void find_tokens(const RopeCall& call, const RopeTile& tile, bool rotates,
                               RopeTokens& found) {
  const unsigned i = threadIdx.x;
  if (i >= tile.tokens) return;
  const int64_t batch = (tile.first_token + i) / call.source.length;
  const int64_t token = (tile.first_token + i) % call.source.length;
  if (rotates) {
    const int64_t row = table_row(call.source, batch, token);
    found.cos[i] = batch * call.cos.batch + row * call.cos.row;
    found.sin[i] = batch * call.sin.batch + row * call.sin.row;
  }
  const bool in_q = token < call.q.tokens, in_k = token < call.k.tokens;
  found.q_x[i] = in_q ? batch * call.q.x_batch + token * call.q.x_token : -1;
  found.q_out[i] = batch * call.q.out_batch + token * call.q.out_token;
  found.k_x[i] = in_k ? batch * call.k.x_batch + token * call.k.x_token : -1;
  found.k_out[i] = batch * call.k.out_batch + token * call.k.out_token;
}

// cos and sin of the tile, [tokens, pairs] each.
template <class Math>
POSENC_DEVICE void read_tables(const RopeCall& call, const RopeTokens& found, unsigned tokens,
                               int64_t first_pair, unsigned pairs, Math* cos, Math* sin) {
  for (unsigned i = threadIdx.x; i < tokens * pairs; i += blockDim.x) {
    const unsigned token = i / pairs;
    const int64_t pair = first_pair + (i - token * pairs);
    cos[i] = widen_entry<Math>(call.cos, found.cos[token] + pair * call.cos.column);
    const Math value = widen_entry<Math>(call.sin, found.sin[token] + pair * call.sin.column);
    sin[i] = call.inverse ? -value : value;
  }
}

// One unit of work: where the head's channels start, null for none.
template <class T>
struct RopeUnit {
  const T* x;
  T* out;
  unsigned token, column;
  bool is_k;
};

template <class T>
POSENC_DEVICE RopeUnit<T> find_unit(const RopeCall& call, const RopeTokens& found,
                                    const RopeTile& tile, bool tokens_inner, unsigned id) {
  if (id >= tile.units()) return {nullptr, nullptr, 0, 0, false};
  const unsigned rest = id / tile.columns, column = id - rest * tile.columns;
  const unsigned inner = tokens_inner ? tile.tokens : tile.heads;
  const unsigned high = rest / inner, low = rest - high * inner;
  const unsigned token = tokens_inner ? low : high;
  int64_t head = tile.first_head + (tokens_inner ? high : low);
  const bool is_k = head >= call.q.heads;
  if (is_k) head -= call.q.heads;
  const int64_t from = is_k ? found.k_x[token] : found.q_x[token];
  if (from < 0) return {nullptr, nullptr, 0, 0, false};
  const int64_t to = is_k ? found.k_out[token] : found.q_out[token];
  return {reinterpret_cast<const T*>(is_k ? call.k.x : call.q.x) + from +
              head * (is_k ? call.k.x_head : call.q.x_head),
          reinterpret_cast<T*>(is_k ? call.k.out : call.q.out) + to +
              head * (is_k ? call.k.out_head : call.q.out_head),
          token, column, is_k};
}

// Some pairs (u, v) of one head, in registers. of_x and of_out: are those of x and of out
// interleaved?
template <class T, bool of_x, bool of_out, bool aligned>
struct RopePairs {
  static constexpr int width = aligned ? Pack<T>::size : 1;
  T u[width], v[width];

  // pair counts from the start of the head, `half` is R/2, `stride` that of the channels.
  POSENC_DEVICE_METHOD void read(const T* x, int64_t pair, int64_t half, int64_t stride) {
    if constexpr (!aligned) {
      u[0] = load(x + (of_x ? 2 * pair : pair) * stride);
      v[0] = load(x + (of_x ? 2 * pair + 1 : half + pair) * stride);
    } else {
      const Pack<T> a = load_pack(x + (of_x ? 2 * pair : pair));
      const Pack<T> b = load_pack(x + (of_x ? 2 * pair + width : half + pair));
#pragma unroll
      for (int i = 0; i < width; ++i) {
        u[i] = of_x ? (i < width / 2 ? a.at[2 * i % width] : b.at[2 * i % width]) : a.at[i];
        v[i] = of_x ? (i < width / 2 ? a.at[(2 * i + 1) % width] : b.at[(2 * i + 1) % width])
                    : b.at[i];
      }
    }
  }

  POSENC_DEVICE_METHOD void write(T* out, int64_t pair, int64_t half, int64_t stride) const {
    if constexpr (!aligned) {
      store(out + (of_out ? 2 * pair : pair) * stride, u[0]);
      store(out + (of_out ? 2 * pair + 1 : half + pair) * stride, v[0]);
    } else {
      Pack<T> a, b;
#pragma unroll
      for (int i = 0; i < width; ++i) {
        a.at[i] = of_out ? (i % 2 ? v[i / 2] : u[i / 2]) : u[i];
        b.at[i] = of_out ? (i % 2 ? v[(width + i) / 2] : u[(width + i) / 2]) : v[i];
      }
      store_pack(out + (of_out ? 2 * pair : pair), a);
      store_pack(out + (of_out ? 2 * pair + width : half + pair), b);
    }
  }

  POSENC_DEVICE_METHOD void rotate(const math_t<T>* cos, const math_t<T>* sin) {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      math_t<T> u_out, v_out;
      rotate_pair(widen(u[i]), widen(v[i]), cos[i], sin[i], u_out, v_out);
      narrow(u_out, u[i]);
      narrow(v_out, v[i]);
    }
  }
};

template <class T, bool of_x, bool of_out, bool aligned>
POSENC_DEVICE void rotate_tile(const RopeCall& call, const RopeTokens& found, const RopeTile& tile,
                               bool tokens_inner, const math_t<T>* cos, const math_t<T>* sin) {
  using Pairs = RopePairs<T, of_x, of_out, aligned>;
  constexpr int in_flight = kInFlight<aligned>;
  for (unsigned first = threadIdx.x; first < tile.units(); first += kThreads * in_flight) {
    RopeUnit<T> unit[in_flight];
    Pairs pairs[in_flight];
#pragma unroll
    for (int j = 0; j < in_flight; ++j) {
      unit[j] = find_unit<T>(call, found, tile, tokens_inner, first + j * kThreads);
      if (unit[j].x == nullptr) continue;
      pairs[j].read(unit[j].x, tile.first_column + unit[j].column * Pairs::width, call.pairs,
                    unit[j].is_k ? call.k.x_dim : call.q.x_dim);
    }
#pragma unroll
    for (int j = 0; j < in_flight; ++j) {
      if (unit[j].x == nullptr) continue;
      const unsigned column = unit[j].column * Pairs::width;
      const unsigned entry = unit[j].token * tile.columns * Pairs::width + column;
      pairs[j].rotate(cos + entry, sin + entry);
      pairs[j].write(unit[j].out, tile.first_column + column, call.pairs,
                     unit[j].is_k ? call.k.out_dim : call.q.out_dim);
    }
  }
}

// Channels beyond R.
template <class T, bool aligned>
POSENC_DEVICE void copy_tile(const RopeCall& call, const RopeTokens& found, const RopeTile& tile,
                             bool tokens_inner) {
  for (unsigned id = threadIdx.x; id < tile.units(); id += kThreads) {
    const RopeUnit<T> unit = find_unit<T>(call, found, tile, tokens_inner, id);
    if (unit.x == nullptr) continue;
    const int64_t channel = tile.first_column + unit.column * (aligned ? Pack<T>::size : 1);
    if constexpr (aligned) {
      store_pack(unit.out + channel, load_pack(unit.x + channel));
    } else {
      store(unit.out + channel * (unit.is_k ? call.k.out_dim : call.q.out_dim),
            load(unit.x + channel * (unit.is_k ? call.k.x_dim : call.q.x_dim)));
    }
  }
}

}  // namespace posenc
