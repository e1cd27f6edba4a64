#include "cpu/rope_index.h"

#include <numeric>

namespace posenc {
namespace {

// Rows first, first + 1, ... first + count - 1.
void append_run(const char* op, const char* name, c10::SmallVectorImpl<int64_t>& rows,
                int64_t first, int64_t count, int64_t limit) {
  // first <= limit - count would wrap for the smallest int64, first > limit cannot.
  POSENC_CHECK_INDEX(count == 0 || (first >= 0 && first <= limit && count <= limit - first), op,
                     name, " must keep rows ", first, " to ", first, " + ", count,
                     " inside the table, got L = ", limit);
  const size_t start = rows.size();
  rows.resize(start + static_cast<size_t>(count));
  std::iota(rows.begin() + start, rows.end(), first);
}

void rows_from_positions(const char* op, const at::Tensor& positions, int64_t limit,
                         RopeIndex& index) {
  const int64_t batch = positions.dim() == 2 ? positions.size(0) : 1;
  const int64_t length = positions.size(-1);
  index.rows.resize(static_cast<size_t>(batch * length));
  index.batch_step = batch > 1 ? length : 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t start = positions.dim() == 2 ? b * positions.stride(0) : 0;
    for (int64_t s = 0; s < length; ++s) {
      const int64_t row = read_index(positions, start + s * positions.stride(-1));
      POSENC_CHECK_INDEX(row >= 0 && row < limit, op,
                         "positions must be rows of the table, 0 <= position < L = ", limit,
                         ", got ", row);
      index.rows[static_cast<size_t>(b * length + s)] = row;
    }
  }
}

int64_t read_offset(const RopeOptions<int64_t>& options, int64_t sequence) {
  if (!options.offsets) return options.offset;
  const auto& offsets = *options.offsets;
  return read_index(offsets, offsets.dim() == 0 ? 0 : sequence * offsets.stride(0));
}

void rows_from_cu_seqlens(const char* op, const RopeOptions<int64_t>& options, int64_t length,
                          int64_t limit, RopeIndex& index) {
  const auto& cu_seqlens = *options.cu_seqlens;
  const int64_t sequences = cu_seqlens.size(0) - 1, stride = cu_seqlens.stride(0);
  int64_t begin = read_index(cu_seqlens, 0);
  POSENC_CHECK_VALUE(begin == 0, op, "cu_seqlens must start with 0, got ", begin);
  index.rows.reserve(static_cast<size_t>(length));
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t end = read_index(cu_seqlens, (i + 1) * stride);
    POSENC_CHECK_VALUE(end >= begin && end <= length, op,
                       "cu_seqlens must not decrease, nor pass T = ", length, ", got ", end,
                       " after ", begin);
    append_run(op, "cu_seqlens", index.rows, read_offset(options, i), end - begin, limit);
    begin = end;
  }
  POSENC_CHECK_VALUE(begin == length, op, "cu_seqlens must end with T = ", length, ", got ", begin);
}

}  // namespace

RopeIndex rope_index(const char* op, const RopeOptions<int64_t>& options, int64_t batch,
                     int64_t length) {
  RopeIndex index{{}, 0};
  if (options.cos.dim() == 3) {
    append_run(op, "cos", index.rows, 0, length, length);
    return index;
  }
  const int64_t limit = options.cos.size(0);
  if (options.positions) {
    rows_from_positions(op, *options.positions, limit, index);
  } else if (options.cu_seqlens) {
    rows_from_cu_seqlens(op, options, length, limit, index);
  } else if (options.offsets && options.offsets->dim() == 1) {
    index.batch_step = length;
    for (int64_t b = 0; b < batch; ++b)
      append_run(op, "offset", index.rows, read_offset(options, b), length, limit);
  } else {
    append_run(op, "offset", index.rows, read_offset(options, 0), length, limit);
  }
  return index;
}

}  // namespace posenc
