// rope and apply_rope on CUDA: the arguments as the kernel wants them, and one launch.
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/rope_kernels.h"
#include "rope_ops.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

RopeIndexTensor index_tensor(const OptionalTensor& t) {
  if (!t) return {};
  const int64_t batch = t->dim() == 2 && t->size(0) > 1 ? t->stride(0) : 0;
  return {t->const_data_ptr(), t->scalar_type() == at::kLong, batch,
          t->dim() == 0 ? 0 : t->stride(-1)};
}

RopeCudaTable cuda_table(const Tensor& t) {
  return {t.const_data_ptr(), rope_dtype(t.scalar_type()),
          t.dim() == 3 && t.size(0) > 1 ? t.stride(0) : 0, t.stride(-2), t.stride(-1)};
}

// What can be told of the rows without reading them; the rest is asserted on the device.
RopeRowSource row_source(const char* op, const RopeOptions<int64_t>& options, int64_t length) {
  const int64_t rows = options.cos.size(-2);
  if (options.cu_seqlens)
    POSENC_CHECK_VALUE(options.cu_seqlens->size(0) > 1, op, "cu_seqlens must end with T = ", length,
                       ", got one element");
  POSENC_CHECK_INDEX(rows > 0, op, "cos must have a row for each of the S = ", length,
                     " positions, got L = 0");
  return {.positions = index_tensor(options.positions),
          .offsets = index_tensor(options.offsets),
          .cu_seqlens = index_tensor(options.cu_seqlens),
          .offset = options.offset,
          .sequences = options.cu_seqlens ? options.cu_seqlens->size(0) - 1 : 0,
          .length = length,
          .rows = rows};
}

struct OnCuda {
  static void prepare(const Tensor&) {}

  static void rotate(const char* op, const Tensor& like, c10::ArrayRef<RopeOperand> operands,
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
    call.source = row_source(op, options, length);
    call.batch = operands[0].batch, call.dim = dim, call.pairs = options.cos.size(-1);
    call.inverse = options.inverse;
    launch_on_device_of(like, [&](cudaStream_t stream) {
      launch_rope(call, rope_dtype(like.scalar_type()), options.interleaved, stream);
    });
  }
};

POSENC_CUDA_LIBRARY(m) { RopeOps<OnCuda>::add_to(m); }

}  // namespace
}  // namespace posenc
