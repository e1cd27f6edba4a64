// What the random cases of row kernels share: a generator, buffers between guard pages, numbers of
// every kind, strides, and the comparison of instruction sets.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/isa.h"
#include "cpu/rope_rows.h"
#include "half.h"

namespace posenc {

constexpr int64_t kItem[4] = {4, 8, 2, 2};  // [RopeDtype]
constexpr unsigned char kCanary = 0xa5;

struct Random {
  uint64_t state;
  uint64_t bits() {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Around the widths of registers as often as anywhere.
  int64_t length(int64_t most) {
    static constexpr int64_t edges[] = {0, 1, 2, 4, 8, 16, 24, 32, 48, 64};
    const int64_t n = chance(2) ? below(most + 1) : edges[below(10)] + below(3) - 1;
    return n < 0 ? 0 : n > most ? most : n;
  }
};

// Bytes between two pages that may not be touched, against one of them.
class Guarded {
 public:
  Guarded(int64_t bytes, bool at_end) : bytes_(bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t inside = (bytes + page - 1) / page * page;
    size_ = static_cast<size_t>(inside + 2 * page);
    void* map = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) std::abort();
    map_ = static_cast<unsigned char*>(map);
    if (inside && mprotect(map_ + page, static_cast<size_t>(inside), PROT_READ | PROT_WRITE))
      std::abort();
    data_ = map_ + page + (at_end ? inside - bytes : 0);
    std::memset(data_, kCanary, static_cast<size_t>(bytes));
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(map_, size_); }

  unsigned char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  void fill_from(const Guarded& other) const {
    std::memcpy(data_, other.data_, static_cast<size_t>(bytes_));
  }

 private:
  unsigned char *map_, *data_;
  size_t size_;
  int64_t bytes_;
};

// Numbers of a dtype: most of them plain, some 0 or -0, some of any bits at all.
inline void randomise(Random& random, const Guarded& buffer, int64_t item, RopeDtype type) {
  for (int64_t at = 0; at + item <= buffer.bytes(); at += item) {
    uint64_t bits = random.bits();
    if (random.chance(32)) {
      bits &= uint64_t{0x80} << (8 * (item - 1));
    } else if (!random.chance(16)) {  // the exponent of a number between 2^-8 and 2^8
      const double value = (random.unit() - 0.5) * static_cast<double>(1 << random.below(9));
      const float single = static_cast<float>(value);
      if (type == RopeDtype::f64) std::memcpy(&bits, &value, 8);
      if (type == RopeDtype::f32) std::memcpy(&bits, &single, 4);
      if (type == RopeDtype::bf16) bits = float_bits(single) >> 16;
      if (type == RopeDtype::f16) {
        f16 half;
        narrow(single, half);
        bits = half.bits;
      }
    }
    std::memcpy(buffer.data() + at, &bits, static_cast<size_t>(item));
  }
}

inline bool is_nan(const unsigned char* p, RopeDtype type) {
  double d;
  float f;
  bf16 b;
  f16 h;
  switch (type) {
    case RopeDtype::f64:
      std::memcpy(&d, p, 8);
      return d != d;
    case RopeDtype::f32:
      std::memcpy(&f, p, 4);
      return f != f;
    case RopeDtype::bf16:
      std::memcpy(&b, p, 2);
      return widen(b) != widen(b);
    default:
      std::memcpy(&h, p, 2);
      return widen(h) != widen(h);
  }
}

// Every element has the same bits, or is a NaN in both.
inline bool same(const Guarded& a, const Guarded& b, RopeDtype type) {
  const int64_t item = kItem[static_cast<int>(type)];
  for (int64_t at = 0; at < a.bytes(); at += item) {
    const unsigned char *x = a.data() + at, *y = b.data() + at;
    if (std::memcmp(x, y, static_cast<size_t>(item)) && !(is_nan(x, type) && is_nan(y, type)))
      return false;
  }
  return true;
}

inline std::vector<Isa> instruction_sets() {
  std::vector<Isa> found{Isa::plain};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    found.push_back(Isa::avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
      found.push_back(Isa::avx512);
  }
#endif
  return found;
}

// Two nested loops of rows of `width` elements `step` apart. Rows do not overlap.
struct Strides {
  int64_t step, inner, outer, elements;
  Strides(Random& random, int64_t width, int64_t n_inner, int64_t n_outer, bool dense) {
    step = dense ? 1 : 1 + random.below(3) / 2;
    const int64_t row = width * step + (dense ? 0 : random.below(3));
    const bool inner_near = random.chance(2);
    inner = inner_near ? row : row * n_outer;
    outer = inner_near ? row * n_inner : row;
    const bool empty = width == 0 || n_inner == 0 || n_outer == 0;
    elements = empty ? 0 : (width - 1) * step + (n_inner - 1) * inner + (n_outer - 1) * outer + 1;
  }
};

// Runs `call(isa, out)` for each instruction set on a fresh copy of `before`.
template <class Call>
bool agree(Random& random, const Guarded& before, RopeDtype type, const Call& call) {
  const Guarded right(before.bytes(), true);
  right.fill_from(before);
  call(Isa::plain, right);
  for (const Isa isa : instruction_sets()) {
    const Guarded out(before.bytes(), random.chance(2));
    out.fill_from(before);
    call(isa, out);
    if (!same(right, out, type)) return false;
  }
  return true;
}

}  // namespace posenc
