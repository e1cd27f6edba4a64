// Arguments of rope_table: what they must be, checked once for CPU, CUDA and meta tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

#include "checks.h"
#include "rope.h"  // check_allocated
#include "strides.h"

namespace posenc {

// Returns the sizes of cos and sin, [..., n] for positions [...] and n frequencies.
template <class Int>
c10::SmallVector<Int, 4> check_rope_table_inputs(const at::Tensor& positions,
                                                 const at::Tensor& inv_freq, at::ScalarType dtype) {
  const char* op = "rope_table";
  const auto type = positions.scalar_type();
  POSENC_CHECK_TYPE(type == at::kInt || type == at::kLong || at::isFloatingType(type), op,
                    "positions must be int32, int64 or floating, got ", type);
  POSENC_CHECK_TYPE(positions.layout() == at::kStrided, op,
                    "positions must be a dense tensor, got ", positions.layout());
  POSENC_CHECK_TYPE(inv_freq.scalar_type() == at::kDouble, op, "inv_freq must be float64, got ",
                    inv_freq.scalar_type());
  POSENC_CHECK_TYPE(inv_freq.layout() == at::kStrided, op, "inv_freq must be a dense tensor, got ",
                    inv_freq.layout());
  POSENC_CHECK_VALUE(inv_freq.dim() == 1, op, "inv_freq must have shape [R/2], got ",
                     sizes_of<Int>(inv_freq));
  POSENC_CHECK_VALUE(inv_freq.device() == positions.device(), op,
                     "inv_freq must be on the device of positions (", positions.device(), "), got ",
                     inv_freq.device());
  check_allocated<Int>(op, "positions", positions);
  check_allocated<Int>(op, "inv_freq", inv_freq);
  POSENC_CHECK_TYPE(
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
      op, "dtype must be float32, float64, bfloat16 or float16, got ", dtype);
  const auto given = sizes_of<Int>(positions);
  c10::SmallVector<Int, 4> sizes(given.begin(), given.end());
  sizes.push_back(sizes_of<Int>(inv_freq)[0]);
  return sizes;
}

}  // namespace posenc
