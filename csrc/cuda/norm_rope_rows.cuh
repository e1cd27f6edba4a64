// Rows of norm_rope as its kernels walk them.
//
// A group is what shares a statistic: one head of a token, or all heads of a token. A team of
// threads takes a group: 16 of them, or the whole block for a group that 16 could not hold. It
// brings the rows into shared memory, from where thread i of the first 16 adds up the channels
// d % 16 == i, in the order of the CPU; rows that do not fit are read again instead.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/norm_rope_kernels.h"
#include "cuda/rope_tile.cuh"
#include "norm_rope_math.h"

namespace posenc {

constexpr int kNormBytes = 24576;  // of rows in shared memory
constexpr unsigned kEveryLane = 0xffffffffu;

struct NormGrid {
  int team;           // threads
  int capacity;       // elements of the math type that a team can hold
  bool tokens_inner;  // neighbouring teams take tokens of one head, not heads of one token
  bool wide_tables;   // cos and sin may be read 16 bytes at a time
  bool wide_weights;  // weights and biases may
  int64_t q_groups, groups;
};

// One group, or none: x is null.
template <class T>
struct NormGroup {
  const NormCudaOperand* operand;
  const T* x;
  T* out;
  int64_t cos, sin;  // elements from the start of the tables
  int64_t batch, token, head;
  int heads;
};

template <class T>
POSENC_DEVICE NormGroup<T> find_group(const NormCall& call, const NormGrid& grid, int64_t index) {
  NormGroup<T> group{};
  if (index >= grid.groups) return group;
  const bool is_k = index >= grid.q_groups;
  if (is_k) index -= grid.q_groups;
  group.operand = is_k ? &call.k : &call.q;
  const RopeOperand& o = group.operand->rope;
  const int64_t heads = call.all ? 1 : o.heads;  // groups of a token
  const int64_t inner = grid.tokens_inner ? o.tokens : heads;
  const int64_t high = index / inner, low = index - high * inner;
  const int64_t outer = grid.tokens_inner ? heads : o.tokens;
  group.batch = high / outer;
  const int64_t middle = high - group.batch * outer;
  group.token = grid.tokens_inner ? low : middle;
  group.head = grid.tokens_inner ? middle : low;
  group.heads = call.all ? static_cast<int>(o.heads) : 1;
  group.x = reinterpret_cast<const T*>(o.x) + group.batch * o.x_batch + group.token * o.x_token +
            group.head * o.x_head;
  group.out = reinterpret_cast<T*>(o.out) + group.batch * o.out_batch + group.token * o.out_token +
              group.head * o.out_head;
  if (call.pairs > 0) {
    const int64_t row = table_row(call.source, group.batch, group.token);
    group.cos = group.batch * call.cos.batch + row * call.cos.row;
    group.sin = group.batch * call.sin.batch + row * call.sin.row;
  }
  return group;
}

// `count` entries of a table or a weight.
template <class A, int count>
POSENC_DEVICE void read_entries(const RopeCudaTable& table, bool wide, int64_t at, A* to) {
  constexpr int each = Pack<A>::size;
  if constexpr (count % each == 0) {
    if (wide) {
#pragma unroll
      for (int i = 0; i < count; i += each) {
        const Pack<A> pack = load_pack(static_cast<const A*>(table.data) + at + i);
#pragma unroll
        for (int j = 0; j < each; ++j) to[i + j] = pack.at[j];
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) to[i] = widen_entry<A>(table, at + i * table.column);
}

template <class T>
POSENC_DEVICE math_t<T> rounded(math_t<T> value) {
  T stored;
  narrow(value, stored);
  return widen(stored);
}

// Some pairs of one row, in the math type. `first(i)` and `second(i)` are their channels.
template <class T, bool interleaved, bool aligned>
struct NormPairs {
  using A = math_t<T>;
  using Stored = RopePairs<T, interleaved, interleaved, aligned>;
  static constexpr int width = Stored::width;
  A u[width], v[width];

  POSENC_DEVICE_METHOD static int64_t first(int64_t pair, int i) {
    return interleaved ? 2 * (pair + i) : pair + i;
  }
  POSENC_DEVICE_METHOD static int64_t second(int64_t pair, int i, int64_t half) {
    return interleaved ? 2 * (pair + i) + 1 : half + pair + i;
  }

  POSENC_DEVICE_METHOD void read(const T* x, int64_t pair, int64_t half, int64_t stride) {
    Stored stored;
    stored.read(x, pair, half, stride);
#pragma unroll
    for (int i = 0; i < width; ++i) u[i] = widen(stored.u[i]), v[i] = widen(stored.v[i]);
  }
  POSENC_DEVICE_METHOD void write(T* out, int64_t pair, int64_t half, int64_t stride) const {
    Stored stored;
#pragma unroll
    for (int i = 0; i < width; ++i) narrow(u[i], stored.u[i]), narrow(v[i], stored.v[i]);
    stored.write(out, pair, half, stride);
  }
  POSENC_DEVICE_METHOD void turn(const NormCall& call, const NormGrid& grid,
                                 const NormGroup<T>& group, int64_t pair, bool back) {
    A cos[width], sin[width];
    read_entries<A, width>(call.cos, grid.wide_tables, group.cos + pair * call.cos.column, cos);
    read_entries<A, width>(call.sin, grid.wide_tables, group.sin + pair * call.sin.column, sin);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      A u_out, v_out;
      rotate_pair(u[i], v[i], cos[i], call.inverse != back ? -sin[i] : sin[i], u_out, v_out);
      u[i] = u_out, v[i] = v_out;
    }
  }
  // In shared memory, or in an array of a row.
  POSENC_DEVICE_METHOD void put(A* row, int64_t pair, int64_t half) const {
#pragma unroll
    for (int i = 0; i < width; ++i) row[first(pair, i)] = u[i], row[second(pair, i, half)] = v[i];
  }
  POSENC_DEVICE_METHOD void take(const A* row, int64_t pair, int64_t half) {
#pragma unroll
    for (int i = 0; i < width; ++i) u[i] = row[first(pair, i)], v[i] = row[second(pair, i, half)];
  }
};

// How a row is cut: `pairs` units of rotated channels, then `units` in all. visit(head, pair) and
// visit_tail(head, channel) for those of this thread.
template <int width, class Visit, class VisitTail>
POSENC_DEVICE void for_each_unit(const NormCall& call, int heads, int thread, int team,
                                 const Visit& visit, const VisitTail& visit_tail) {
  const int pairs = static_cast<int>(call.pairs) / width;
  const int units = pairs + static_cast<int>(call.dim - 2 * call.pairs) / width;
  int head = 0, unit = thread;
  while (true) {
    while (unit >= units) {
      unit -= units;
      if (++head >= heads) return;
    }
    if (unit < pairs) {
      visit(head, int64_t{unit} * width);
    } else {
      visit_tail(head, 2 * call.pairs + int64_t{unit - pairs} * width);
    }
    unit += team;
  }
}

// Channel d of a row as it stands in memory, turned if its pair is.
template <class T, bool interleaved>
POSENC_DEVICE math_t<T> channel(const NormCall& call, const NormGroup<T>& group, const T* x,
                                int64_t stride, int64_t d, bool turn, bool back) {
  if (!turn || d >= 2 * call.pairs) return widen(load(x + d * stride));
  NormPairs<T, interleaved, false> pair;
  const int64_t at = interleaved ? d / 2 : d % call.pairs;
  pair.read(x, at, call.pairs, stride);
  const NormGrid narrow_reads{};
  pair.turn(call, narrow_reads, group, at, back);
  return (interleaved ? d % 2 == 0 : d < call.pairs) ? pair.u[0] : pair.v[0];
}

// The sum over d % 16 == lane of each head, then of all 16: every lane gets it. term(h, d).
template <class A, class Term>
POSENC_DEVICE A norm_sum(int heads, int64_t dim, int lane, const Term& term) {
  A sum = 0;
  for (int h = 0; h < heads; ++h)
    for (int64_t d = lane; d < dim; d += kNormSums) sum = sum + term(h, d);
#pragma unroll
  for (int half = kNormSums / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kEveryLane, sum, half);
  return sum;
}

template <class A>
struct NormStatistics {
  A mean, scale, along, flat;
};

// mean and scale of the rows that x(h, d) gives.
template <class A, class Values>
POSENC_DEVICE void norm_statistic(const NormCall& call, int heads, int lane, const Values& x,
                                  NormStatistics<A>& found) {
  const A channels = static_cast<A>(heads * call.dim);
  A mean = 0;
  if (call.rule.centred) mean = norm_sum<A>(heads, call.dim, lane, x) / channels;
  const A sum = norm_sum<A>(heads, call.dim, lane, [&](int h, int64_t d) {
    const A value = x(h, d) - mean;
    return value * value;
  });
  found.mean = mean;
  found.scale =
      norm_scale(sum, call.rule.averaged ? channels : A(1), static_cast<A>(call.rule.eps));
}

// ---- Gradients. ----

template <class T>
POSENC_DEVICE const T* grad_row(const NormGradCall& call, const NormGroup<T>& group, int head) {
  return reinterpret_cast<const T*>(call.grad) + group.batch * call.grad_batch +
         group.token * call.grad_token + (group.head + head) * call.grad_head;
}

template <class A>
POSENC_DEVICE A weight_at(const NormCall& call, int64_t channel) {
  const RopeCudaTable& w = call.q.weight;
  if (w.data == nullptr) return A(1);
  return widen_entry<A>(w, channel * w.column) + static_cast<A>(call.weight_offset);
}

// Where the statistic of a group is kept.
template <class A>
POSENC_DEVICE A* statistic_of(const NormGradCall& call, int64_t batch, int64_t token,
                              int64_t head) {
  const RopeOperand& o = call.norm.q.rope;
  return static_cast<A*>(call.statistics) +
         2 * ((batch * o.tokens + token) * (call.norm.all ? 1 : o.heads) + head);
}

// ---- Launch. ----

inline bool wide_entries(const RopeCudaTable& t, RopeDtype math) {
  const int64_t item = math == RopeDtype::f64 ? 8 : 4;
  return t.data == nullptr ||
         (t.type == math && t.column == 1 && aligned16(t.data, item, t.batch, t.row));
}

template <class T>
bool norm_aligned(const NormCall& call, const RopeOperand& o) {
  constexpr int64_t item = sizeof(T);
  const auto used = [](int64_t size, int64_t stride) { return size > 1 ? stride : 0; };
  return o.batch * o.tokens * o.heads == 0 ||
         (o.x_dim == 1 && o.out_dim == 1 && call.pairs % Pack<T>::size == 0 &&
          call.dim % Pack<T>::size == 0 &&
          aligned16(o.x, item, used(o.batch, o.x_batch), used(o.tokens, o.x_token),
                    used(o.heads, o.x_head)) &&
          aligned16(o.out, item, used(o.batch, o.out_batch), used(o.tokens, o.out_token),
                    used(o.heads, o.out_head)));
}

// `rows`: how many copies of a group a team holds.
template <class T>
NormGrid norm_grid(const NormCall& call, int rows) {
  constexpr RopeDtype math = sizeof(math_t<T>) == 8 ? RopeDtype::f64 : RopeDtype::f32;
  constexpr int64_t elements = kNormBytes / static_cast<int64_t>(sizeof(math_t<T>));
  NormGrid grid{};
  const int64_t heads = call.all ? std::max(call.q.rope.heads, call.k.rope.heads) : 1;
  grid.team = heads * call.dim * rows <= elements * kNormSums / kThreads ? kNormSums : kThreads;
  grid.capacity = static_cast<int>(elements * grid.team / kThreads);
  grid.tokens_inner = !call.all && call.q.rope.tokens > 1 && call.q.rope.heads > 1 &&
                      call.q.rope.x_head > call.q.rope.x_token;
  grid.wide_tables = wide_entries(call.cos, math) && wide_entries(call.sin, math);
  grid.wide_weights = wide_entries(call.q.weight, math) && wide_entries(call.k.weight, math) &&
                      wide_entries(call.q.bias, math) && wide_entries(call.k.bias, math);
  const auto groups = [&](const RopeOperand& o) {
    return o.batch * o.tokens * (call.all ? (o.heads > 0) : o.heads);
  };
  grid.q_groups = groups(call.q.rope);
  grid.groups = grid.q_groups + groups(call.k.rope);
  return grid;
}

}  // namespace posenc
