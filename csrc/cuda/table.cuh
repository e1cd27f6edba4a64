// Tables of cos and sin on CUDA, and their sum with x: plain arithmetic on doubles, the bits of the
// CPU.
//
// A block takes a tile, 32 frequencies of a run of rows. A thread holds W of the frequencies (16
// bytes of output, or one where that is not aligned) and walks some of the rows. Its row of the
// base is made anew when the base changes, every 64 positions; the rows of the offsets stand in
// shared memory: all 64, or one for each row of a run that is no longer. So an element of a long
// run costs little more than one rotation. Memory is written once, and x read once.
#pragma once

#include <algorithm>

#include "cuda/table_rows.cuh"

namespace posenc {
namespace {

constexpr int kFrequencies = 32;       // of a tile
constexpr int64_t kTiles = 1024;       // enough for any GPU
constexpr int64_t kLongestRun = 4096;  // rows

POSENC_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Blocks that share a multiprocessor at least: the code for 7.5 needs the registers of two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocksAtOnce = 1;
#else
constexpr int kBlocksAtOnce = 2;
#endif

struct TableTiling {
  int64_t frequency_tiles, runs, tiles;
  int walk;  // rows of a thread
};

template <class T, bool add, bool aligned>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    table_kernel(const __grid_constant__ TableCall call,
                 const __grid_constant__ TableTiling tiling) {
  using A = math_t<T>;
  constexpr int W = aligned ? Pack<T>::size : 1;
  constexpr int lanes = kFrequencies / W, walkers = kThreads / lanes;
  constexpr int together = add && W < 8 ? 2 : 1;  // entries whose x is read at a time
  __shared__ CosSin offsets[kOffsets][kFrequencies];

  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int walker = static_cast<int>(threadIdx.x) / lanes;
  const A scale = static_cast<A>(call.scale);
  for (int64_t tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
    const int64_t first_frequency = tile % tiling.frequency_tiles * kFrequencies;
    const int64_t run = tile / tiling.frequency_tiles;
    const int64_t group = run / tiling.runs, first_row = run % tiling.runs * tiling.walk * walkers;
    const int64_t rows = smaller(call.rows - first_row, int64_t{tiling.walk} * walkers);
    const bool by_offset = rows > kOffsets;
    const int held = static_cast<int>(by_offset ? kOffsets : rows);
    __syncthreads();  // the tile before is done with the offsets
    for (int i = static_cast<int>(threadIdx.x); i < held * kFrequencies; i += kThreads) {
      // Frequency w of lane l in column w * lanes + l: no two lanes of a read share a bank.
      const int row = i / kFrequencies, column = i % kFrequencies;
      const int64_t f = first_frequency + column % lanes * W + column / lanes;
      if (f >= call.n) continue;
      const int64_t offset =
          by_offset ? row : position_of(call.positions, group, first_row + row).offset;
      offsets[row][column] = exact(static_cast<double>(offset), frequency_of(call, f));
    }
    __syncthreads();

    const int64_t item = first_frequency + lane * W;
    const TablePlace place = place_of<T, W>(call, item);
    if (!place.present[0] && !place.present[1]) continue;
    double base = 0;
    CosSin of_base[W];
#pragma unroll
    for (int w = 0; w < W; ++w) of_base[w] = {1, 0};  // of position 0
    const int64_t begin = int64_t{walker} * tiling.walk;
    const int64_t end = smaller(begin + tiling.walk, rows);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = first_row + i;
      Halves<T, W> x[together];
      const int64_t x_row = group * call.x.group + row * call.x.row;
      const auto read = [&](int64_t entry) {
#pragma unroll
        for (int e = 0; e < together; ++e) {
          if (entry + e < call.entries)
            x[e] = read_x<T, W>(call, place, x_row + (entry + e) * call.x.entry);
        }
      };
      if constexpr (add) read(0);

      const PositionSplit at = position_of(call.positions, group, row);
      if (at.base != base) {  // a NaN is never the base at hand
#pragma unroll
        for (int w = 0; w < W; ++w) {
          if (item + w < call.n) of_base[w] = exact(at.base, frequency_of(call, item + w));
        }
        base = at.base;
      }
      const CosSin* from = offsets[by_offset ? at.offset : i];
      A cos[W], sin[W];
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const CosSin offset = from[w * lanes + lane];
        double c, s;
        rotate_pair(of_base[w].cos, of_base[w].sin, offset.cos, offset.sin, c, s);
        cos[w] = table_value<T, add>(item < call.n ? c * call.factor : 0.0);
        sin[w] = table_value<T, add>(s * call.factor);
      }
      Halves<A, W> values;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        // Element e of 2 * W is of frequency e / 2 where pairs stand side by side.
        const A first = (w % 2 == 0) == place.cos_first ? cos[w / 2] : sin[w / 2];
        const A second =
            ((W + w) % 2 == 0) == place.cos_first ? cos[(W + w) / 2] : sin[(W + w) / 2];
        values.at[0][w] = place.paired && item < call.n ? first : cos[w];
        values.at[1][w] = place.paired ? second : sin[w];
      }

      const int64_t out_row = group * call.out.group + row * call.out.row;
      for (int64_t entry = 0; entry < call.entries; entry += together) {
        if (add && entry > 0) read(entry);
#pragma unroll
        for (int e = 0; e < together; ++e) {
          if (entry + e >= call.entries) continue;
          Halves<T, W> out;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
              A value = values.at[half][w];
              if constexpr (add) value = widen(x[e].at[half][w]) * scale + value;
              narrow(value, out.at[half][w]);
            }
          }
          write_out<T, W>(call, place, out_row + (entry + e) * call.out.entry, out);
        }
      }
    }
  }
}

// ---- Launch. ----

template <class T>
bool is_aligned(const TableCall& call, const TableOperand& t, const void* data) {
  return data == nullptr ||
         (t.column == 1 && aligned16(data, sizeof(T), t.group, t.entry, t.row,
                                     call.step == 1 ? call.cos : 0, call.step == 1 ? call.sin : 0));
}

template <class T, bool add, bool aligned>
void launch_tiles(const TableCall& call, cudaStream_t stream) {
  constexpr int64_t walkers = kThreads / (kFrequencies / (aligned ? Pack<T>::size : 1));
  TableTiling t{};
  t.frequency_tiles = ceil_div(call.n + (call.zero >= 0), kFrequencies);
  const int64_t run = std::min(
      {ceil_div(call.groups * call.rows * t.frequency_tiles, kTiles), call.rows, kLongestRun});
  t.walk = static_cast<int>(ceil_div(run, walkers));
  t.runs = ceil_div(call.rows, t.walk * walkers);
  t.tiles = t.frequency_tiles * t.runs * call.groups;
  if (t.tiles == 0) return;
  POSENC_LAUNCH((table_kernel<T, add, aligned>), grid_for(t.tiles), kThreads, stream, call, t);
}

template <bool add>
void launch_tables(const TableCall& call, RopeDtype type, cudaStream_t stream) {
  const auto typed = [&](auto element) {
    using T = decltype(element);
    constexpr int W = Pack<T>::size;
    if (call.n % W == 0 && call.pairs == call.n && call.zero < 0 &&
        is_aligned<T>(call, call.out, call.out.data) &&
        is_aligned<T>(call, call.out, call.sin_data) && is_aligned<T>(call, call.x, call.x.data)) {
      launch_tiles<T, add, true>(call, stream);
    } else {
      launch_tiles<T, add, false>(call, stream);
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
