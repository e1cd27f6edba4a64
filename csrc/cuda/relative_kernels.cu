// relative_gather and relative_scatter on CUDA. The index is checked as it is read.
//
// gather: a thread makes 16 bytes of some rows of the result, those of one query in several heads:
// they share the columns, so the index is read once for all. Memory is written once and x read
// once; the index and the neighbouring columns of x come from the caches.
//
// scatter: 16 threads take a row, one for each part of its sums (relative.h): thread l adds the
// keys j with j % 16 == l, in their order, to its own part of each column in shared memory. So
// there are no atomics, and the bits are those of the CPU. y is read once, or once for every kCells
// / 16 columns.
#include <algorithm>
#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/relative_kernels.h"

namespace posenc {
namespace {

constexpr int64_t kHeads = 32;  // rows of a thread of gather
constexpr int kParts = 16;
constexpr int kHalfWarps = kThreads / kParts;
constexpr unsigned kWholeWarp = 0xffffffffu;

POSENC_DEVICE int64_t row_offset(const RelativeRows& rows, int64_t row) {
  int64_t offset = 0;
#pragma unroll
  for (int d = RelativeRows::most - 1; d >= 0; --d) {
    if (d >= rows.dims) continue;
    if (d == 0) return offset + row * rows.stride[0];
    const Division at = divide(row, rows.size[d]);
    offset += at.remainder * rows.stride[d];
    row = at.quotient;
  }
  return offset;
}

// The column of key j, or -1, for a row at query i = q_len - 1 - first.
POSENC_DEVICE int64_t column_of(const RelativeCall& call, int64_t first, int64_t j) {
  const int64_t at = (first + j) * call.index_step;
  const int64_t column = call.wide ? load(static_cast<const int64_t*>(call.index) + at)
                                   : load(static_cast<const int32_t*>(call.index) + at);
  const bool inside = column >= -1 && column < call.columns;
  POSENC_DEVICE_CHECK(inside, "index must be from -1 to T - 1");
  return inside ? column : -1;
}

// T is an unsigned integer of the size of an element.
template <class T, bool aligned>
__global__ void __launch_bounds__(kThreads, 3)
    relative_gather_kernel(const __grid_constant__ RelativeCall call, int64_t heads) {
  constexpr int W = aligned ? Pack<T>::size : 1;
  const int64_t units = call.k_len / W, all_heads = call.count / call.q_len;  // of a row; rows
  const int64_t items = call.q_len * units * ((all_heads + heads - 1) / heads);
  for (int64_t i = grid_thread(); i < items; i += grid_step()) {
    const Division at = divide(i, units), of = divide(at.quotient, call.q_len);
    const int64_t query = of.remainder, first = call.q_len - 1 - query;
    int64_t from[W];  // offsets; -1 for none
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const int64_t column = column_of(call, first, at.remainder * W + w);
      from[w] = column < 0 ? -1 : column * call.step;
    }
    const int64_t begin = of.quotient * heads;
    const int64_t end = begin + heads < all_heads ? begin + heads : all_heads;
    for (int64_t head = begin; head < end; ++head) {
      const int64_t row = head * call.q_len + query;
      const T* x = static_cast<const T*>(call.from) + row_offset(call.rows, row);
      T values[W];
#pragma unroll
      for (int w = 0; w < W; ++w) values[w] = from[w] < 0 ? T{0} : load(x + from[w]);
      T* out = static_cast<T*>(call.out) + (row * units + at.remainder) * W;
      if constexpr (aligned) {
        Pack<T> pack;
        memcpy(&pack, values, sizeof pack);
        store_pack(out, pack);
      } else {
        store(out, values[0]);
      }
    }
  }
}

template <class T>
constexpr int kCells = 32768 / sizeof(math_t<T>);  // of shared memory: columns times parts

template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    relative_scatter_kernel(const __grid_constant__ RelativeCall call, int block_rows,
                            int block_columns) {
  using A = math_t<T>;
  __shared__ A parts[kCells<T>];  // [block_rows][block_columns][16]
  const int half_warp = static_cast<int>(threadIdx.x) / kParts;
  const int lane = static_cast<int>(threadIdx.x) % kParts;
  const int64_t groups = (call.count + block_rows - 1) / block_rows;
  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t first_row = group * block_rows;
    const int rows =
        static_cast<int>(call.count - first_row < block_rows ? call.count - first_row : block_rows);
    for (int64_t begin = 0; begin < call.columns; begin += block_columns) {
      const int columns = static_cast<int>(
          call.columns - begin < block_columns ? call.columns - begin : block_columns);
      for (int i = static_cast<int>(threadIdx.x); i < rows * columns * kParts; i += kThreads) {
        parts[i] = 0;
      }
      __syncthreads();
      if (half_warp < rows) {
        const int64_t row = first_row + half_warp;
        const int64_t first = call.q_len - 1 - divide(row, call.q_len).remainder;
        const T* y = static_cast<const T*>(call.from) + row_offset(call.rows, row);
        A* own = parts + half_warp * columns * kParts + lane;
#pragma unroll 4
        for (int64_t j = lane; j < call.k_len; j += kParts) {
          const int64_t column = column_of(call, first, j) - begin;
          const A value = widen(load(y + j * call.step));
          if (column >= 0 && column < columns) own[column * kParts] += value;
        }
      }
      __syncthreads();
      for (int some = 0; some < rows * columns; some += kHalfWarps) {
        const int cell = some + half_warp;
        A sum = cell < rows * columns ? parts[cell * kParts + lane] : A(0);
#pragma unroll
        for (int half = kParts / 2; half > 0; half /= 2) {
          sum += __shfl_xor_sync(kWholeWarp, sum, half);
        }
        if (cell >= rows * columns || lane > 0) continue;
        T total;
        narrow(sum, total);
        store(static_cast<T*>(call.out) + (first_row + cell / columns) * call.columns + begin +
                  cell % columns,
              total);
      }
      __syncthreads();  // before the next columns clear the parts
    }
  }
}

