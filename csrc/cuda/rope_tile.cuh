// The pieces of the rotation kernel: what one thread does to a token.
#pragma once

#include <type_traits>

#include "cuda/rope_rows.cuh"
#include "rope_math.h"

namespace posenc {

// How the work is cut. A thread keeps to one token and one unit of its heads: some pairs, or a pack
// of channels beyond R. It holds their cos and sin and walks over heads.
struct RopeTiling {
  unsigned columns;                                        // units of a head that a block takes
  unsigned slots, tokens;                                  // heads and tokens at a time
  int heads;                                               // of a tile
  unsigned by_columns, by_inner;                           // what to multiply by, to divide
  int64_t token_tiles, head_tiles, pair_tiles, all_tiles;  // all_tiles counts those beyond R too
  int64_t parts;                                           // tiles of the same tokens
  bool tokens_inner;  // neighbouring threads take tokens of one head, not heads of one token
  bool wide_tables;   // of which 16 bytes may be read at a time
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

// Entries of a table row, from `at`.
template <class E, class A, int W>
POSENC_DEVICE bool read_wide(const RopeCudaTable& table, int64_t at, A (&to)[W]) {
  if constexpr (W % Pack<E>::size != 0) {
    return false;
  } else {
#pragma unroll
    for (int i = 0; i < W; i += Pack<E>::size) {
      math_t<E> some[Pack<E>::size];
      widen_pack<E>(load16(static_cast<const E*>(table.data) + at + i), some);
#pragma unroll
      for (int j = 0; j < Pack<E>::size; ++j) to[i + j] = static_cast<A>(some[j]);
    }
    return true;
  }
}
template <class A, int W>
POSENC_DEVICE void read_entries(const RopeCudaTable& table, int64_t at, bool wide, A (&to)[W]) {
  if (wide && table.type == RopeDtype::f32 && read_wide<float>(table, at, to)) return;
  if (wide && table.type == RopeDtype::bf16 && read_wide<bf16>(table, at, to)) return;
  if (wide && table.type == RopeDtype::f16 && read_wide<f16>(table, at, to)) return;
#pragma unroll
  for (int w = 0; w < W; ++w) to[w] = widen_entry<A>(table, at + w * table.column);
}

// One token of q or k: where its head 0 would start if all heads stood in one row, of which
// `before` are another operand's.
template <class T>
struct RopeToken {
  uintptr_t x, out;
  int64_t x_head, out_head;  // bytes
  bool present;

  POSENC_DEVICE_METHOD RopeToken(const RopeOperand& o, int64_t batch, int64_t token,
                                 int64_t before) {
    constexpr int64_t item = sizeof(T);
    x_head = o.x_head * item, out_head = o.out_head * item;
    x = at(o.x, (batch * o.x_batch + token * o.x_token) * item - before * x_head);
    out = at(o.out, (batch * o.out_batch + token * o.out_token) * item - before * out_head);
    present = token < o.tokens;
  }
  POSENC_DEVICE_METHOD static uintptr_t at(const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes);
  }
};

// One head of it. Heads of k follow those of q.
template <class T>
struct RopeHead {
  const T* x;
  T* out;
  bool present, is_k;

  POSENC_DEVICE_METHOD void find(const RopeToken<T>& q, const RopeToken<T>& k, int64_t q_heads,
                                 int64_t head, int64_t end) {
    is_k = head >= q_heads;
    present = head < end && (is_k ? k.present : q.present);
    x = reinterpret_cast<const T*>((is_k ? k.x : q.x) + head * (is_k ? k.x_head : q.x_head));
    out = reinterpret_cast<T*>((is_k ? k.out : q.out) + head * (is_k ? k.out_head : q.out_head));
  }
};

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

// Such pairs as 16 bytes at a time, as they lie in memory. Pairs that are neighbours before and
// after lie in one pack, so that a warp reads whole sectors; others in two.
template <class T, bool of_x, bool of_out>
struct RopePacks {
  static constexpr int size = Pack<T>::size, packs = of_x && of_out ? 1 : 2;
  static constexpr int width = size * packs / 2;
  Bytes16 bytes[packs];

  // Where the second pack starts, and where in both stand u and v of pair i.
  POSENC_DEVICE_METHOD static int64_t first(bool neighbours, int64_t pair) {
    return neighbours ? 2 * pair : pair;
  }
  POSENC_DEVICE_METHOD static int64_t second(bool neighbours, int64_t pair, int64_t half) {
    return neighbours ? 2 * pair + size : half + pair;
  }
  static constexpr POSENC_DEVICE_METHOD int u(bool neighbours, int i) {
    return neighbours ? 2 * i : i;
  }
  static constexpr POSENC_DEVICE_METHOD int v(bool neighbours, int i) {
    return neighbours ? 2 * i + 1 : width + i;
  }

