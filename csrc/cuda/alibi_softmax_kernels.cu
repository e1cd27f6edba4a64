// alibi_softmax and the gradient of its scores on CUDA.
//
// A block holds a group of rows in registers from load to store, so that memory is read once and
// written once. A row of more than Block::keys keys (4096; 2048 doubles) is read again for every
// pass over it, from the L2 cache unless it is millions of keys long.
#include <type_traits>

#include "cuda/alibi_rows.cuh"

namespace posenc {
namespace {

// The larger one, or NaN.
template <class A>
POSENC_DEVICE A larger_or_nan(A a, A b) {
  return b > a || b != b ? b : a;
}

// The logits of this thread's units in a piece; -inf for what is hidden.
template <class Block, class A>
POSENC_DEVICE void read_logits(const Block& block, int piece, A scale, A slope,
                               A (*logit)[Block::W]) {
  const AlibiCudaKeys& keep = block.call.keep;
  typename Block::Unit x[Block::units];
#pragma unroll
  for (int u = 0; u < Block::units; ++u) x[u] = block.read(block.call.x, u, piece);
#pragma unroll
  for (int u = 0; u < Block::units; ++u) {
    const int end = block.end(u);
#pragma unroll
    for (int w = 0; w < Block::W; ++w) {
      const int key = block.first(u, piece) + w;
      bool seen = key < end;
      if (seen && keep.data != nullptr) {
        const auto* bytes = static_cast<const uint8_t*>(keep.data);
        seen = load(bytes + block.b * keep.batch + key * keep.key) != 0;
      }
      const A offset = static_cast<A>(key - (block.position + block.row[u]));
      logit[u][w] = seen ? alibi_logit<AlibiLane>(A(widen(x[u].at[w])), scale, slope, offset)
                         : -static_cast<A>(INFINITY);
    }
  }
}

// The largest value of every row, or NaN, from those of its units: `of_unit` and `tops` are shared.
template <class Block, class A>
POSENC_DEVICE void largest_of_rows(const Block& block, const A* of_unit, A* tops) {
  const int units = smaller(block.grid.row_units, Block::block_units);
  const int lane = static_cast<int>(threadIdx.x) % kSums;
  for (int first = 0; first < block.rows; first += kHalfWarps) {
    const int row = first + static_cast<int>(threadIdx.x) / kSums;
    A top = -static_cast<A>(INFINITY);
    if (row < block.rows) {
      for (int i = lane; i < units; i += kSums) top = larger_or_nan(top, of_unit[row * units + i]);
    }
#pragma unroll
    for (int half = kSums / 2; half > 0; half /= 2) {
      top = larger_or_nan(top, __shfl_xor_sync(kWholeWarp, top, half));
    }
    if (row < block.rows && lane == 0) tops[row] = top;
  }
}

template <class T, bool aligned>
__global__ void __launch_bounds__(kThreads, 2)
    alibi_softmax_kernel(const __grid_constant__ AlibiCall call,
                         const __grid_constant__ AlibiGrid grid) {
  using Block = AlibiBlock<T, aligned>;
  constexpr int W = Block::W;
  using A = math_t<T>;
  constexpr A lowest = -static_cast<A>(INFINITY);
  __shared__ Lanes<A, W> values[Block::block_units];
  __shared__ A tops[Block::most_rows], totals[Block::most_rows];

  const A scale = static_cast<A>(call.scale);
  Block block(call, grid);
  RowSums<Block, A> sums{&values[0].at[0], totals};
  A logit[Block::units][W];
  for (int64_t group = blockIdx.x; group < grid.groups; group += gridDim.x) {
    block.take(group);
    const A slope = static_cast<A>(block.slope());

    A most[Block::units];
#pragma unroll
    for (int u = 0; u < Block::units; ++u) most[u] = lowest;
#pragma unroll 1
    for (int piece = 0; piece < block.pieces; ++piece) {
      read_logits(block, piece, scale, slope, logit);
#pragma unroll
      for (int u = 0; u < Block::units; ++u) {
#pragma unroll
        for (int w = 0; w < W; ++w) most[u] = larger_or_nan(most[u], logit[u][w]);
      }
    }
    A* of_unit = &values[0].at[0];
#pragma unroll
    for (int u = 0; u < Block::units; ++u) of_unit[u * kThreads + threadIdx.x] = most[u];
    __syncthreads();
    largest_of_rows(block, of_unit, tops);
    __syncthreads();

#pragma unroll 1
    for (int piece = 0; piece < block.pieces; ++piece) {
      if (block.pieces > 1) read_logits(block, piece, scale, slope, logit);
#pragma unroll
      for (int u = 0; u < Block::units; ++u) {
        const A top = block.row[u] < block.rows ? tops[block.row[u]] : A(0);
        Lanes<A, W> e;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          e.at[w] = logit[u][w] = alibi_exp<AlibiLane, A>(logit[u][w] - top);
        }
        values[u * kThreads + threadIdx.x] = e;
      }
      sums.add(block, piece);
    }

#pragma unroll 1
    for (int piece = 0; piece < block.pieces; ++piece) {
      if (block.pieces > 1) read_logits(block, piece, scale, slope, logit);
#pragma unroll
      for (int u = 0; u < Block::units; ++u) {
        if (block.row[u] >= block.rows) continue;
        const A top = tops[block.row[u]], total = totals[block.row[u]];
        const int end = block.end(u), first = block.first(u, piece);
        typename Block::Unit y;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          A e = logit[u][w];
          if (block.pieces > 1) e = alibi_exp<AlibiLane, A>(e - top);
          // A row without a logit above -inf is zero, one with a NaN is NaN.
          const A value = top > lowest ? e / total : top == lowest ? A(0) : top;
          narrow(first + w < end ? value : A(0), y.at[w]);
        }
        block.write(call.out, u, piece, y);
      }
    }
  }
}

