// The kernels of norm_rope, as the torch side calls them. Torch-free.
#pragma once

#include "cuda/rope_kernels.h"
#include "norm_rope_rule.h"

namespace posenc {

// A tensor with its weights. Of a weight or bias only data (null for none), type and column count.
struct NormCudaOperand {
  RopeOperand rope;
  RopeCudaTable weight, bias;
};

struct NormCall {
  NormCudaOperand q, k;  // k.rope.heads is 0 when there is one operand only
  RopeCudaTable cos, sin;
  RopeRowSource source;
  int64_t dim, pairs;
  NormRule rule;
  double weight_offset;
  bool inverse, all;  // all: one statistic for all heads of a token
};

// q is the tensor, whose out is its gradient; k is not used.
struct NormGradCall {
  NormCall norm;
  const char* grad;
  int64_t grad_batch, grad_token, grad_head, grad_dim;
  // Of each group of rows (mean, scale), in the math type: written, then read for the parameters.
  void* statistics;
  double *weight_sums, *bias_sums;  // [tiles, size], null for one that is not wanted
  void *dweight, *dbias;
  RopeDtype weight_type, bias_type;
};

void launch_norm_rope(const NormCall& call, RopeDtype type, bool interleaved, cudaStream_t stream);
void launch_norm_rope_grad(const NormGradCall& call, RopeDtype type, bool interleaved,
                           cudaStream_t stream);

}  // namespace posenc
