// alibi_bias and add_alibi on CUDA: each score is read once, unless it is masked, and each result
// written once.
#include <type_traits>

#include "cuda/alibi_rows.cuh"

namespace posenc {
namespace {

template <class T, bool add, bool aligned>
__global__ void __launch_bounds__(kThreads, 2)
    alibi_cells_kernel(const __grid_constant__ AlibiCall call,
                       const __grid_constant__ AlibiGrid grid) {
  using Block = AlibiBlock<T, aligned>;
  constexpr int W = Block::W;
  using A = math_t<T>;
  Block block(call, grid);
  for (int64_t group = blockIdx.x; group < grid.groups; group += gridDim.x) {
    block.take(group);
    const A slope = static_cast<A>(block.slope());
    for (int piece = 0; piece < block.pieces; ++piece) {
      typename Block::Unit x[Block::units];
#pragma unroll
      for (int u = 0; u < Block::units; ++u) {
        if constexpr (add) x[u] = block.read(call.x, u, piece);
      }
#pragma unroll
      for (int u = 0; u < Block::units; ++u) {
        const int end = block.end(u), first = block.first(u, piece);
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const int key = first + w;
          A value = -static_cast<A>(INFINITY);
          if (key < end) {
            value = alibi_cell<AlibiLane>(slope, block.template key_offset<A>(key, block.row[u]));
            if constexpr (add) value = widen(x[u].at[w]) + value;
          }
          narrow(value, x[u].at[w]);
        }
        block.write(call.out, u, piece, x[u]);
      }
    }
  }
}

template <bool add>
void launch_cells(const AlibiCall& call, RopeDtype type, cudaStream_t stream) {
  for_type_and_alignment(call, type, [&](auto element, auto wide) {
    using T = decltype(element);
    constexpr bool aligned = decltype(wide)::value;
    const AlibiGrid grid = alibi_grid<AlibiBlock<T, aligned>>(call);
    if (grid.groups == 0) return;
    POSENC_LAUNCH((alibi_cells_kernel<T, add, aligned>), grid_for(grid.groups), kThreads, stream,
                  call, grid);
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
