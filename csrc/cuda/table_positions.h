// Positions in a tensor, as the kernels of tables want them.
#pragma once

#include <ATen/core/Tensor.h>

#include "cuda/table_kernels.h"
#include "rope_types.h"

namespace posenc {

// `positions` must be dense and outlive the launch.
inline TablePositions table_positions(const at::Tensor& positions) {
  const auto type = positions.scalar_type();
  TablePositions p{};
  p.data = positions.const_data_ptr();
  p.whole = !at::isFloatingType(type);
  p.wide = type == at::kLong;
  p.type = rope_dtype(type);
  return p;
}

// A call that fills a table of cos and sin of these positions, one per row.
inline TableCall table_call(const at::Tensor& positions, const at::Tensor& frequencies) {
  TableCall call{};
  call.positions = table_positions(positions);
  call.groups = call.entries = 1;
  call.rows = positions.numel();
  call.frequencies = frequencies.const_data_ptr<double>();
  call.frequency_step = frequencies.stride(0);
  call.n = call.pairs = frequencies.numel();
  call.factor = 1;
  call.zero = -1;
  call.step = 1;
  return call;
}

}  // namespace posenc
