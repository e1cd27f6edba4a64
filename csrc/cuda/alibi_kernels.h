// The kernels of alibi, as the torch side calls them. Torch-free.
#pragma once

#include <cstdint>

#include "cuda/runtime.h"
#include "half.h"

namespace posenc {

// Data of [B, H, Q, K], or of [H, Q, K] for any batch. Strides in elements.
struct AlibiCudaOperand {
  const void* data;
  int64_t batch, head, row, key;
};

// Slopes [H] or [B, H] of any dtype.
struct AlibiCudaSlopes {
  const void* data;
  RopeDtype type;
  int64_t batch, head;
};

// [B, K]; data is null for one that was not given.
struct AlibiCudaKeys {
  const void* data;
  bool wide;  // int64, else int32; of key_positions
  int64_t batch, key;
};

struct AlibiCall {
  AlibiCudaOperand x;     // scores; for the gradients, the probabilities y
  AlibiCudaOperand grad;  // the gradient of the result, for the gradients
  AlibiCudaOperand out;
  AlibiCudaSlopes slopes;
  AlibiCudaKeys key_positions, keep;  // keep: bytes, 0 for a masked key
  int64_t batch, heads;
  int q_len, k_len;  // below 2^30
  bool causal;
  double scale;
};

void launch_alibi_bias(const AlibiCall& call, RopeDtype type, cudaStream_t stream);
void launch_add_alibi(const AlibiCall& call, RopeDtype type, cudaStream_t stream);
void launch_alibi_softmax(const AlibiCall& call, RopeDtype type, cudaStream_t stream);
void launch_alibi_softmax_grad(const AlibiCall& call, RopeDtype type, cudaStream_t stream);

// The gradients of `call.slopes`, written to `grads`, [H] or [B, H] and dense. `sums` is scratch
// for one double per tile: alibi_tile_rows (alibi.h) query rows of one head.
struct AlibiSlopeGrads {
  void* grads;
  double* sums;
  int tile_rows;
  bool softmax;  // of alibi_softmax, with y in call.x
};
void launch_alibi_slope_grad(const AlibiCall& call, const AlibiSlopeGrads& to, RopeDtype type,
                             cudaStream_t stream);

}  // namespace posenc