  POSENC_DEVICE_METHOD void read(const T* x, int64_t pair, int64_t half, int64_t) {
    bytes[0] = load16(x + first(of_x, pair));
    if constexpr (packs == 2) bytes[1] = load16(x + second(of_x, pair, half));
  }
  POSENC_DEVICE_METHOD void write(T* out, int64_t pair, int64_t half, int64_t) const {
    store16(out + first(of_out, pair), bytes[0]);
    if constexpr (packs == 2) store16(out + second(of_out, pair, half), bytes[1]);
  }
  POSENC_DEVICE_METHOD void rotate(const math_t<T>* cos, const math_t<T>* sin) {
    math_t<T> x[size * packs], out[size * packs];
#pragma unroll
    for (int i = 0; i < packs; ++i) widen_pack<T>(bytes[i], x + i * size);
#pragma unroll
    for (int i = 0; i < width; ++i)
      rotate_pair(x[u(of_x, i)], x[v(of_x, i)], cos[i], sin[i], out[u(of_out, i)],
                  out[v(of_out, i)]);
#pragma unroll
    for (int i = 0; i < packs; ++i) bytes[i] = narrow_pack<T>(out + i * size);
  }
};

template <class T, bool of_x, bool of_out, bool aligned>
using RopeUnits =
    std::conditional_t<aligned, RopePacks<T, of_x, of_out>, RopePairs<T, of_x, of_out, false>>;

// Rotates unit `column` of the heads first, first + step, ... below `end`. x is read before the
// table row is looked for, and a wrong row fails at the end: nothing is kept over a call.
template <class Units, class T>
POSENC_DEVICE void rotate_heads(const RopeCall& call, const RopeTiling& tiling, int64_t batch,
                                int64_t token, int64_t column, int64_t first, int64_t end) {
  constexpr int in_flight = sizeof(Units) == 32 ? 2 : 4;  // heads
  const RopeToken<T> q(call.q, batch, token, 0), k(call.k, batch, token, call.q.heads);
  const int64_t pair = column * Units::width;
  math_t<T> cos[Units::width], sin[Units::width];
  Units units[in_flight];
  RopeHead<T> at[in_flight];
  const auto read = [&](int64_t head) {
#pragma unroll
    for (int j = 0; j < in_flight; ++j) {
      at[j].find(q, k, call.q.heads, head + j * tiling.slots, end);
      if (at[j].present)
        units[j].read(at[j].x, pair, call.pairs, at[j].is_k ? call.k.x_dim : call.q.x_dim);
    }
  };
  read(first);
  bool inside;
  const int64_t row = clamped_row(call.source, batch, token, inside);
  read_entries(call.cos, batch * call.cos.batch + row * call.cos.row + pair * call.cos.column,
               tiling.wide_tables, cos);
  read_entries(call.sin, batch * call.sin.batch + row * call.sin.row + pair * call.sin.column,
               tiling.wide_tables, sin);
#pragma unroll
  for (int i = 0; i < Units::width; ++i) sin[i] = call.inverse ? -sin[i] : sin[i];
  for (int64_t head = first; head < end; head += in_flight * tiling.slots) {
    if (head != first) read(head);
#pragma unroll
    for (int j = 0; j < in_flight; ++j) {
      if (!at[j].present) continue;
      units[j].rotate(cos, sin);
      units[j].write(at[j].out, pair, call.pairs, at[j].is_k ? call.k.out_dim : call.q.out_dim);
    }
  }
  check_row(inside);
}

// Channels beyond R.
template <class T, bool aligned>
POSENC_DEVICE void copy_heads(const RopeCall& call, const RopeTiling& tiling, int64_t batch,
                              int64_t token, int64_t column, int64_t first, int64_t end) {
  const RopeToken<T> q(call.q, batch, token, 0), k(call.k, batch, token, call.q.heads);
  const int64_t channel = 2 * call.pairs + column * (aligned ? Pack<T>::size : 1);
  for (int64_t head = first; head < end; head += tiling.slots) {
    RopeHead<T> at;
    at.find(q, k, call.q.heads, head, end);
    if (!at.present) continue;
    if constexpr (aligned) {
      store16(at.out + channel, load16(at.x + channel));
    } else {
      store(at.out + channel * (at.is_k ? call.k.out_dim : call.q.out_dim),
            load(at.x + channel * (at.is_k ? call.k.x_dim : call.q.x_dim)));
    }
  }
}

}  // namespace posenc
