// Arguments of the alibi ops: what they must be, checked once for CPU, CUDA and meta tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "checks.h"
#include "rope.h"  // check_allocated
#include "strides.h"

namespace posenc {

inline bool alibi_dtype(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

inline void check_alibi_tensor(const char* op, const char* name, const at::Tensor& t) {
  POSENC_CHECK_TYPE(alibi_dtype(t.scalar_type()), op, name,
                    " must be float32, float64, bfloat16 or float16, got ", t.scalar_type());
}

inline void check_same_device(const char* op, const char* name, const at::Tensor& t,
                              const char* other_name, const at::Tensor& other) {
  POSENC_CHECK_VALUE(t.device() == other.device(), op, name, " must be on the device of ",
                     other_name, " (", other.device(), "), got ", t.device());
}

// slopes [H] or [B, H]. `type` is the dtype of the bias or the scores that they go into.
template <class Int>
void check_slopes(const char* op, const at::Tensor& slopes, at::ScalarType type) {
  const auto given = slopes.scalar_type();
  POSENC_CHECK_TYPE(
      alibi_dtype(given) && (given != at::kDouble || type == at::kDouble), op,
      "slopes must be float32, bfloat16 or float16 (or float64 for a float64 result), got ", given);
  POSENC_CHECK_VALUE(slopes.dim() == 1 || slopes.dim() == 2, op,
                     "slopes must have shape [H] or [B, H], got ", sizes_of<Int>(slopes));
  check_allocated<Int>(op, "slopes", slopes);
}

// Distances are formed from 32-bit integers.
template <class Int>
void check_lengths(const char* op, const Int& q_len, const Int& k_len) {
  POSENC_CHECK_VALUE(q_len >= 0, op, "q_len must be at least 0, got ", q_len);
  POSENC_CHECK_VALUE(k_len >= 0, op, "k_len must be at least 0, got ", k_len);
  if constexpr (std::is_same_v<Int, c10::SymInt>) {
    if (q_len.is_symbolic() || k_len.is_symbolic()) return;  // would bound the traced length
  }
  POSENC_CHECK_VALUE(q_len < (1 << 30), op, "q_len must be below 2^30, got ", q_len);
  POSENC_CHECK_VALUE(k_len < (1 << 30), op, "k_len must be below 2^30, got ", k_len);
}

// scores [B, H, Q, K], under the name that the caller knows, with slopes [H] or [B, H].
template <class Int>
void check_scores(const char* op, const char* name, const at::Tensor& scores) {
  check_alibi_tensor(op, name, scores);
  check_allocated<Int>(op, name, scores);
  const auto size = sizes_of<Int>(scores);
  POSENC_CHECK_VALUE(size.size() == 4, op, name, " must have shape [B, H, Q, K], got ", size);
  check_lengths<Int>(op, size[2], size[3]);
}

template <class Int>
void check_scores(const char* op, const at::Tensor& scores, const at::Tensor& slopes) {
  check_scores<Int>(op, "scores", scores);
  check_slopes<Int>(op, slopes, scores.scalar_type());
  check_same_device(op, "slopes", slopes, "scores", scores);
  const auto size = sizes_of<Int>(scores), given = sizes_of<Int>(slopes);
  POSENC_CHECK_VALUE(given.back() == size[1] && (given.size() == 1 || given[0] == size[0]), op,
                     "slopes must have shape [H] or [B, H] with B = ", size[0],
                     " and H = ", size[1], ", got ", given);
}

// key_padding_mask [B, K]
template <class Int>
void check_key_padding_mask(const char* op, const at::Tensor& scores,
                            const std::optional<at::Tensor>& mask) {
  if (!mask) return;
  POSENC_CHECK_TYPE(mask->scalar_type() == at::kBool, op,
                    "key_padding_mask must be bool (True = keep), got ", mask->scalar_type());
  check_same_device(op, "key_padding_mask", *mask, "scores", scores);
  check_allocated<Int>(op, "key_padding_mask", *mask);
  const auto size = sizes_of<Int>(scores), given = sizes_of<Int>(*mask);
  POSENC_CHECK_VALUE(given.size() == 2 && given[0] == size[0] && given[1] == size[3], op,
                     "key_padding_mask must have shape [B, K] = [", size[0], ", ", size[3],
                     "], got ", given);
}

// key_positions [B, K], the positions of the keys; a query then stands at one of them.
template <class Int>
void check_key_positions(const char* op, const at::Tensor& slopes, const Int& q_len,
                         const Int& k_len, const std::optional<at::Tensor>& positions) {
  if (!positions) return;
  POSENC_CHECK_TYPE(positions->scalar_type() == at::kInt || positions->scalar_type() == at::kLong,
                    op, "key_positions must be int32 or int64, got ", positions->scalar_type());
  check_same_device(op, "key_positions", *positions, "slopes", slopes);
  check_allocated<Int>(op, "key_positions", *positions);
  const auto given = sizes_of<Int>(*positions), heads = sizes_of<Int>(slopes);
  POSENC_CHECK_VALUE(given.size() == 2 && given[1] == k_len, op,
                     "key_positions must have shape [B, K] with K = ", k_len, ", got ", given);
  POSENC_CHECK_VALUE(heads.size() == 1 || given[0] == heads[0], op,
                     "key_positions must have the batch size of slopes, ", heads, ", got ", given);
  POSENC_CHECK_VALUE(q_len <= k_len, op,
                     "q_len must not exceed k_len with key_positions (queries are the last keys), "
                     "got q_len = ",
                     q_len, " and k_len = ", k_len);
}

// Sizes of the bias: [H, Q, K], or [B, H, Q, K] when slopes or positions have a batch.
template <class Int>
c10::SmallVector<Int, 4> check_alibi_bias(const char* op, const at::Tensor& slopes,
                                          const Int& q_len, const Int& k_len, at::ScalarType dtype,
                                          const std::optional<at::Tensor>& key_positions) {
  POSENC_CHECK_TYPE(alibi_dtype(dtype), op,
                    "dtype must be float32, float64, bfloat16 or float16, got ", dtype);
  check_slopes<Int>(op, slopes, dtype);
  check_lengths<Int>(op, q_len, k_len);
  check_key_positions<Int>(op, slopes, q_len, k_len, key_positions);
  const auto given = sizes_of<Int>(slopes);
  c10::SmallVector<Int, 4> size;
  if (given.size() == 2)
    size.push_back(given[0]);
  else if (key_positions)
    size.push_back(sizes_of<Int>(*key_positions)[0]);
  size.push_back(given.back());
  size.push_back(q_len);
  size.push_back(k_len);
  return size;
}

// A gradient of the bias or of the scores, [H, Q, K] or [B, H, Q, K].
template <class Int>
void check_slope_grad(const char* op, const at::Tensor& grad, const at::Tensor& slopes,
                      const std::optional<at::Tensor>& key_positions) {
  check_alibi_tensor(op, "grad", grad);
  check_slopes<Int>(op, slopes, grad.scalar_type());
  check_same_device(op, "grad", grad, "slopes", slopes);
  check_allocated<Int>(op, "grad", grad);
  const auto size = sizes_of<Int>(grad), given = sizes_of<Int>(slopes);
  const auto rank = static_cast<int64_t>(size.size());
  POSENC_CHECK_VALUE(rank == 3 || rank == 4, op,
                     "grad must have shape [H, Q, K] or [B, H, Q, K], got ", size);
  check_lengths<Int>(op, size[rank - 2], size[rank - 1]);
  POSENC_CHECK_VALUE(
      given.back() == size[rank - 3] && (given.size() == 1 || (rank == 4 && given[0] == size[0])),
      op, "slopes must have the batch and heads of grad, ", size, ", got ", given);
  check_key_positions<Int>(op, slopes, size[rank - 2], size[rank - 1], key_positions);
  POSENC_CHECK_VALUE(!key_positions || (rank == 4 && sizes_of<Int>(*key_positions)[0] == size[0]),
                     op, "key_positions must have the batch size of grad, ", size, ", got ",
                     sizes_of<Int>(*key_positions));
}

// The probabilities y and their gradient, both [B, H, Q, K].
template <class Int>
void check_softmax_grad(const char* op, const at::Tensor& grad, const at::Tensor& y) {
  check_scores<Int>(op, "y", y);
  POSENC_CHECK_TYPE(grad.scalar_type() == y.scalar_type(), op, "grad must have the dtype of y (",
                    y.scalar_type(), "), got ", grad.scalar_type());
  check_same_device(op, "grad", grad, "y", y);
  check_allocated<Int>(op, "grad", grad);
  POSENC_CHECK_VALUE(sizes_of<Int>(grad) == sizes_of<Int>(y), op, "grad must have the shape of y, ",
                     sizes_of<Int>(y), ", got ", sizes_of<Int>(grad));
}

template <class Int>
void check_softmax_slope_grad(const char* op, const at::Tensor& grad, const at::Tensor& y,
                              const at::Tensor& slopes) {
  check_softmax_grad<Int>(op, grad, y);
  check_scores<Int>(op, y, slopes);
}

// Query rows of one head whose share of the gradient of a slope is one sum. Shares are added in the
// order of batch and row. A function of the lengths alone, so that no device and no number of
// threads changes the bits.
inline int64_t alibi_tile_rows(int64_t q_len, int64_t k_len) {
  constexpr int64_t elements = 32768;
  return std::clamp<int64_t>(elements / std::max<int64_t>(k_len, 1), 1,
                             std::max<int64_t>(q_len, 1));
}

}  // namespace posenc
