// The sinusoidal ops on meta tensors: the checks of the kernels, and outputs without data.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "sinusoidal.h"

namespace posenc {
namespace {

using at::Tensor;
using c10::SymInt;

Tensor sinusoidal_frequencies(const Tensor& like, SymInt count, double base, double denominator) {
  check_sinusoidal_rule(count, base, denominator);
  return at::empty_symint({count}, like.options().dtype(at::kDouble));
}

Tensor sinusoidal_table(const Tensor& positions, const Tensor& frequencies, SymInt dim, bool, bool,
                        at::ScalarType dtype) {
  const auto sizes = check_sinusoidal_table<SymInt>(positions, frequencies, dim, dtype);
  return at::empty_symint(sizes, positions.options().dtype(dtype));
}

Tensor add_sinusoidal(const Tensor& x, const Tensor& frequencies,
                      const std::optional<Tensor>& offsets, SymInt offset, double scale, bool,
                      bool) {
  check_add_sinusoidal<SymInt>(x, frequencies, offsets, scale);
  if (!offset.is_symbolic()) check_sinusoidal_offset(offset.guard_int(__FILE__, __LINE__));
  return at::empty_strided_symint(x.sym_sizes(), output_strides<SymInt>(x), x.options());
}

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) {
  m.impl("sinusoidal_frequencies", sinusoidal_frequencies);
  m.impl("sinusoidal_table", sinusoidal_table);
  m.impl("add_sinusoidal", add_sinusoidal);
}

}  // namespace
}  // namespace posenc
