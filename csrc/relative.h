// Arguments of the relative ops: what they must be, checked once for CPU, CUDA and meta tensors.
//
// What depends on query i and key j through j - i alone is read through an index of Q + K - 1
// entries, one for each distance: cell (i, j) belongs to entry j - i + Q - 1. An entry names a
// column t of a table, 0 <= t < T, or is -1 for none.
//
//   gather   out[i, j] = x[i, index[j - i + Q - 1]]                                    0 for none
//   scatter  out[i, t] = sum of y[i, j] over the j with index[j - i + Q - 1] == t
//
// Each is the adjoint of the other. A sum runs over 16 parts: y[i, j] is added to part j % 16, in
// the order of j and starting from +0, and the parts are added in pairs 8, 4, 2 and 1 apart. Sums
// are in float32 (float64 for float64) and rounded once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

#include "alibi.h"  // check_alibi_tensor, check_same_device
#include "checks.h"
#include "strides.h"

namespace posenc {

template <class Int>
void check_relative(const char* op, const char* name, const at::Tensor& x, const char* shape,
                    const at::Tensor& index) {
  check_alibi_tensor(op, name, x);
  check_allocated<Int>(op, name, x);
  POSENC_CHECK_VALUE(x.dim() >= 2, op, name, " must have shape ", shape, ", got ",
                     sizes_of<Int>(x));
  const auto type = index.scalar_type();
  POSENC_CHECK_TYPE(type == at::kInt || type == at::kLong, op, "index must be int32 or int64, got ",
                    type);
  check_same_device(op, "index", index, name, x);
  check_allocated<Int>(op, "index", index);
}

template <class Int>
void check_relative_index(const char* op, const at::Tensor& index, const Int& q_len,
                          const Int& k_len) {
  const auto given = sizes_of<Int>(index);
  POSENC_CHECK_VALUE(
      given.size() == 1 && (given[0] == q_len + k_len - 1 || (given[0] == 0 && q_len + k_len == 0)),
      op, "index must have shape [Q + K - 1] with Q = ", q_len, " and K = ", k_len, ", got ",
      given);
}

template <class Int>
c10::SmallVector<Int, 5> with_last_size(const at::Tensor& x, const Int& last) {
  const auto size = sizes_of<Int>(x);
  c10::SmallVector<Int, 5> result(size.begin(), size.end());
  result.back() = last;
  return result;
}

// Sizes of the result, [..., Q, K].
template <class Int>
c10::SmallVector<Int, 5> check_relative_gather(const at::Tensor& x, const at::Tensor& index,
                                               const Int& k_len) {
  const char* op = "relative_gather";
  check_relative<Int>(op, "x", x, "[..., Q, T]", index);
  POSENC_CHECK_VALUE(k_len >= 0, op, "k_len must be at least 0, got ", k_len);
  check_relative_index<Int>(op, index, sizes_of<Int>(x)[x.dim() - 2], k_len);
  return with_last_size<Int>(x, k_len);
}

// Sizes of the result, [..., Q, T].
template <class Int>
c10::SmallVector<Int, 5> check_relative_scatter(const at::Tensor& y, const at::Tensor& index,
                                                const Int& size) {
  const char* op = "relative_scatter";
  check_relative<Int>(op, "y", y, "[..., Q, K]", index);
  POSENC_CHECK_VALUE(size >= 0, op, "size must be at least 0, got ", size);
  const auto given = sizes_of<Int>(y);
  check_relative_index<Int>(op, index, given[y.dim() - 2], given[y.dim() - 1]);
  return with_last_size<Int>(y, size);
}

}  // namespace posenc
