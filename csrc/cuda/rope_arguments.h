// Checked arguments of the rope ops as the CUDA kernels want them.
#pragma once

#include "cuda/rope_kernels.h"
#include "rope.h"
#include "rope_types.h"

namespace posenc {

inline RopeIndexTensor index_tensor(const std::optional<at::Tensor>& t) {
  if (!t) return {};
  const int64_t batch = t->dim() == 2 && t->size(0) > 1 ? t->stride(0) : 0;
  return {t->const_data_ptr(), t->scalar_type() == at::kLong, batch,
          t->dim() == 0 ? 0 : t->stride(-1)};
}

inline RopeCudaTable cuda_table(const at::Tensor& t) {
  return {t.const_data_ptr(), rope_dtype(t.scalar_type()),
          t.dim() == 3 && t.size(0) > 1 ? t.stride(0) : 0, t.stride(-2), t.stride(-1)};
}

// What can be told of the rows without reading them; the rest is asserted on the device.
inline RopeRowSource row_source(const char* op, const RopeOptions<int64_t>& options, int64_t length,
                                int64_t batch) {
  const int64_t rows = options.cos.size(-2);
  if (batch * length > 0) {
    POSENC_CHECK_VALUE(!options.cu_seqlens || options.cu_seqlens->size(0) > 1, op,
                       "cu_seqlens must end with T = ", length, ", got one element");
    POSENC_CHECK_INDEX(rows > 0, op, "cos must have a row for each of the S = ", length,
                       " positions, got L = 0");
  }
  return {.positions = index_tensor(options.positions),
          .offsets = index_tensor(options.offsets),
          .cu_seqlens = index_tensor(options.cu_seqlens),
          .offset = options.offset,
          .sequences = options.cu_seqlens ? options.cu_seqlens->size(0) - 1 : 0,
          .length = length,
          .rows = rows};
}

}  // namespace posenc
