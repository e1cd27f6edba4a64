// The norm and the rotation of q and k in one launch. A team of threads brings its rows into shared
// memory, adds up what the norm needs, and writes them normalised and rotated. In the aligned
// kernels a thread moves 16 bytes at a time.
//
// Bytes moved: each channel of q and k is read once and written once, a row of the tables and the
// weights once per head, mostly from the first cache. A group of more than 6144 channels (3072
// doubles) is read again for each sum.
#include "cuda/norm_channel.cuh"

namespace posenc {
namespace {

template <class T, bool interleaved, bool aligned>
struct NormTeam {
  using A = math_t<T>;
  using Pairs = NormPairs<T, interleaved, aligned>;
  static constexpr int W = Pairs::width;
  const NormCall& call;
  const NormGrid& grid;
  NormGroup<T> group;
  A* values;  // [heads, dim] in shared memory, null where they do not fit
  int thread;

  POSENC_DEVICE_METHOD const T* row(int head) const {
    return group.x + head * group.operand->rope.x_head;
  }
  // What the norm is given: as it came, or turned.
  POSENC_DEVICE_METHOD void read(Pairs& pairs, int head, int64_t pair) const {
    pairs.read(row(head), pair, call.pairs, group.operand->rope.x_dim);
    if (!call.rule.rope_first) return;
    pairs.turn(call, grid, group, pair, false);
    if (!call.rule.round_between) return;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      pairs.u[i] = rounded<T>(pairs.u[i]), pairs.v[i] = rounded<T>(pairs.v[i]);
    }
  }
  POSENC_DEVICE_METHOD void read_tail(A* x, int head, int64_t at) const {
    if constexpr (aligned) {
      const Pack<T> pack = load_pack(row(head) + at);
#pragma unroll
      for (int i = 0; i < W; ++i) x[i] = widen(pack.at[i]);
    } else {
      x[0] = widen(load(row(head) + at * group.operand->rope.x_dim));
    }
  }

  POSENC_DEVICE_METHOD void stage() const {
    for_each_unit<W>(
        call, group.heads, thread, grid.team,
        [&](int head, int64_t pair) {
          Pairs pairs;
          read(pairs, head, pair);
          pairs.put(values + head * call.dim, pair, call.pairs);
        },
        [&](int head, int64_t at) {
          A x[W];
          read_tail(x, head, at);
#pragma unroll
          for (int i = 0; i < W; ++i) values[head * call.dim + at + i] = x[i];
        });
  }

  // Channel d of a head, as the norm is given it.
  POSENC_DEVICE_METHOD A operator()(int head, int64_t d) const {
    if (values != nullptr) return values[head * call.dim + d];
    const bool turn = call.rule.rope_first;
    const A x =
        channel<T, interleaved>(call, group, row(head), group.operand->rope.x_dim, d, turn, false);
    return turn && call.rule.round_between ? rounded<T>(x) : x;
  }

