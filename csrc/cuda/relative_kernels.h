// The kernels of the relative ops, as the torch side calls them. Torch-free.
#pragma once

#include <cstdint>

#include "cuda/runtime.h"
#include "half.h"

namespace posenc {

// Rows of a tensor [..., Q, N], counted in the order of its dimensions: where each starts.
struct RelativeRows {
  static constexpr int most = 6;
  int dims;                          // those that do not follow from the next one
  int64_t size[most], stride[most];  // outermost first, in elements
};

struct RelativeCall {
  const void* from;  // x of a gather, y of a scatter
  RelativeRows rows;
  int64_t step;  // from element to element of a row
  void* out;     // dense
  const void* index;
  bool wide;  // int64, else int32
  int64_t index_step;
  int64_t count, q_len, k_len, columns;  // rows in all; keys and columns of a row
};

void launch_relative_gather(const RelativeCall& call, int64_t item, cudaStream_t stream);
void launch_relative_scatter(const RelativeCall& call, RopeDtype type, cudaStream_t stream);

}  // namespace posenc
