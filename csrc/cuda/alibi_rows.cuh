// Rows of scores as the alibi kernels walk them.
//
// A block takes a group: some rows of one head, or one row that is too long for a block to hold, in
// pieces. Rows are cut into units of W keys: 16 bytes, or one key where the operands are not
// aligned. A thread holds `units` of them, whose loads do not wait for each other. Neighbouring
// threads hold neighbouring units.
//
// Sums over keys are those of the CPU: key j goes to partial sum j % 16, in the order of the keys.
// The terms go through shared memory to 16 threads, one for each partial sum.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/alibi_kernels.h"
#include "cuda/device.cuh"

namespace posenc {
namespace {

#include "alibi_math.h"

constexpr int kSums = 16;                     // partial sums of a sum over keys
constexpr int kHalfWarps = kThreads / kSums;  // each adds up one row at a time
constexpr unsigned kWholeWarp = 0xffffffffu;

POSENC_DEVICE int smaller(int a, int b) { return a < b ? a : b; }

POSENC_DEVICE double alibi_slope(const AlibiCall& call, int64_t b, int64_t h) {
  const int64_t i = b * call.slopes.batch + h * call.slopes.head;
  const void* data = call.slopes.data;
  if (call.slopes.type == RopeDtype::f32) return load(static_cast<const float*>(data) + i);
  if (call.slopes.type == RopeDtype::f64) return load(static_cast<const double*>(data) + i);
  if (call.slopes.type == RopeDtype::bf16) return widen(load(static_cast<const bf16*>(data) + i));
  return widen(load(static_cast<const f16*>(data) + i));
}

// From key i to key j of a batch entry, by their positions, which were given.
POSENC_DEVICE int64_t alibi_distance(const AlibiCall& call, int64_t b, int j, int i) {
  const AlibiCudaKeys& p = call.key_positions;
  const auto position = [&](int key) {
    const int64_t at = b * p.batch + key * p.key;
    return static_cast<uint64_t>(p.wide ? load(static_cast<const int64_t*>(p.data) + at)
                                        : load(static_cast<const int32_t*>(p.data) + at));
  };
  return static_cast<int64_t>(position(j) - position(i));
}

// The walk of one kernel over its groups.
struct AlibiGrid {
  int row_units;   // of a row: whole sixteens of keys
  int group_rows;  // of a group
  int64_t head_groups, groups;
};

template <class T, bool aligned, int most_units = 4>
struct AlibiBlock {
  static constexpr int W = aligned ? Pack<T>::size : 1;
  static constexpr int units = W == 8 ? most_units / 2 : most_units, block_units = kThreads * units;
  static constexpr int keys = block_units * W;    // of a piece
  static constexpr int most_rows = keys / kSums;  // of a group
  using A = math_t<T>;

  struct Unit {
    T at[W];
  };

  const AlibiCall& call;
  const AlibiGrid& grid;
  int row[units];  // of the group, that this thread's units are of
  // The group at hand; q is its first row, at the place of key `position`.
  int64_t b = 0, h = 0;
  int q = 0, rows = 0, position = 0, pieces = 0;

  POSENC_DEVICE_METHOD AlibiBlock(const AlibiCall& call, const AlibiGrid& grid)
      : call(call), grid(grid) {
#pragma unroll
    for (int u = 0; u < units; ++u) row[u] = index(u) / grid.row_units;
  }

  // Rows [first, first + group_rows) of a head, below `end`.
  POSENC_DEVICE_METHOD void take(int64_t head, int first, int end) {
    b = head / call.heads;
    h = head - b * call.heads;
    q = first;
    rows = smaller(grid.group_rows, end - q);
    position = q + call.k_len - call.q_len;
    pieces = (rows * grid.row_units + block_units - 1) / block_units;
  }
  POSENC_DEVICE_METHOD void take(int64_t group) {
    const int64_t head = group / grid.head_groups;
    take(head, static_cast<int>(group - head * grid.head_groups) * grid.group_rows, call.q_len);
  }

  // Keys, from the first, that a row of the group sees.
  POSENC_DEVICE_METHOD int visible(int row) const {
    const int at = position + row;
    if (!call.causal || at >= call.k_len) return call.k_len;
    return at < 0 ? 0 : at + 1;
  }
  // The first key of unit u in a piece, and one past the last that its row sees: 0 for no row.
  POSENC_DEVICE_METHOD int first(int u, int piece) const {
    return (index(u) - row[u] * grid.row_units) * W + piece * keys;
  }
  POSENC_DEVICE_METHOD int end(int u) const { return row[u] < rows ? visible(row[u]) : 0; }

