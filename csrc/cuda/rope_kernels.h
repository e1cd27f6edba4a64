// The kernels of rope, as the torch side calls them. Torch-free.
#pragma once

#include <cstdint>

#include "cuda/runtime.h"
#include "half.h"
#include "rope_operand.h"

namespace posenc {

// positions, offsets or cu_seqlens; data is null for one that was not given.
struct RopeIndexTensor {
  const void* data;
  bool wide;            // int64, else int32
  int64_t batch, step;  // strides in elements
};

// Which table row each token reads; see table_row() in rope_rows.cuh.
struct RopeRowSource {
  RopeIndexTensor positions, offsets, cu_seqlens;
  int64_t offset;     // without offsets
  int64_t sequences;  // N of cu_seqlens
  int64_t length;     // tokens of a batch entry
  int64_t rows;       // of the table
};

// cos or sin. batch is 0 for a table that all batch entries share.
struct RopeCudaTable {
  const void* data;
  RopeDtype type;
  int64_t batch, row, column;  // strides in elements
};

// Are the channels of a pair neighbours, in what is read and in what is written (or in grad)?
struct RopePairing {
  bool x, out;
};

// Where x and out are one, so are their pairings: a pair then stays in its place.
struct RopeCall {
  RopeOperand q, k;  // k.heads is 0 when there is one operand only
  RopeCudaTable cos, sin;
  RopeRowSource source;
  int64_t batch, dim, pairs;  // pairs = R/2
  bool inverse;
};

// grad and x share their sizes. dcos and dsin are contiguous, of the dtype `table`.
struct RopeTableGradCall {
  const char *grad, *x;
  int64_t grad_batch, grad_token, grad_head, grad_dim, x_batch, x_token, x_head, x_dim;
  int64_t batch, heads, pairs;
  RopeRowSource source;  // source.rows counts the rows of one batch entry of the table
  bool batched;          // the table has rows for each batch entry
  bool inverse;
  // The row of every token in ascending order, and those tokens as batch * length + token, equal
  // rows in order of token; null when each token of a batch entry reads the row after the last.
  const int64_t *sorted_rows, *tokens;
  void *dcos, *dsin;
  RopeDtype table;
};

void launch_rope(const RopeCall& call, RopeDtype type, RopePairing pairing, cudaStream_t stream);

// The table row of every token, [batch, length].
void launch_rope_rows(const RopeRowSource& source, int64_t batch, int64_t* rows,
                      cudaStream_t stream);
void launch_rope_table_grad(const RopeTableGradCall& call, RopeDtype type, RopePairing pairing,
                            cudaStream_t stream);

}  // namespace posenc
