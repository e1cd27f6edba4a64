// Random rows of relative_gather and relative_scatter, against the formulas in csrc/relative.h.
#include <cstring>
#include <vector>

#include "cpu/relative_runs.h"
#include "guarded.h"

namespace posenc {
namespace {

// An index made of pieces of every kind of run, between guard pages, cut into runs.
class RandomIndex {
 public:
  RandomIndex(Random& random, int64_t n, int64_t size, bool sums)
      : entries_(n * 8, true), runs_(fill(random, n, size), n, size, sums) {}

  int64_t operator[](int64_t i) const { return data()[i]; }
  const RelativeRuns& runs() const { return runs_; }

 private:
  const int64_t* data() const { return reinterpret_cast<const int64_t*>(entries_.data()); }

  const int64_t* fill(Random& random, int64_t n, int64_t size) {
    auto* to = reinterpret_cast<int64_t*>(entries_.data());
    for (int64_t i = 0; i < n;) {
      const int64_t end = i + 1 + random.below(40), step = random.below(4) - 1;
      int64_t column = random.below(size + 1) - 1;
      for (; i < end && i < n; ++i) {
        to[i] = column;
        const int64_t next = step == 2 ? random.below(size + 1) - 1 : column + step;
        if (-1 <= next && next < size) column = next;
      }
    }
    return to;
  }

  Guarded entries_;
  RelativeRuns runs_;
};

template <class T>
bool gather(Random& random, RopeDtype type) {
  const int64_t size = 1 + random.length(80), keys = random.length(150), n = keys + random.below(9);
  const RandomIndex index(random, n, size, false);
  const int64_t window = random.below(n - keys + 1), item = sizeof(T);
  const Guarded x(size * item, random.chance(2)), right(keys * item, true);
  const Guarded out(keys * item, random.chance(2));
  randomise(random, x, item, type);
  const auto* from = reinterpret_cast<const T*>(x.data());
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t column = index[window + j];
    reinterpret_cast<T*>(right.data())[j] = column < 0 ? T(0) : from[column];
  }
  relative_gather_row(index.runs().window(window, keys), from, reinterpret_cast<T*>(out.data()));
  return std::memcmp(right.data(), out.data(), static_cast<size_t>(keys * item)) == 0;
}

template <class T>
bool scatter(Random& random, RopeDtype type) {
  using A = math_t<T>;
  const int64_t size = 1 + random.length(80), keys = random.length(150), n = keys + random.below(9);
  const RandomIndex index(random, n, size, true);
  const int64_t window = random.below(n - keys + 1), item = sizeof(T);
  const Guarded y(keys * item, random.chance(2)), right(size * item, true);
  const Guarded out(size * item, random.chance(2));
  randomise(random, y, item, type);
  const auto* from = reinterpret_cast<const T*>(y.data());
  for (int64_t t = 0; t < size; ++t) {
    A parts[16] = {};
    for (int64_t j = 0; j < keys; ++j) {
      if (index[window + j] == t) parts[j % 16] += widen(from[j]);
    }
    for (const int apart : {8, 4, 2, 1}) {
      for (int l = 0; l < apart; ++l) parts[l] += parts[l + apart];
    }
    narrow(parts[0], reinterpret_cast<T*>(right.data())[t]);
  }
  const RelativeSums sums = index.runs().sums();
  const Guarded scratch(sums.count * kParts * static_cast<int64_t>(sizeof(A)), true);
  relative_scatter_row(index.runs().window(window, keys), sums, from,
                       reinterpret_cast<A*>(scratch.data()), reinterpret_cast<T*>(out.data()),
                       size);
  return same(right, out, type);
}

}  // namespace

bool relative_gather_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  if (type == RopeDtype::f64) return gather<uint64_t>(random, type);
  return type == RopeDtype::f32 ? gather<uint32_t>(random, type) : gather<uint16_t>(random, type);
}

bool relative_scatter_case(Random& random) {
  switch (const auto type = static_cast<RopeDtype>(random.below(4))) {
    case RopeDtype::f32:
      return scatter<float>(random, type);
    case RopeDtype::f64:
      return scatter<double>(random, type);
    case RopeDtype::bf16:
      return scatter<bf16>(random, type);
    default:
      return scatter<f16>(random, type);
  }
}

}  // namespace posenc