  POSENC_DEVICE_METHOD void write(const NormStatistics<A>& statistic) const {
    const RopeOperand& o = group.operand->rope;
    const A offset = static_cast<A>(call.weight_offset);
    const bool wide = aligned && grid.wide_weights;
    const NormChannel<T> channel = norm_channel<T>(call.rule, *group.operand, statistic);
    for_each_unit<W>(
        call, group.heads, thread, grid.team,
        [&](int head, int64_t pair) {
          Pairs pairs;
          if (values != nullptr) {
            pairs.take(values + head * call.dim, pair, call.pairs);
          } else {
            read(pairs, head, pair);
          }
          A weight[2 * W], bias[2 * W];
          const int64_t first = call.all ? head * call.dim : 0;
          if constexpr (interleaved) {
            read_weights<A, 2 * W>(*group.operand, wide, offset, first + 2 * pair, weight, bias);
          } else {
            read_weights<A, W>(*group.operand, wide, offset, first + pair, weight, bias);
            read_weights<A, W>(*group.operand, wide, offset, first + call.pairs + pair, weight + W,
                               bias + W);
          }
#pragma unroll
          for (int i = 0; i < W; ++i) {
            const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : W + i;
            pairs.u[i] = channel.norm(pairs.u[i], weight[a], bias[a]);
            pairs.v[i] = channel.norm(pairs.v[i], weight[b], bias[b]);
          }
          if (!call.rule.rope_first) pairs.turn(call, grid, group, pair, false);
          pairs.write(group.out + head * o.out_head, pair, call.pairs, o.out_dim);
        },
        [&](int head, int64_t at) {
          A x[W], weight[W], bias[W];
          if (values != nullptr) {
#pragma unroll
            for (int i = 0; i < W; ++i) x[i] = values[head * call.dim + at + i];
          } else {
            read_tail(x, head, at);
          }
          const int64_t first = call.all ? head * call.dim : 0;
          read_weights<A, W>(*group.operand, wide, offset, first + at, weight, bias);
          T* out = group.out + head * o.out_head;
          Pack<T> pack;
#pragma unroll
          for (int i = 0; i < W; ++i) narrow(channel.norm(x[i], weight[i], bias[i]), pack.at[i]);
          if constexpr (aligned) {
            store_pack(out + at, pack);
          } else {
            store(out + at * o.out_dim, pack.at[0]);
          }
        });
  }
};

template <class T, bool interleaved, bool aligned>
__global__ void __launch_bounds__(kThreads, 2)
    norm_rope_kernel(const __grid_constant__ NormCall call, const __grid_constant__ NormGrid grid) {
  using A = math_t<T>;
  __shared__ Bytes16 memory[kNormBytes / 16];
  __shared__ NormStatistics<A> statistics[kThreads / kNormSums];
  const int index = static_cast<int>(threadIdx.x), teams = kThreads / grid.team;
  const int team = index / grid.team, thread = index - team * grid.team;
  check_cu_seqlens(call.source);
  for (int64_t first = int64_t{blockIdx.x} * teams; first < grid.groups;
       first += int64_t{gridDim.x} * teams) {
    NormTeam<T, interleaved, aligned> rows = {call, grid, find_group<T>(call, grid, first + team),
                                              nullptr, thread};
    const bool holds = rows.group.heads * call.dim <= grid.capacity;
    if (holds) rows.values = reinterpret_cast<A*>(memory) + team * grid.capacity;
    __syncthreads();  // the groups before are done with shared memory
    if (rows.group.x != nullptr && holds) rows.stage();
    __syncthreads();
    if (index < teams * kNormSums || index < warpSize) {  // whole warps
      NormStatistics<A> found;
      norm_statistic(call, rows.group.x == nullptr ? 0 : rows.group.heads, index % kNormSums, rows,
                     found);
      if (thread == 0) statistics[team] = found;
    }
    __syncthreads();
    if (rows.group.x != nullptr) rows.write(statistics[team]);
  }
}

// ---- Launch. ----

template <class T, bool interleaved, bool aligned>
void launch_aligned(const NormCall& call, cudaStream_t stream) {
  const NormGrid grid = norm_grid<T>(call, 1);
  if (grid.groups == 0) return;
  POSENC_LAUNCH((norm_rope_kernel<T, interleaved, aligned>),
                grid_for(ceil_div(grid.groups, kThreads / grid.team)), kThreads, stream, call,
                grid);
}

template <class T>
void launch_typed(const NormCall& call, bool interleaved, cudaStream_t stream) {
  const bool aligned = norm_aligned<T>(call, call.q.rope) && norm_aligned<T>(call, call.k.rope);
  if (interleaved) {
    aligned ? launch_aligned<T, true, true>(call, stream)
            : launch_aligned<T, true, false>(call, stream);
  } else {
    aligned ? launch_aligned<T, false, true>(call, stream)
            : launch_aligned<T, false, false>(call, stream);
  }
}

}  // namespace

void launch_norm_rope(const NormCall& call, RopeDtype type, bool interleaved, cudaStream_t stream) {
  switch (type) {
    case RopeDtype::f32:
      return launch_typed<float>(call, interleaved, stream);
    case RopeDtype::f64:
      return launch_typed<double>(call, interleaved, stream);
    case RopeDtype::bf16:
      return launch_typed<bf16>(call, interleaved, stream);
    case RopeDtype::f16:
      return launch_typed<f16>(call, interleaved, stream);
  }
}

}  // namespace posenc
