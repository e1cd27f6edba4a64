// Which table row each token of a rope call reads, with every bound checked.
#pragma once

#include <c10/util/SmallVector.h>

#include "rope.h"

namespace posenc {

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
