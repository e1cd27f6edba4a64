// relative_gather and relative_scatter on CPU: check, read the index, allocate, call the row kernel
// for every row in parallel.
#include "relative.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <memory>

#include "checks.h"
#include "cpu/huge_pages.h"
#include "cpu/parallel.h"
#include "cpu/relative_runs.h"

namespace posenc {
namespace {

using at::Tensor;

// Rows of [..., Q, N] as elements next to each other.
template <class T>
class Rows {
 public:
  explicit Rows(const Tensor& x)
      : x_(x), data_(static_cast<const T*>(x.const_data_ptr())), n_(x.size(-1)) {
    if (n_ > 1 && x.stride(-1) != 1) copy_.reset(new T[static_cast<size_t>(n_)]);
  }

  // Row i of all, counted in the order of the dimensions.
  const T* at(int64_t i) {
    int64_t offset = 0;
    for (int64_t d = x_.dim() - 2; d >= 0; --d) {
      offset += i % x_.size(d) * x_.stride(d);
      i /= x_.size(d);
    }
    if (copy_ == nullptr) return data_ + offset;
    if (offset != copied_) {
      const int64_t stride = x_.stride(-1);
      for (int64_t t = 0; t < n_; ++t) copy_[t] = data_[offset + t * stride];
      copied_ = offset;
    }
    return copy_.get();
  }

 private:
  const Tensor& x_;
  const T* data_;
  int64_t n_, copied_ = -1;
  std::unique_ptr<T[]> copy_;
};

// The index in int64, its entries from -1 to size - 1.
Tensor read_index(const char* op, const Tensor& index, int64_t size) {
  const Tensor read = index.to(at::kLong).contiguous();
  const int64_t* t = read.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < read.numel(); ++i) {
    POSENC_CHECK_INDEX(-1 <= t[i] && t[i] < size, op, "index must be from -1 to T - 1 = ", size - 1,
                       ", got ", t[i], " at entry ", i);
  }
  return read;
}

// body(rows, first row, end) for parts of the rows, with `width` elements to write in each.
template <class Body>
void for_rows(const Tensor& out, int64_t width, const Body& body) {
  const int64_t rows = out.numel() / out.size(-1);
  parallel_for(0, rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(width, 1)), body);
}

template <class T>
void gather(const Tensor& x, const RelativeRuns& runs, const Tensor& out) {
  const int64_t q_len = x.size(-2), k_len = out.size(-1);
  T* to = static_cast<T*>(out.mutable_data_ptr());
  for_rows(out, k_len, [&](int64_t begin, int64_t end) {
    Rows<T> from(x);
    for (int64_t i = begin; i < end; ++i) {
      const auto window = runs.window(q_len - 1 - i % q_len, k_len);
      relative_gather_row(window, from.at(i), to + i * k_len);
    }
  });
}

template <class T>
void scatter(const Tensor& y, const RelativeRuns& runs, const Tensor& out) {
  const int64_t q_len = y.size(-2), k_len = y.size(-1), size = out.size(-1);
  const RelativeSums sums = runs.sums();
  T* to = static_cast<T*>(out.mutable_data_ptr());
  for_rows(out, size + k_len, [&](int64_t begin, int64_t end) {
    Rows<T> from(y);
    const std::unique_ptr<math_t<T>[]> parts(
        new math_t<T>[static_cast<size_t>(sums.count * kParts)]);
    for (int64_t i = begin; i < end; ++i) {
      const auto window = runs.window(q_len - 1 - i % q_len, k_len);
      relative_scatter_row(window, sums, from.at(i), parts.get(), to + i * size, size);
    }
  });
}

Tensor relative_gather(const Tensor& x, const Tensor& index, int64_t k_len) {
  const auto sizes = check_relative_gather<int64_t>(x, index, k_len);
  const Tensor read = read_index("relative_gather", index, x.size(-1));
  const Tensor out = at::empty(sizes, x.options());
  if (out.numel() == 0) return out;
  if (x.size(-1) == 0) return out.zero_();
  const RelativeRuns runs(read.const_data_ptr<int64_t>(), read.numel(), x.size(-1), false);
  prefer_huge_pages(out);
  if (x.element_size() == 2) {
    gather<uint16_t>(x, runs, out);
  } else if (x.element_size() == 4) {
    gather<uint32_t>(x, runs, out);
  } else {
    gather<uint64_t>(x, runs, out);
  }
  return out;
}

Tensor relative_scatter(const Tensor& y, const Tensor& index, int64_t size) {
  const auto sizes = check_relative_scatter<int64_t>(y, index, size);
  const Tensor read = read_index("relative_scatter", index, size);
  const Tensor out = at::empty(sizes, y.options());  // before anything else that is so large
  if (out.numel() == 0) return out;
  if (y.size(-1) == 0) return out.zero_();
  const RelativeRuns runs(read.const_data_ptr<int64_t>(), read.numel(), size, true);
  prefer_huge_pages(out);
  if (y.scalar_type() == at::kDouble) {
    scatter<double>(y, runs, out);
  } else if (y.scalar_type() == at::kFloat) {
    scatter<float>(y, runs, out);
  } else if (y.scalar_type() == at::kBFloat16) {
    scatter<bf16>(y, runs, out);
  } else {
    scatter<f16>(y, runs, out);
  }
  return out;
}

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) {
  m.impl("relative_gather", relative_gather);
  m.impl("relative_scatter", relative_scatter);
}

}  // namespace
}  // namespace posenc
