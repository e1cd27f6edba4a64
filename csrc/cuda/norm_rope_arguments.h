// The arguments of a norm as the kernels want them.
#pragma once

#include "cuda/norm_rope_kernels.h"
#include "cuda/rope_arguments.h"
#include "norm_rope.h"

namespace posenc {

inline NormCudaOperand norm_operand(const RopeOperand& rope, const NormInput& in) {
  const auto parameter = [](const std::optional<at::Tensor>& t) -> RopeCudaTable {
    if (!t) return {};
    return {t->const_data_ptr(), rope_dtype(t->scalar_type()), 0, 0, t->stride(0)};
  };
  return {rope, parameter(in.weight), parameter(in.bias)};
}

// A call with one operand.
inline NormCall norm_call(const char* op, const NormCudaOperand& operand, int64_t dim,
                          const NormOptions& norm, const RopeOptions<int64_t>& options,
                          int64_t length) {
  NormCall call{};
  call.q = operand;
  call.cos = cuda_table(options.cos), call.sin = cuda_table(options.sin);
  call.source = row_source(op, options, length, operand.rope.batch);
  call.dim = dim, call.pairs = options.cos.size(-1);
  call.rule = check_norm_options(op, norm);
  call.weight_offset = norm.weight_offset;
  call.inverse = options.inverse, call.all = norm.norm_dims == "all";
  return call;
}

}  // namespace posenc