  // Unit u of an operand. A unit that no row sees is not read, and zero; one that is seen in part
  // is read as a whole.
  POSENC_DEVICE_METHOD Unit read(const AlibiCudaOperand& x, int u, int piece) const {
    Unit unit{};
    const int at = first(u, piece);
    if (at >= end(u)) return unit;
    const T* from = static_cast<const T*>(x.data) + offset(x, u);
    if constexpr (W == 1) {
      unit.at[0] = load(from + at * x.key);
    } else {
      const Pack<T> pack = load_pack(from + at);
      memcpy(&unit, &pack, sizeof unit);
    }
    return unit;
  }
  POSENC_DEVICE_METHOD void write(const AlibiCudaOperand& out, int u, int piece,
                                  const Unit& unit) const {
    const int at = first(u, piece);
    if (row[u] >= rows || at >= call.k_len) return;
    T* to = static_cast<T*>(const_cast<void*>(out.data)) + offset(out, u);
    if constexpr (W == 1) {
      store(to + at * out.key, unit.at[0]);
    } else {
      Pack<T> pack;
      memcpy(&pack, &unit, sizeof unit);
      store_pack(to + at, pack);
    }
  }

  POSENC_DEVICE_METHOD double slope() const { return alibi_slope(call, b, h); }

  // j - i for a row of the group.
  template <class Real>
  POSENC_DEVICE_METHOD Real key_offset(int j, int row) const {
    if (call.key_positions.data == nullptr) return static_cast<Real>(j - (position + row));
    return static_cast<Real>(alibi_distance(call, b, j, position + row));
  }

 private:
  POSENC_DEVICE_METHOD static int index(int u) {
    return u * kThreads + static_cast<int>(threadIdx.x);
  }
  POSENC_DEVICE_METHOD int64_t offset(const AlibiCudaOperand& x, int u) const {
    return b * x.batch + h * x.head + static_cast<int64_t>(q + row[u]) * x.row;
  }
};

// W values of one unit on their way through shared memory.
template <class A, int W>
struct alignas(W * sizeof(A) % 16 == 0 ? 16 : alignof(A)) Lanes {
  A at[W];
};

// sum + values[i] + values[i + 16] + ..., in this order, up to values[end].
template <class A>
POSENC_DEVICE A add_in_order(const A* values, int i, int end, A sum) {
#pragma unroll 8
  for (; i < end; i += kSums) sum += values[i];
  return sum;
}

// The 16 partial sums of a row, each held by a thread, in the CPU's tree: all of them get the sum.
template <class A>
POSENC_DEVICE A add_partial_sums(A sum) {
#pragma unroll
  for (int half = kSums / 2; half > 0; half /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, half);
  }
  return sum;
}

// A sum over each row of a group, of values that every thread gives for its own units.
template <class Block, class A>
struct RowSums {
  const A* values;  // shared, [Block::keys]
  A* sums;          // shared, [Block::most_rows]
  A partial = 0;    // of a row in pieces

  POSENC_DEVICE_METHOD void add(const Block& block, int piece) {
    __syncthreads();
    const int keys = smaller(block.grid.row_units, Block::block_units) * Block::W;  // of a row
    const int lane = static_cast<int>(threadIdx.x) % kSums;
    if (piece == 0) partial = 0;
    for (int first = 0; first < block.rows; first += kHalfWarps) {
      const int row = first + static_cast<int>(threadIdx.x) / kSums;
      if (first > 0) partial = 0;
      if (row < block.rows) {
        const int left = block.visible(row) - piece * Block::keys;
        partial = add_in_order(values + row * keys, lane, smaller(left, keys), partial);
      }
      const A sum = add_partial_sums(partial);
      if (row < block.rows && lane == 0) sums[row] = sum;
    }
    __syncthreads();
  }
};

// ---- Launch. ----

template <class T>
bool is_aligned(const AlibiCall& call, const AlibiCudaOperand& x) {
  return x.data == nullptr || (x.key == 1 && call.k_len % Pack<T>::size == 0 &&
                               aligned16(x.data, sizeof(T), x.batch, x.head, x.row));
}

template <class Block>
AlibiGrid alibi_grid(const AlibiCall& call) {
  AlibiGrid grid{};
  grid.row_units = std::max(1, static_cast<int>(ceil_div(call.k_len, kSums))) * (kSums / Block::W);
  grid.group_rows = std::clamp(Block::block_units / grid.row_units, 1, std::max(call.q_len, 1));
  grid.head_groups = ceil_div(call.q_len, grid.group_rows);
  grid.groups = call.batch * call.heads * grid.head_groups;
  return grid;
}

// launch(T{}, aligned) for the dtype, `aligned` as a type.
template <class Launch>
void for_type_and_alignment(const AlibiCall& call, RopeDtype type, const Launch& launch) {
  const auto typed = [&](auto element) {
    using T = decltype(element);
    if (is_aligned<T>(call, call.x) && is_aligned<T>(call, call.grad) &&
        is_aligned<T>(call, call.out)) {
      launch(element, std::true_type{});
    } else {
      launch(element, std::false_type{});
    }
  };
  switch (type) {
    case RopeDtype::f32:
      return typed(float{});
    case RopeDtype::f64:
      return typed(double{});
    case RopeDtype::bf16:
      return typed(bf16{});
    case RopeDtype::f16:
      return typed(f16{});
  }
}

}  // namespace
}  // namespace posenc