template <class T>
void launch_gather(const RelativeCall& call, cudaStream_t stream) {
  constexpr int W = Pack<T>::size;
  const bool aligned = call.k_len % W == 0 && aligned16(call.out, sizeof(T), 0);
  const int64_t units = call.k_len / (aligned ? W : 1);
  // Rows that share an index, but not so many that few threads are left.
  const int64_t heads =
      std::clamp<int64_t>(call.count * units / (kThreads * POSENC_FULL_GPU), 1, kHeads);
  const int64_t items = call.q_len * units * ceil_div(call.count / call.q_len, heads);
  const int64_t blocks = grid_for(ceil_div(items, kThreads));
  if (aligned) {
    POSENC_LAUNCH((relative_gather_kernel<T, true>), blocks, kThreads, stream, call, heads);
  } else {
    POSENC_LAUNCH((relative_gather_kernel<T, false>), blocks, kThreads, stream, call, heads);
  }
}

template <class T>
void launch_scatter(const RelativeCall& call, cudaStream_t stream) {
  const int64_t most = kCells<T> / kParts;  // columns that a block holds
  const int columns = static_cast<int>(std::min(call.columns, most));
  const int rows = static_cast<int>(std::min<int64_t>(kHalfWarps, most / columns));
  POSENC_LAUNCH(relative_scatter_kernel<T>, grid_for(ceil_div(call.count, rows)), kThreads, stream,
                call, rows, columns);
}

}  // namespace

void launch_relative_gather(const RelativeCall& call, int64_t item, cudaStream_t stream) {
  if (item == 2) return launch_gather<uint16_t>(call, stream);
  if (item == 4) return launch_gather<uint32_t>(call, stream);
  return launch_gather<uint64_t>(call, stream);
}

void launch_relative_scatter(const RelativeCall& call, RopeDtype type, cudaStream_t stream) {
  switch (type) {
    case RopeDtype::f32:
      return launch_scatter<float>(call, stream);
    case RopeDtype::f64:
      return launch_scatter<double>(call, stream);
    case RopeDtype::bf16:
      return launch_scatter<bf16>(call, stream);
    case RopeDtype::f16:
      return launch_scatter<f16>(call, stream);
  }
}

}  // namespace posenc
