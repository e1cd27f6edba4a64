// Gradients of norm_rope. The first kernel is that of the rotation backwards and of the norm: a
// team holds what the norm was given and the gradient of its result, adds up two sums, and writes
// the gradient of x. The others add up the gradients of weight and bias in the order of the CPU:
// tiles of 16 tokens in double, token by token and head by head, then tile after tile. No atomics.
//
// Bytes moved: x and its gradient are read once for the gradient of x, and again for the gradients
// of weight or bias.
#include "cuda/norm_rope_rows.cuh"

namespace posenc {
namespace {

template <class T, bool interleaved, bool aligned>
struct NormGradTeam {
  using A = math_t<T>;
  using Pairs = NormPairs<T, interleaved, aligned>;
  static constexpr int W = Pairs::width;
  const NormGradCall& grad;
  const NormCall& call;
  const NormGrid& grid;
  NormGroup<T> group;
  A *x, *g;  // [heads, dim] each in shared memory, null where they do not fit
  int thread;

  POSENC_DEVICE_METHOD const T* row(int head) const { return group.x + head * call.q.rope.x_head; }

  POSENC_DEVICE_METHOD void stage() const {
    for_each_unit<W>(
        call, group.heads, thread, grid.team,
        [&](int head, int64_t pair) {
          Pairs a, b;
          a.read(row(head), pair, call.pairs, call.q.rope.x_dim);
          b.read(grad_row(grad, group, head), pair, call.pairs, grad.grad_dim);
          if (call.rule.rope_first) {
            a.turn(call, grid, group, pair, false);
          } else {
            b.turn(call, grid, group, pair, true);
          }
          a.put(x + head * call.dim, pair, call.pairs);
          b.put(g + head * call.dim, pair, call.pairs);
        },
        [&](int head, int64_t at) {
          const T* from_x = row(head);
          const T* from_g = grad_row(grad, group, head);
          A *to_x = x + head * call.dim + at, *to_g = g + head * call.dim + at;
          if constexpr (aligned) {
            const Pack<T> a = load_pack(from_x + at), b = load_pack(from_g + at);
#pragma unroll
            for (int i = 0; i < W; ++i) to_x[i] = widen(a.at[i]), to_g[i] = widen(b.at[i]);
          } else {
            *to_x = widen(load(from_x + at * call.q.rope.x_dim));
            *to_g = widen(load(from_g + at * grad.grad_dim));
          }
        });
  }
  POSENC_DEVICE_METHOD A x_at(int head, int64_t d) const {
    if (x != nullptr) return x[head * call.dim + d];
    return channel<T, interleaved>(call, group, row(head), call.q.rope.x_dim, d,
                                   call.rule.rope_first, false);
  }
  POSENC_DEVICE_METHOD A g_at(int head, int64_t d) const {
    if (g != nullptr) return g[head * call.dim + d];
    return channel<T, interleaved>(call, group, grad_row(grad, group, head), grad.grad_dim, d,
                                   !call.rule.rope_first, true);
  }
  POSENC_DEVICE_METHOD A weight(int head, int64_t d) const {
    return weight_at<A>(call, call.all ? head * call.dim + d : d);
  }

  POSENC_DEVICE_METHOD void sums(int heads, int lane, NormStatistics<A>& s) const {
    norm_statistic(call, heads, lane, [&](int h, int64_t d) { return x_at(h, d); }, s);
    const A count = call.rule.averaged ? static_cast<A>(heads * call.dim) : A(1);
    s.along =
        norm_sum<A>(heads, call.dim, lane,
                    [&](int h, int64_t d) {
                      return g_at(h, d) * weight(h, d) * norm_unit(x_at(h, d), s.mean, s.scale);
                    }) /
        count;
    s.flat = 0;
    if (!call.rule.centred) return;
    s.flat = norm_sum<A>(heads, call.dim, lane,
                         [&](int h, int64_t d) { return g_at(h, d) * weight(h, d); }) /
             count;
  }

  POSENC_DEVICE_METHOD A gradient(const NormStatistics<A>& s, int head, int64_t d) const {
    const A unit = norm_unit(x_at(head, d), s.mean, s.scale);
    return norm_grad(g_at(head, d), weight(head, d), unit, s.scale, s.along, s.flat);
  }

