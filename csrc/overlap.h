// Do two strided views touch the same memory, or one view the same element twice? An exact answer:
// the range test alone would refuse q and k sliced from one fused projection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "checks.h"

namespace posenc {

// Is `delta` = sum of step_i * d_i for whole numbers 0 <= d_i <= count_i (or |d_i| <= count_i when
// `both_signs`)? Steps are in bytes, largest first.
struct Reach {
  struct Term {
    int64_t step, low, high;
  };
  std::vector<Term> terms;
  int64_t budget = 20000;  // nested strides need one try or two a level; past this, answer "yes"

  bool reaches(int64_t delta, size_t level = 0, bool moved = true) {
    if (level == terms.size()) return delta == 0 && moved;
    if (--budget < 0) return true;
    int64_t rest_low = 0, rest_high = 0;  // what the smaller steps can still add
    for (size_t i = level + 1; i < terms.size(); ++i) {
      rest_low += terms[i].step * terms[i].low;
      rest_high += terms[i].step * terms[i].high;
    }
    const auto [step, low, high] = terms[level];
    // low <= d <= high with rest_low <= delta - d*step <= rest_high
    int64_t from = low, to = high;
    if (step > 0) {
      from = std::max(from, ceil_div(delta - rest_high, step));
      to = std::min(to, floor_div(delta - rest_low, step));
    }
    for (int64_t d = from; d <= to; ++d) {
      if (reaches(delta - d * step, level + 1, moved || d != 0)) return true;
    }
    return false;
  }

  static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0)); }
  static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 && (a > 0)); }

  void add(const at::Tensor& t, bool negative, bool both_signs) {
    for (int64_t i = 0; i < t.dim(); ++i) {
      const int64_t last = t.size(i) - 1;
      if (last == 0) continue;
      const int64_t step = t.stride(i) * t.element_size();
      terms.push_back(
          {step, negative || both_signs ? -last : 0, negative && !both_signs ? 0 : last});
    }
  }

  void sort() {
    std::sort(terms.begin(), terms.end(),
              [](const Term& a, const Term& b) { return a.step > b.step; });
    // Equal steps are one step that goes further.
    size_t kept = 0;
    for (size_t i = 1; i < terms.size(); ++i) {
      if (terms[i].step == terms[kept].step) {
        terms[kept].low += terms[i].low;
        terms[kept].high += terms[i].high;
      } else {
        terms[++kept] = terms[i];
      }
    }
    if (!terms.empty()) terms.resize(kept + 1);
  }
};

// Two index tuples of t with the same address?
inline bool overlaps_itself(const at::Tensor& t) {
  if (t.numel() < 2 || t.is_contiguous()) return false;
  // Sorting would merge equal strides, which already are an overlap.
  Reach reach;
  reach.add(t, false, true);
  std::sort(reach.terms.begin(), reach.terms.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return reach.reaches(0, 0, false);
}

// An address that belongs to both a and b?
inline bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto span = [](const at::Tensor& t) {
    int64_t bytes = t.element_size();
    for (int64_t i = 0; i < t.dim(); ++i) bytes += (t.size(i) - 1) * t.stride(i) * t.element_size();
    return bytes;
  };
  const int64_t delta =
      static_cast<const char*>(a.const_data_ptr()) - static_cast<const char*>(b.const_data_ptr());
  if (delta >= span(b) || -delta >= span(a)) return false;
  if (a.element_size() != b.element_size() || delta % a.element_size() != 0) return true;
  Reach reach;  // b_index - a_index = delta
  reach.add(a, true, false);
  reach.add(b, false, false);
  reach.sort();
  return reach.reaches(delta);
}

// The same elements in the same places: an op may write over its own input.
inline bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.const_data_ptr() != b.const_data_ptr() || a.sizes() != b.sizes() ||
      a.scalar_type() != b.scalar_type())
    return false;
  for (int64_t i = 0; i < a.dim(); ++i)  // the stride of a single entry does not matter
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

inline void check_writable(const char* op, const char* name, const at::Tensor& t) {
  POSENC_CHECK_VALUE(!t.is_inference() || c10::InferenceMode::is_enabled(), op, name,
                     " must not be an inference tensor to be written outside inference mode, got "
                     "one of sizes ",
                     t.sizes());
  POSENC_CHECK_VALUE(!overlaps_itself(t), op, name,
                     " must not overlap itself to be written in place, got sizes ", t.sizes(),
                     " and strides ", t.strides());
}

inline void check_apart(const char* op, const char* name, const at::Tensor& t,
                        const char* other_name, const at::Tensor& other) {
  POSENC_CHECK_VALUE(!overlap(t, other), op, name, " must not share memory with ", other_name,
                     ", got sizes ", t.sizes(), " and ", other.sizes());
}

}  // namespace posenc
