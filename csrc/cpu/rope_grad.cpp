// Gradient of rope with respect to cos and sin on CPU:
//
//   dcos = sum(gu*u + gv*v)      dsin = sum(gv*u - gu*v)
//
// over every token and head that used the row. Rows are independent; within a row the terms are
// added in double, in the order of batch, token, head, so the result does not depend on the thread
// count.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "cpu/parallel.h"
#include "cpu/rope_index.h"
#include "cpu/rope_rows.h"
#include "rope.h"
#include "rope_types.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Tokens grouped by the table row that they read: those of row r are
// tokens[start[r] .. start[r + 1]), as batch * length + token.
struct TokensByRow {
  std::vector<int64_t> start, tokens;

  TokensByRow(const RopeIndex& index, int64_t batch, int64_t length, int64_t rows, bool batched)
      : start(rows + 1, 0), tokens(batch * length) {
    const auto row_of = [&](int64_t b, int64_t s) {
      return *index.of(b, s) + (batched ? b * length : 0);
    };
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t s = 0; s < length; ++s) ++start[row_of(b, s) + 1];
    for (int64_t r = 0; r < rows; ++r) start[r + 1] += start[r];
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t s = 0; s < length; ++s) tokens[next[row_of(b, s)]++] = b * length + s;
  }
};

template <class T>
void store(const std::vector<double>& sums, void* out, int64_t row, int64_t pairs) {
  T* to = static_cast<T*>(out) + row * pairs;
  for (int64_t i = 0; i < pairs; ++i) narrow(sums[i], to[i]);
}

void store(at::ScalarType type, const std::vector<double>& sums, void* out, int64_t row,
           int64_t pairs) {
  switch (rope_dtype(type)) {
    case RopeDtype::f32:
      return store<float>(sums, out, row, pairs);
    case RopeDtype::f64:
      return store<double>(sums, out, row, pairs);
    case RopeDtype::bf16:
      return store<bf16>(sums, out, row, pairs);
    case RopeDtype::f16:
      return store<f16>(sums, out, row, pairs);
  }
}

std::tuple<Tensor, Tensor> rope_table_grad(const Tensor& grad, const Tensor& x, const Tensor& cos,
                                           const Tensor& sin, const OptionalTensor& positions,
                                           const OptionalTensor& offsets,
                                           const OptionalTensor& cu_seqlens, int64_t offset,
                                           c10::string_view layout, bool interleaved, bool inverse,
                                           bool interleaved_out) {
  const char* op = "rope_table_grad";
  const RopeOptions<int64_t> options{cos,    sin,    positions,   offsets, cu_seqlens,
                                     offset, layout, interleaved, inverse, interleaved_out};
  const RopeAxes axes = check_rope_table_grad(op, grad, x, options);
  const auto size = [&](int axis) { return axis < 0 ? 1 : x.size(axis); };
  const auto stride = [](const Tensor& t, int axis) { return axis < 0 ? 0 : t.stride(axis); };
  const int64_t batch = size(axes.batch), length = size(axes.seq), heads = size(axes.heads);
  const int64_t pairs = cos.size(-1);
  const bool batched = cos.dim() == 3 && cos.size(0) > 1;
  const int64_t rows = cos.dim() == 3 ? cos.size(0) * cos.size(1) : cos.size(0);
  const RopeIndex index = rope_index(op, options, batch, length);

  Tensor dcos = at::empty(cos.sizes(), cos.options()), dsin = at::empty(sin.sizes(), sin.options());
  const TokensByRow tokens(index, batch, length, rows, batched);
  const auto kernel = rope_rows(current_isa())
                          .of[static_cast<int>(rope_dtype(x.scalar_type()))]
                          .table_grad[interleaved][interleaved_out];
  const auto at = [&](const Tensor& t, int64_t token) {
    return static_cast<const char*>(t.const_data_ptr()) +
           (token / length * stride(t, axes.batch) + token % length * stride(t, axes.seq)) *
               t.element_size();
  };
  const int64_t work = std::max<int64_t>(1, x.numel() / std::max<int64_t>(rows, 1));
  parallel_for(0, rows, std::max<int64_t>(1, 32768 / work), [&](int64_t begin, int64_t end) {
    std::vector<double> dcos_row(pairs), dsin_row(pairs);
    RopeGradRow row{};
    row.heads = heads, row.pairs = pairs;
    row.grad_head = stride(grad, axes.heads), row.grad_dim = grad.stride(-1);
    row.x_head = stride(x, axes.heads), row.x_dim = x.stride(-1);
    row.dcos = dcos_row.data(), row.dsin = dsin_row.data();
    for (int64_t r = begin; r < end; ++r) {
      std::fill(dcos_row.begin(), dcos_row.end(), 0.0);
      std::fill(dsin_row.begin(), dsin_row.end(), 0.0);
      for (int64_t i = tokens.start[r]; i < tokens.start[r + 1]; ++i) {
        row.grad = at(grad, tokens.tokens[i]);
        row.x = at(x, tokens.tokens[i]);
        kernel(row);
      }
      if (inverse) {
        for (double& value : dsin_row) value = -value;
      }
      store(cos.scalar_type(), dcos_row, dcos.mutable_data_ptr(), r, pairs);
      store(sin.scalar_type(), dsin_row, dsin.mutable_data_ptr(), r, pairs);
    }
  });
  return {dcos, dsin};
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) { m.impl("rope_table_grad", rope_table_grad); }

}  // namespace
}  // namespace posenc
