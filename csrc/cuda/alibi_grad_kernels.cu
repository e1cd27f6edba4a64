// Gradients of slopes on CUDA. A block takes a tile, the query rows of one head that the CPU adds
// up together, and writes the sum of
//
//   f * -|j - i|      f = g, or y * (g - sum(y * g)) for the softmax
//
// in double to `sums`; a second kernel adds those of each slope, in the order of batch and row. No
// atomics: the same bits every time, and those of the CPU.
//
// y and g are read once; those of a row of more than Block::keys keys twice.
#include <type_traits>

#include "cuda/alibi_rows.cuh"

namespace posenc {
namespace {

// Half the units of the other kernels: their terms are doubles in shared memory.
template <class T, bool aligned>
using GradBlock = AlibiBlock<T, aligned, 2>;

struct AlibiTiles {
  int rows;         // of a tile
  int64_t of_head;  // tiles of a head
  int64_t all;
  double* sums;  // [all]
};

template <class T, bool softmax, bool aligned>
__global__ void __launch_bounds__(kThreads, 2)
    alibi_slope_grad_kernel(const __grid_constant__ AlibiCall call,
                            const __grid_constant__ AlibiGrid grid,
                            const __grid_constant__ AlibiTiles tiles) {
  using Block = GradBlock<T, aligned>;
  constexpr int W = Block::W;
  __shared__ Lanes<double, W> values[Block::block_units];
  __shared__ double dots[Block::most_rows];

  Block block(call, grid);
  RowSums<Block, double> sums{&values[0].at[0], dots};
  typename Block::Unit y[Block::units], g[Block::units];
  const auto read = [&](int piece) {
#pragma unroll
    for (int u = 0; u < Block::units; ++u) {
      g[u] = block.read(call.grad, u, piece);
      if constexpr (softmax) y[u] = block.read(call.x, u, piece);
    }
  };
  for (int64_t tile = blockIdx.x; tile < tiles.all; tile += gridDim.x) {
    const int64_t head = tile / tiles.of_head;
    const int first_row = static_cast<int>(tile - head * tiles.of_head) * tiles.rows;
    const int end_row = smaller(first_row + tiles.rows, call.q_len);
    double sum = 0;  // of 16 threads
    for (int q = first_row; q < end_row; q += grid.group_rows) {
      block.take(head, q, end_row);
      if constexpr (softmax) {
#pragma unroll 1
        for (int piece = 0; piece < block.pieces; ++piece) {
          read(piece);
#pragma unroll
          for (int u = 0; u < Block::units; ++u) {
            Lanes<double, W> products;
#pragma unroll
            for (int w = 0; w < W; ++w) {
              products.at[w] = double(widen(y[u].at[w])) * double(widen(g[u].at[w]));
            }
            values[u * kThreads + threadIdx.x] = products;
          }
          sums.add(block, piece);
        }
      }
#pragma unroll 1
      for (int piece = 0; piece < block.pieces; ++piece) {
        if (!softmax || block.pieces > 1) read(piece);
#pragma unroll
        for (int u = 0; u < Block::units; ++u) {
          const int end = block.end(u), first = block.first(u, piece);
          Lanes<double, W> terms;
#pragma unroll
          for (int w = 0; w < W; ++w) {
            double f = widen(g[u].at[w]);
            if constexpr (softmax) {
              if (first + w < end) f = double(widen(y[u].at[w])) * (f - dots[block.row[u]]);
            }
            terms.at[w] = first + w < end
                              ? alibi_cell<AlibiLane>(
                                    f, block.template key_offset<double>(first + w, block.row[u]))
                              : 0.0;
          }
          values[u * kThreads + threadIdx.x] = terms;
        }
        __syncthreads();
        if (threadIdx.x < kSums) {
          const int keys = smaller(grid.row_units, Block::block_units) * W;
          for (int row = 0; row < block.rows; ++row) {
            const int left = block.visible(row) - piece * Block::keys;
            sum = add_in_order(&values[0].at[0] + row * keys, static_cast<int>(threadIdx.x),
                               smaller(left, keys), sum);
          }
        }
        __syncthreads();
      }
    }
    if (threadIdx.x < warpSize) {
      const double total = add_partial_sums(sum);
      if (threadIdx.x == 0) store(tiles.sums + tile, total);
    }
  }
}

// One thread per slope: the tiles of its head, in every batch entry if the batch shares it.
template <class S>
__global__ void __launch_bounds__(kThreads)
    add_tiles_kernel(S* grads, const double* sums, int64_t slopes, int64_t heads, int64_t batch,
                     int64_t tiles_of_head) {
  for (int64_t i = grid_thread(); i < slopes; i += grid_step()) {
    double total = 0;
    for (int64_t b = 0; b < batch; ++b) {
      const double* head = sums + (b * heads + i) * tiles_of_head;
#pragma unroll 8
      for (int64_t tile = 0; tile < tiles_of_head; ++tile) total += load(head + tile);
    }
    S grad;
    narrow(static_cast<math_t<S>>(total), grad);  // as ATen rounds a double
    store(grads + i, grad);
  }
}

template <class T, bool aligned>
void launch_tiles(const AlibiCall& call, const AlibiSlopeGrads& to, cudaStream_t stream) {
  using Block = GradBlock<T, aligned>;
  const AlibiGrid grid = alibi_grid<Block>(call);
  AlibiTiles tiles{};
  tiles.rows = to.tile_rows;
  tiles.of_head = ceil_div(call.q_len, to.tile_rows);
  tiles.all = call.batch * call.heads * tiles.of_head;
  tiles.sums = to.sums;
  if (tiles.all == 0) return;
  if (to.softmax) {
    POSENC_LAUNCH((alibi_slope_grad_kernel<T, true, aligned>), grid_for(tiles.all), kThreads,
                  stream, call, grid, tiles);
  } else {
    POSENC_LAUNCH((alibi_slope_grad_kernel<T, false, aligned>), grid_for(tiles.all), kThreads,
                  stream, call, grid, tiles);
  }
}

template <class S>
void launch_add_tiles(const AlibiCall& call, const AlibiSlopeGrads& to, cudaStream_t stream) {
  const bool shared = call.slopes.batch == 0;  // one slope for all batch entries
  const int64_t slopes = call.heads * (shared ? 1 : call.batch);
  if (slopes == 0) return;
  POSENC_LAUNCH(add_tiles_kernel<S>, grid_for(ceil_div(slopes, kThreads)), kThreads, stream,
                static_cast<S*>(to.grads), to.sums, slopes, call.heads, shared ? call.batch : 1,
                ceil_div(call.q_len, to.tile_rows));
}

}  // namespace

void launch_alibi_slope_grad(const AlibiCall& call, const AlibiSlopeGrads& to, RopeDtype type,
                             cudaStream_t stream) {
  for_type_and_alignment(call, type, [&](auto element, auto wide) {
    launch_tiles<decltype(element), decltype(wide)::value>(call, to, stream);
  });
  switch (call.slopes.type) {
    case RopeDtype::f32:
      return launch_add_tiles<float>(call, to, stream);
    case RopeDtype::f64:
      return launch_add_tiles<double>(call, to, stream);
    case RopeDtype::bf16:
      return launch_add_tiles<bf16>(call, to, stream);
    case RopeDtype::f16:
      return launch_add_tiles<f16>(call, to, stream);
  }
}

}  // namespace posenc
