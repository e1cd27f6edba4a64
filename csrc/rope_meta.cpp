// rope on meta tensors: the checks of the kernels, and outputs of the same sizes and strides
// without data. Sizes are symbolic, so tracing under any length stays one graph.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "overlap.h"
#include "rope.h"

namespace posenc {
namespace {

using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

Tensor empty_output(const Tensor& x) {
  return at::empty_strided_symint(x.sym_sizes(), output_strides<SymInt>(x), x.options());
}

// Without data only an overlap of a tensor with itself can be told, and only for known sizes.
void check_writable_meta(const char* op, const char* name, const Tensor& t) {
  if (!t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) check_writable(op, name, t);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
            const OptionalTensor& offsets, const OptionalTensor& cu_seqlens, SymInt offset,
            c10::string_view layout, bool interleaved, bool inverse, bool interleaved_out) {
  const RopeOptions<SymInt> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                    offset, layout, interleaved, inverse, interleaved_out};
  check_rope("rope", {"x", x}, options);
  return empty_output(x);
}

void rope_(const Tensor& x, const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
           const OptionalTensor& offsets, const OptionalTensor& cu_seqlens, SymInt offset,
           c10::string_view layout, bool interleaved, bool inverse, bool interleaved_out) {
  const RopeOptions<SymInt> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                    offset, layout, interleaved, inverse, interleaved_out};
  check_rope("rope", {"x", x}, options);
  check_writable_meta("rope", "x", x);
}

void rope_out(const Tensor& x, const Tensor& cos, const Tensor& sin,
              const OptionalTensor& positions, const OptionalTensor& offsets,
              const OptionalTensor& cu_seqlens, SymInt offset, c10::string_view layout,
              bool interleaved, bool inverse, bool interleaved_out, const Tensor& out) {
  const RopeOptions<SymInt> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                    offset, layout, interleaved, inverse, interleaved_out};
  check_rope("rope", {"x", x}, options);
  check_rope_out<SymInt>("rope", x, out);
  check_writable_meta("rope", "out", out);
}

std::tuple<Tensor, Tensor> apply_rope(const Tensor& q, const Tensor& k, const Tensor& cos,
                                      const Tensor& sin, const OptionalTensor& positions,
                                      const OptionalTensor& offsets,
                                      const OptionalTensor& cu_seqlens, SymInt offset,
                                      c10::string_view layout, bool interleaved, bool inverse,
                                      bool interleaved_out) {
  const RopeOptions<SymInt> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                    offset, layout, interleaved, inverse, interleaved_out};
  check_apply_rope("apply_rope", q, k, options);
  return {empty_output(q), empty_output(k)};
}

void apply_rope_(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                 const OptionalTensor& positions, const OptionalTensor& offsets,
                 const OptionalTensor& cu_seqlens, SymInt offset, c10::string_view layout,
                 bool interleaved, bool inverse, bool interleaved_out) {
  const RopeOptions<SymInt> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                    offset, layout, interleaved, inverse, interleaved_out};
  check_apply_rope("apply_rope", q, k, options);
  check_writable_meta("apply_rope", "q", q);
  check_writable_meta("apply_rope", "k", k);
}

std::tuple<Tensor, Tensor> rope_table_grad(const Tensor& grad, const Tensor& x, const Tensor& cos,
                                           const Tensor& sin, const OptionalTensor& positions,
                                           const OptionalTensor& offsets,
                                           const OptionalTensor& cu_seqlens, SymInt offset,
                                           c10::string_view layout, bool interleaved, bool inverse,
                                           bool interleaved_out) {
  const RopeOptions<SymInt> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                    offset, layout, interleaved, inverse, interleaved_out};
  check_rope_table_grad("rope_table_grad", grad, x, options);
  return {at::empty_symint(cos.sym_sizes(), cos.options()),
          at::empty_symint(sin.sym_sizes(), sin.options())};
}

TORCH_LIBRARY_IMPL(posenc_ext, Meta, m) {
  m.impl("rope", rope);
  m.impl("rope_", rope_);
  m.impl("rope_out", rope_out);
  m.impl("apply_rope", apply_rope);
  m.impl("apply_rope_", apply_rope_);
  m.impl("rope_table_grad", rope_table_grad);
}

}  // namespace
}  // namespace posenc