  POSENC_DEVICE_METHOD void write(const NormStatistics<A>& s) const {
    const RopeOperand& o = call.q.rope;
    for_each_unit<W>(
        call, group.heads, thread, grid.team,
        [&](int head, int64_t pair) {
          Pairs pairs;
#pragma unroll
          for (int i = 0; i < W; ++i) {
            pairs.u[i] = gradient(s, head, Pairs::first(pair, i));
            pairs.v[i] = gradient(s, head, Pairs::second(pair, i, call.pairs));
          }
          if (call.rule.rope_first) pairs.turn(call, grid, group, pair, true);
          pairs.write(group.out + head * o.out_head, pair, call.pairs, o.out_dim);
        },
        [&](int head, int64_t at) {
          T* out = group.out + head * o.out_head;
          Pack<T> pack;
#pragma unroll
          for (int i = 0; i < W; ++i) narrow(gradient(s, head, at + i), pack.at[i]);
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
    norm_rope_grad_kernel(const __grid_constant__ NormGradCall call,
                          const __grid_constant__ NormGrid grid) {
  using A = math_t<T>;
  __shared__ Bytes16 memory[kNormBytes / 16];
  __shared__ NormStatistics<A> statistics[kThreads / kNormSums];
  const int index = static_cast<int>(threadIdx.x), teams = kThreads / grid.team;
  const int team = index / grid.team, thread = index - team * grid.team;
  check_cu_seqlens(call.norm.source);
  for (int64_t first = int64_t{blockIdx.x} * teams; first < grid.groups;
       first += int64_t{gridDim.x} * teams) {
    const NormGroup<T> group = find_group<T>(call.norm, grid, first + team);
    NormGradTeam<T, interleaved, aligned> rows = {call,    call.norm, grid,  group,
                                                  nullptr, nullptr,   thread};
    const bool holds = 2 * group.heads * call.norm.dim <= grid.capacity;
    if (holds) {
      rows.x = reinterpret_cast<A*>(memory) + team * grid.capacity;
      rows.g = rows.x + group.heads * call.norm.dim;
    }
    __syncthreads();  // the groups before are done with shared memory
    if (group.x != nullptr && holds) rows.stage();
    __syncthreads();
    if (index < teams * kNormSums || index < warpSize) {  // whole warps
      NormStatistics<A> found;
      rows.sums(group.x == nullptr ? 0 : group.heads, index % kNormSums, found);
      if (thread == 0) {
        statistics[team] = found;
        if (group.x != nullptr) {
          A* kept = statistic_of<A>(call, group.batch, group.token, group.head);
          store(kept, found.mean);
          store(kept + 1, found.scale);
        }
      }
    }
    __syncthreads();
    if (group.x != nullptr) rows.write(statistics[team]);
  }
}

// One thread for each channel of the weight, in each tile of tokens.
template <class T, bool interleaved>
__global__ void __launch_bounds__(kThreads, 2)
    norm_parameters_kernel(const __grid_constant__ NormGradCall call, int64_t size, int64_t tiles) {
  using A = math_t<T>;
  const NormCall& norm = call.norm;
  const RopeOperand& o = norm.q.rope;
  const int64_t in_batch = (o.tokens + kNormGradTokens - 1) / kNormGradTokens;
  for (int64_t i = grid_thread(); i < tiles * size; i += grid_step()) {
    const int64_t tile = i / size, at = i - tile * size;
    const int64_t d = norm.all ? at % norm.dim : at;
    const int64_t first_head = norm.all ? at / norm.dim : 0;
    const int64_t end_head = norm.all ? first_head + 1 : o.heads;
    const int64_t batch = tile / in_batch, first = (tile - batch * in_batch) * kNormGradTokens;
    double dweight = 0, dbias = 0;
    for (int64_t token = first; token < first + kNormGradTokens && token < o.tokens; ++token) {
      NormGroup<T> group{};
      group.batch = batch, group.token = token;
      if (d < 2 * norm.pairs) {
        const int64_t row = table_row(norm.source, batch, token);
        group.cos = batch * norm.cos.batch + row * norm.cos.row;
        group.sin = batch * norm.sin.batch + row * norm.sin.row;
      }
      for (int64_t head = first_head; head < end_head; ++head) {
        group.head = head;
        const T* x = reinterpret_cast<const T*>(o.x) + batch * o.x_batch + token * o.x_token +
                     head * o.x_head;
        const A value =
            channel<T, interleaved>(norm, group, x, o.x_dim, d, norm.rule.rope_first, false);
        const A g = channel<T, interleaved>(norm, group, grad_row(call, group, 0), call.grad_dim, d,
                                            !norm.rule.rope_first, true);
        const A* kept = statistic_of<A>(call, batch, token, norm.all ? 0 : head);
        const A unit = norm_unit(value, load(kept), load(kept + 1));
        dweight += static_cast<double>(g * unit);
        dbias += static_cast<double>(g);
      }
    }
    if (call.weight_sums != nullptr) store(call.weight_sums + i, dweight);
    if (call.bias_sums != nullptr) store(call.bias_sums + i, dbias);
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads, 2)
    norm_tiles_kernel(const double* sums, S* out, int64_t size, int64_t tiles) {
  for (int64_t i = grid_thread(); i < size; i += grid_step()) {
    double total = 0;
#pragma unroll 8
    for (int64_t tile = 0; tile < tiles; ++tile) total += load(sums + tile * size + i);
    S rounded;
    narrow(total, rounded);
    store(out + i, rounded);
  }
}

// ---- Launch. ----

void launch_tiles(const double* sums, void* out, RopeDtype type, int64_t size, int64_t tiles,
                  cudaStream_t stream) {
  if (sums == nullptr || size == 0) return;
  const auto typed = [&](auto element) {
    using S = decltype(element);
    POSENC_LAUNCH(norm_tiles_kernel<S>, grid_for(ceil_div(size, kThreads)), kThreads, stream, sums,
                  static_cast<S*>(out), size, tiles);
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

template <class T, bool interleaved, bool aligned>
void launch_rows(const NormGradCall& call, cudaStream_t stream) {
  const NormGrid grid = norm_grid<T>(call.norm, 2);
  if (grid.groups == 0 || call.norm.dim == 0) return;
  POSENC_LAUNCH((norm_rope_grad_kernel<T, interleaved, aligned>),
                grid_for(ceil_div(grid.groups, kThreads / grid.team)), kThreads, stream, call,
                grid);
}

template <class T, bool interleaved>
void launch_all(const NormGradCall& call, cudaStream_t stream) {
  const RopeOperand& o = call.norm.q.rope;
  RopeOperand grad = o;
  grad.x = call.grad;
  grad.x_batch = call.grad_batch, grad.x_token = call.grad_token;
  grad.x_head = call.grad_head, grad.x_dim = call.grad_dim;
  const bool aligned = norm_aligned<T>(call.norm, o) && norm_aligned<T>(call.norm, grad);
  aligned ? launch_rows<T, interleaved, true>(call, stream)
          : launch_rows<T, interleaved, false>(call, stream);
  if (call.weight_sums == nullptr && call.bias_sums == nullptr) return;
  const int64_t size = call.norm.dim * (call.norm.all ? o.heads : 1);
  const int64_t tiles = o.batch * ceil_div(o.tokens, kNormGradTokens);
  if (tiles * size > 0) {
    POSENC_LAUNCH((norm_parameters_kernel<T, interleaved>),
                  grid_for(ceil_div(tiles * size, kThreads)), kThreads, stream, call, size, tiles);
  }
  launch_tiles(call.weight_sums, call.dweight, call.weight_type, size, tiles, stream);
  launch_tiles(call.bias_sums, call.dbias, call.bias_type, size, tiles, stream);
}

}  // namespace

void launch_norm_rope_grad(const NormGradCall& call, RopeDtype type, bool interleaved,
                           cudaStream_t stream) {
  const auto typed = [&](auto element) {
    using T = decltype(element);
    interleaved ? launch_all<T, true>(call, stream) : launch_all<T, false>(call, stream);
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

}  // namespace posenc