template <class T, bool aligned>
__global__ void __launch_bounds__(kThreads, 2)
    alibi_softmax_grad_kernel(const __grid_constant__ AlibiCall call,
                              const __grid_constant__ AlibiGrid grid) {
  using Block = AlibiBlock<T, aligned>;
  constexpr int W = Block::W;
  using A = math_t<T>;
  __shared__ Lanes<A, W> values[Block::block_units];
  __shared__ A dots[Block::most_rows];

  const A scale = static_cast<A>(call.scale);
  Block block(call, grid);
  RowSums<Block, A> sums{&values[0].at[0], dots};
  typename Block::Unit y[Block::units], g[Block::units];
  const auto read = [&](int piece) {
#pragma unroll
    for (int u = 0; u < Block::units; ++u) {
      y[u] = block.read(call.x, u, piece);
      g[u] = block.read(call.grad, u, piece);
    }
  };
  for (int64_t group = blockIdx.x; group < grid.groups; group += gridDim.x) {
    block.take(group);
#pragma unroll 1
    for (int piece = 0; piece < block.pieces; ++piece) {
      read(piece);
#pragma unroll
      for (int u = 0; u < Block::units; ++u) {
        Lanes<A, W> products;
#pragma unroll
        for (int w = 0; w < W; ++w) products.at[w] = A(widen(y[u].at[w])) * A(widen(g[u].at[w]));
        values[u * kThreads + threadIdx.x] = products;
      }
      sums.add(block, piece);
    }
#pragma unroll 1
    for (int piece = 0; piece < block.pieces; ++piece) {
      if (block.pieces > 1) read(piece);
#pragma unroll
      for (int u = 0; u < Block::units; ++u) {
        if (block.row[u] >= block.rows) continue;
        const A dot = dots[block.row[u]];
        const int end = block.end(u), first = block.first(u, piece);
        typename Block::Unit out;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const A value = alibi_score_grad(A(widen(y[u].at[w])), A(widen(g[u].at[w])), dot, scale);
          narrow(first + w < end ? value : A(0), out.at[w]);
        }
        block.write(call.out, u, piece, out);
      }
    }
    // The barrier of the next sum keeps its result from overwriting `dots` before all have read it.
  }
}

}  // namespace

void launch_alibi_softmax(const AlibiCall& call, RopeDtype type, cudaStream_t stream) {
  for_type_and_alignment(call, type, [&](auto element, auto wide) {
    using T = decltype(element);
    constexpr bool aligned = decltype(wide)::value;
    const AlibiGrid grid = alibi_grid<AlibiBlock<T, aligned>>(call);
    if (grid.groups == 0) return;
    POSENC_LAUNCH((alibi_softmax_kernel<T, aligned>), grid_for(grid.groups), kThreads, stream, call,
                  grid);
  });
}

void launch_alibi_softmax_grad(const AlibiCall& call, RopeDtype type, cudaStream_t stream) {
  for_type_and_alignment(call, type, [&](auto element, auto wide) {
    using T = decltype(element);
    constexpr bool aligned = decltype(wide)::value;
    const AlibiGrid grid = alibi_grid<AlibiBlock<T, aligned>>(call);
    if (grid.groups == 0) return;
    POSENC_LAUNCH((alibi_softmax_grad_kernel<T, aligned>), grid_for(grid.groups), kThreads, stream,
                  call, grid);
  });
}

}  // namespace posenc
