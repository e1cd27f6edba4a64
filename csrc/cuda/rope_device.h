// The rotation on CUDA: the arguments as the kernel wants them, and one launch.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/rope_arguments.h"
#include "rope_operand.h"

namespace posenc {

struct OnCuda {
  static constexpr bool kReordersInPlace = false;  // threads share out the pairs of a row
  static void prepare(const at::Tensor&) {}

  static void rotate(const char* op, const at::Tensor& like, c10::ArrayRef<RopeOperand> operands,
                     const RopeOptions<int64_t>& options) {
    const int64_t dim = like.size(-1);
    int64_t length = 0, elements = 0;
    for (const auto& o : operands) {
      length = std::max(length, o.tokens);
      elements += o.batch * o.tokens * o.heads * dim;
    }
    if (elements == 0) return;
    RopeCall call{};
    call.q = operands[0];
    if (operands.size() > 1) call.k = operands[1];
    call.cos = cuda_table(options.cos), call.sin = cuda_table(options.sin);
    call.source = row_source(op, options, length, operands[0].batch);
    call.batch = operands[0].batch, call.dim = dim, call.pairs = options.cos.size(-1);
    call.inverse = options.inverse;
    launch_on_device_of(like, [&](cudaStream_t stream) {
      launch_rope(call, rope_dtype(like.scalar_type()),
                  {options.interleaved, options.interleaved_out}, stream);
    });
  }
};

}  // namespace posenc
