// Which table row each token of a rope call reads, with every bound checked.
#pragma once

#include <c10/util/SmallVector.h>

#include "rope.h"

namespace posenc {

// One element of an int32 or int64 tensor, at an offset in elements.
inline int64_t read_index(const at::Tensor& t, int64_t at) {
  return t.scalar_type() == at::kInt ? static_cast<const int32_t*>(t.const_data_ptr())[at]
                                     : static_cast<const int64_t*>(t.const_data_ptr())[at];
}

// Row numbers [batch or 1, length]. For a per-token table the row of token s is s.
struct RopeIndex {
  c10::SmallVector<int64_t, 8> rows;
  int64_t batch_step;  // 0 when all batch entries share their rows

  const int64_t* of(int64_t batch, int64_t token) const {
    return rows.data() + batch * batch_step + token;
  }
};

// IndexError for a row outside the table, ValueError for a malformed cu_seqlens; nothing is read
// outside the index tensors.
RopeIndex rope_index(const char* op, const RopeOptions<int64_t>& options, int64_t batch,
                     int64_t length);

}  // namespace posenc
