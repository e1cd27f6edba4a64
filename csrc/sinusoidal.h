// Arguments of the sinusoidal ops: what they must be, checked once for CPU, CUDA and meta tensors.
//
// Columns of a row of width `dim`, for n = frequencies: sin and cos of frequency i stand in
//   2i and 2i + 1   (interleaved)   or   i and n + i,
// the other way round with cos_first. n is dim / 2 rounded up, when the last frequency of an odd
// width has one column only, or rounded down, when the last column is zero.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "checks.h"
#include "power.h"
#include "rope.h"  // check_allocated
#include "strides.h"

namespace posenc {

// Positions stay far enough from the ends of int64 for sums not to wrap.
constexpr int64_t kLargestOffset = int64_t{1} << 62;

template <class Int>
void check_sinusoidal_frequencies(const char* op, const at::Tensor& frequencies, const Int& dim,
                                  const char* name, const at::Tensor& other) {
  POSENC_CHECK_TYPE(frequencies.scalar_type() == at::kDouble, op,
                    "frequencies must be float64, got ", frequencies.scalar_type());
  POSENC_CHECK_TYPE(frequencies.layout() == at::kStrided, op,
                    "frequencies must be a dense tensor, got ", frequencies.layout());
  POSENC_CHECK_VALUE(frequencies.device() == other.device(), op,
                     "frequencies must be on the device of ", name, " (", other.device(), "), got ",
                     frequencies.device());
  const auto given = sizes_of<Int>(frequencies);
  POSENC_CHECK_VALUE(given.size() == 1 && (given[0] == dim / 2 || given[0] == dim - dim / 2), op,
                     "frequencies must have shape [D/2] for D = ", dim, ", got ", given);
  check_allocated<Int>(op, "frequencies", frequencies);
}

// Returns the sizes of the table, [..., dim] for positions [...].
template <class Int>
c10::SmallVector<Int, 4> check_sinusoidal_table(const at::Tensor& positions,
                                                const at::Tensor& frequencies, const Int& dim,
                                                at::ScalarType dtype) {
  const char* op = "sinusoidal_table";
  const auto type = positions.scalar_type();
  POSENC_CHECK_TYPE(type == at::kInt || type == at::kLong || at::isFloatingType(type), op,
                    "positions must be int32, int64 or floating, got ", type);
  POSENC_CHECK_TYPE(positions.layout() == at::kStrided, op,
                    "positions must be a dense tensor, got ", positions.layout());
  check_allocated<Int>(op, "positions", positions);
  POSENC_CHECK_VALUE(dim >= 0, op, "dim must not be negative, got ", dim);
  check_sinusoidal_frequencies<Int>(op, frequencies, dim, "positions", positions);
  POSENC_CHECK_TYPE(
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
      op, "dtype must be float32, float64, bfloat16 or float16, got ", dtype);
  const auto given = sizes_of<Int>(positions);
  c10::SmallVector<Int, 4> sizes(given.begin(), given.end());
  sizes.push_back(dim);
  return sizes;
}

inline void check_sinusoidal_offset(int64_t offset) {
  POSENC_CHECK_VALUE(offset >= -kLargestOffset && offset <= kLargestOffset, "add_sinusoidal",
                     "offset must be between -2^62 and 2^62, got ", offset);
}

template <class Int>
void check_add_sinusoidal(const at::Tensor& x, const at::Tensor& frequencies,
                          const std::optional<at::Tensor>& offsets, double scale) {
  const char* op = "add_sinusoidal";
  const auto type = x.scalar_type();
  POSENC_CHECK_TYPE(
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf, op,
      "x must be float32, float64, bfloat16 or float16, got ", type);
  POSENC_CHECK_TYPE(x.layout() == at::kStrided, op, "x must be a dense tensor, got ", x.layout());
  const auto size = sizes_of<Int>(x);
  POSENC_CHECK_VALUE(size.size() == 2 || size.size() == 3, op,
                     "x must have shape [B, S, D] or [S, D], got ", size);
  check_allocated<Int>(op, "x", x);
  check_sinusoidal_frequencies<Int>(op, frequencies, size.back(), "x", x);
  POSENC_CHECK_VALUE(std::isfinite(scale), op, "scale must be finite, got ", scale);
  if (!offsets) return;
  POSENC_CHECK_TYPE(offsets->scalar_type() == at::kInt || offsets->scalar_type() == at::kLong, op,
                    "offset must be int32 or int64, got ", offsets->scalar_type());
  POSENC_CHECK_TYPE(offsets->layout() == at::kStrided, op, "offset must be a dense tensor, got ",
                    offsets->layout());
  POSENC_CHECK_VALUE(offsets->device() == x.device(), op, "offset must be on the device of x (",
                     x.device(), "), got ", offsets->device());
  check_allocated<Int>(op, "offset", *offsets);
  const auto given = sizes_of<Int>(*offsets);
  const Int batch = size.size() == 3 ? size[0] : Int(1);
  POSENC_CHECK_VALUE(given.empty() || (given.size() == 1 && given[0] == batch), op,
                     "offset must be an int or have shape [B] = [", batch, "], got ", given);
}

template <class Int>
void check_sinusoidal_rule(const Int& count, double base, double denominator) {
  const char* op = "sinusoidal_frequencies";
  POSENC_CHECK_VALUE(count >= 0, op, "count must not be negative, got ", count);
  POSENC_CHECK_VALUE(std::isfinite(base) && base > 0, op, "base must be positive, got ", base);
  POSENC_CHECK_VALUE(std::isfinite(denominator) && denominator > 0, op,
                     "denominator must be positive, got ", denominator);
}

// base^(-i / denominator), the same bits for every device.
inline double sinusoidal_frequency(int64_t i, double base, double denominator) {
  return power(base, static_cast<double>(-i) / denominator);
}

// At least the first `count` of them, up to a length that no model reaches. Decoding asks for the
// same ones at every step, so the last answer is kept.
inline const std::vector<double>& first_frequencies(int64_t count, double base,
                                                    double denominator) {
  constexpr int64_t most = 65536;
  thread_local struct {
    double base = 0, denominator = 0;
    std::vector<double> values;
  } last;
  if (last.base != base || last.denominator != denominator) {
    last.values.clear();
    last.base = base;
    last.denominator = denominator;
  }
  for (auto i = static_cast<int64_t>(last.values.size()); i < std::min(count, most); ++i)
    last.values.push_back(sinusoidal_frequency(i, base, denominator));
  return last.values;
}

// Those as a tensor on the CPU, of which each thread keeps the last. In cpu/sinusoidal.cpp.
const at::Tensor& kept_frequencies(int64_t count, double base, double denominator);

}  // namespace posenc
