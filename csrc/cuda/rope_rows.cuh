// Which table row a token reads, found on the device: no value is brought to the host.
#pragma once

#include "cuda/device.cuh"
#include "cuda/rope_kernels.h"

namespace posenc {

POSENC_DEVICE int64_t read_index(const RopeIndexTensor& t, int64_t at) {
  return t.wide ? load(static_cast<const int64_t*>(t.data) + at)
                : load(static_cast<const int32_t*>(t.data) + at);
}

// The sequence that holds `token`: the last i < N with cu_seqlens[i] <= token.
POSENC_DEVICE int64_t sequence_of(const RopeIndexTensor& cu_seqlens, int64_t sequences,
                                  int64_t token) {
  int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (read_index(cu_seqlens, middle * cu_seqlens.step) <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The whole of cu_seqlens, shared out to the threads of the grid.
POSENC_DEVICE void check_cu_seqlens(const RopeRowSource& source) {
  const RopeIndexTensor& t = source.cu_seqlens;
  if (t.data == nullptr) return;
  for (int64_t i = grid_thread(); i < source.sequences; i += grid_step()) {
    const int64_t begin = read_index(t, i * t.step), end = read_index(t, (i + 1) * t.step);
    POSENC_DEVICE_CHECK(i > 0 || begin == 0, "cu_seqlens must start with 0");
    POSENC_DEVICE_CHECK(begin <= end, "cu_seqlens must not decrease");
    POSENC_DEVICE_CHECK(i + 1 < source.sequences || end == source.length,
                        "cu_seqlens must end with T");
  }
}

// In [0, rows), whatever the tensors hold; the table must have a row. Is it the row asked for?
POSENC_DEVICE int64_t clamped_row(const RopeRowSource& source, int64_t batch, int64_t token,
                                  bool& inside) {
  if (source.positions.data != nullptr) {
    const RopeIndexTensor& t = source.positions;
    const int64_t row = read_index(t, batch * t.batch + token * t.step);
    inside = row >= 0 && row < source.rows;
    return inside ? row : 0;
  }
  int64_t sequence = batch, begin = 0;
  if (source.cu_seqlens.data != nullptr) {
    sequence = sequence_of(source.cu_seqlens, source.sequences, token);
    begin = read_index(source.cu_seqlens, sequence * source.cu_seqlens.step);
  }
  const int64_t first = source.offsets.data != nullptr
                            ? read_index(source.offsets, sequence * source.offsets.step)
                            : source.offset;
  // Not first + (token - begin) < rows, which may wrap.
  const int64_t ahead = token - begin;
  inside = first >= 0 && first < source.rows && ahead >= 0 && ahead < source.rows - first;
  return inside ? first + ahead : 0;
}

POSENC_DEVICE void check_row(bool inside) {
  POSENC_DEVICE_CHECK(inside, "positions and offset must keep all rows inside the table");
}

POSENC_DEVICE int64_t table_row(const RopeRowSource& source, int64_t batch, int64_t token) {
  bool inside;
  const int64_t row = clamped_row(source, batch, token, inside);
  check_row(inside);
  return row;
}

}  // namespace posenc
