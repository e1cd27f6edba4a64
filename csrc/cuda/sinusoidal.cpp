// The sinusoidal ops on CUDA: check, allocate, one launch.
#include "sinusoidal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "cuda/launch.h"
#include "cuda/table_positions.h"

namespace posenc {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor sinusoidal_frequencies(const Tensor& like, int64_t count, double base, double denominator) {
  check_sinusoidal_rule(count, base, denominator);
  Tensor result = at::empty({count}, like.options().dtype(at::kDouble));
  std::vector<double> values = first_frequencies(count, base, denominator);
  for (auto i = static_cast<int64_t>(values.size()); i < count; ++i)
    values.push_back(sinusoidal_frequency(i, base, denominator));
  launch_on_device_of(result, [&](cudaStream_t stream) {
    launch_write_doubles(values.data(), count, result.mutable_data_ptr<double>(), stream);
  });
  return result;
}

// Where the columns of a row of `dim` stand: see sinusoidal.h.
void set_columns(TableCall& call, int64_t dim, bool interleaved, bool cos_first) {
  const int64_t second = interleaved ? 1 : call.n;
  call.cos = cos_first ? 0 : second;
  call.sin = cos_first ? second : 0;
  call.step = interleaved ? 2 : 1;
  call.pairs = dim / 2;
  call.zero = dim > 2 * call.n ? dim - 1 : -1;
}

Tensor sinusoidal_table(const Tensor& positions, const Tensor& frequencies, int64_t dim,
                        bool interleaved, bool cos_first, at::ScalarType dtype) {
  const auto sizes = check_sinusoidal_table<int64_t>(positions, frequencies, dim, dtype);
  Tensor table = at::empty(sizes, positions.options().dtype(dtype));
  if (table.numel() == 0) return table;
  const Tensor dense = positions.contiguous();
  TableCall call = table_call(dense, frequencies);
  set_columns(call, dim, interleaved, cos_first);
  call.out = {table.mutable_data_ptr(), 0, 0, dim, 1};
  call.sin_data = call.out.data;
  launch_on_device_of(table,
                      [&](cudaStream_t stream) { launch_table(call, rope_dtype(dtype), stream); });
  return table;
}

// x or the result; the entries of a group share their positions. Strides of single entries do not
// matter; as 0 they do not stand in the way of 16-byte access.
TableOperand operand(const Tensor& t, void* data, int64_t groups) {
  const auto stride = [&](int64_t d) { return t.size(d) > 1 ? t.stride(d) : 0; };
  const int64_t batch = t.dim() == 3 ? stride(0) : 0;
  return {data, groups > 1 ? batch : 0, groups > 1 ? 0 : batch, stride(-2),
          t.size(-1) > 1 ? t.stride(-1) : 1};
}

Tensor add_sinusoidal(const Tensor& x, const Tensor& frequencies, const OptionalTensor& offsets,
                      int64_t offset, double scale, bool interleaved, bool cos_first) {
  check_add_sinusoidal<int64_t>(x, frequencies, offsets, scale);
  if (!offsets) check_sinusoidal_offset(offset);
  Tensor out = at::empty_strided(x.sizes(), output_strides<int64_t>(x), x.options());
  if (out.numel() == 0) return out;
  const int64_t batch = x.dim() == 3 ? x.size(0) : 1;
  TableCall call{};
  if (offsets) {
    call.positions.firsts = offsets->const_data_ptr();
    call.positions.firsts_step = offsets->dim() == 1 ? offsets->stride(0) : 0;
    call.positions.wide = offsets->scalar_type() == at::kLong;
  }
  call.positions.first = offset;
  call.groups = offsets && offsets->dim() == 1 ? batch : 1;
  call.entries = batch / call.groups;
  call.rows = x.size(-2);
  call.frequencies = frequencies.const_data_ptr<double>();
  call.frequency_step = frequencies.stride(0);
  call.n = frequencies.numel();
  call.factor = 1;
  call.scale = scale;
  set_columns(call, x.size(-1), interleaved, cos_first);
  call.out = operand(out, out.mutable_data_ptr(), call.groups);
  call.sin_data = call.out.data;
  call.x = operand(x, const_cast<void*>(x.const_data_ptr()), call.groups);
  launch_on_device_of(
      x, [&](cudaStream_t stream) { launch_add_table(call, rope_dtype(x.scalar_type()), stream); });
  return out;
}

POSENC_CUDA_LIBRARY(m) {
  m.impl("sinusoidal_frequencies", sinusoidal_frequencies);
  m.impl("sinusoidal_table", sinusoidal_table);
  m.impl("add_sinusoidal", add_sinusoidal);
}

}  // namespace
}  // namespace posenc
