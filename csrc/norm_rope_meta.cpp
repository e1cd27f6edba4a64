// norm_rope on meta tensors: the checks of the kernels, and outputs of the same sizes and strides
// without data.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "norm_rope_ops.h"

namespace posenc {
namespace {

struct OnMeta {
  using Int = c10::SymInt;
  static constexpr bool fake = true;

  static at::Tensor empty(const at::Tensor& x) {
    return at::empty_strided_symint(x.sym_sizes(), output_strides<Int>(x), x.options());
  }
  template <class... Arguments>
  static void run(const Arguments&...) {}
  template <class... Arguments>
  static void grad(const Arguments&...) {}
};

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) { NormRopeOps<OnMeta>::add_to(m); }

}  // namespace
}  // namespace posenc
