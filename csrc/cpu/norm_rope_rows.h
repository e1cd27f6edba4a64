// Row kernels of norm_rope: the torch-free inner loops, one copy per instruction set.
#pragma once

#include "cpu/rope_rows.h"
#include "norm_rope_rule.h"

namespace posenc {

constexpr int64_t kNormBatch =
    16;  // rows that are worked on together, unless all share a statistic

// The weights of one tensor, and where a task keeps rows on their way. Buffers are of the math
// type: float, or double for double x.
struct NormRows {
  NormRule rule;
  bool all;  // one statistic for all heads of a token
  const void*
      weight;        // [dim], or [heads * dim] if `all`; weight_offset is added, ones if not given
  const void* bias;  // like weight, zeros if not given
  void* scratch;     // norm_scratch(heads, dim, all) elements; none needed by a plain_norm
};

constexpr int64_t norm_scratch(int64_t heads, int64_t dim, bool all) {
  return ((all ? heads : kNormBatch) * 3 + 2) * dim;
}

// Are rows read, normalised and written as they stand?
constexpr bool plain_norm(const NormRule& rule, int64_t x_dim, int64_t out_dim) {
  return x_dim == 1 && out_dim == 1 && !rule.rope_first && !rule.round_between;
}

struct NormTile {
  RopeTile rope;
  NormRows norm;
};

// x and the tables of `rope`, whose out is the gradient of x; `grad` is that of the result.
struct NormGradTile {
  RopeTile rope;
  NormRows norm;
  const void* grad;
  int64_t grad_token, grad_head, grad_dim;
  double* dweight;  // like weight: added to, token by token and head by head; or null
  double* dbias;
};

struct NormKernels {
  // [interleaved][shifted]. Shifted: takes off the mean, or adds a bias.
  void (*norm[2][2])(const NormTile&);
  void (*grad[2])(const NormGradTile&);  // [interleaved]
};

struct NormRowsByType {
  NormKernels of[4];  // [RopeDtype]
};

const NormRowsByType& norm_rope_rows(Isa isa);

}  // namespace posenc
