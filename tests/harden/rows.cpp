// Random calls of the torch-free row kernels.
//
//   rows CASES SEED
//
// Each case runs the plain kernel and then every instruction set of this machine, and compares all
// bytes of the result. Buffers end, or begin, at a page that may not be touched, and what lies
// between their elements is a canary. Prints a line for each kernel; exits with 1 at the first
// difference, naming the case; a wild access ends it by a signal.
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/alibi_rows.h"
#include "cpu/rope_rows.h"
#include "cpu/rope_table_rows.h"
#include "cpu/sinusoidal_rows.h"

using namespace posenc;

namespace {

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
  int64_t below(int64_t n) {
    return static_cast<int64_t>(bits() % static_cast<uint64_t>(n));
  }
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

// Numbers of a dtype: most of them plain, some subnormal, infinite, NaN or any bits at all.
void randomise(Random& random, const Guarded& buffer, int64_t item, RopeDtype type) {
  for (int64_t at = 0; at + item <= buffer.bytes(); at += item) {
    uint64_t bits = random.bits();
    if (!random.chance(16)) {  // the exponent of a number between 2^-8 and 2^8
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

bool is_nan(const unsigned char* p, RopeDtype type) {
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
bool same(const Guarded& a, const Guarded& b, RopeDtype type) {
  const int64_t item = kItem[static_cast<int>(type)];
  for (int64_t at = 0; at < a.bytes(); at += item) {
    const unsigned char *x = a.data() + at, *y = b.data() + at;
    if (std::memcmp(x, y, static_cast<size_t>(item)) && !(is_nan(x, type) && is_nan(y, type)))
      return false;
  }
  return true;
}

std::vector<Isa> instruction_sets() {
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
    elements =
        empty ? 0 : (width - 1) * step + (n_inner - 1) * inner + (n_outer - 1) * outer + 1;
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

bool rope_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  const int t = static_cast<int>(type);
  const RopeDtype math = type == RopeDtype::f64 ? RopeDtype::f64 : RopeDtype::f32;
  const int64_t item = kItem[t], wide = kItem[static_cast<int>(math)];
  const bool interleaved = random.chance(2), in_place = random.chance(3);
  bool streamed = !in_place && random.chance(3);
  RopeTile tile{};
  tile.pairs = random.length(130);
  if (streamed) tile.pairs = tile.pairs / (64 / item) * (64 / item);
  tile.tokens = random.below(4);
  tile.heads = random.below(4);
  tile.dim = 2 * tile.pairs + (streamed || random.chance(2) ? 0 : random.below(20));
  const Strides in(random, tile.dim, tile.heads, tile.tokens, random.chance(2));
  const Strides result = in_place ? in : Strides(random, tile.dim, tile.heads, tile.tokens,
                                                 streamed || random.chance(2));
  tile.x_head = in.inner, tile.x_token = in.outer, tile.x_dim = in.step;
  tile.out_head = result.inner, tile.out_token = result.outer, tile.out_dim = result.step;

  const int64_t rows = 3, row = tile.pairs + random.below(3);
  const int64_t length = tile.pairs ? (rows - 1) * row + tile.pairs : 0;
  const Guarded cos(length * wide, true), sin(length * wide, true), x(in.elements * item, true);
  randomise(random, cos, wide, math);
  randomise(random, sin, wide, math);
  randomise(random, x, item, type);
  std::vector<int64_t> cos_row, sin_row;
  for (int64_t i = 0; i < tile.tokens; ++i) {
    cos_row.push_back(random.below(rows) * row);
    sin_row.push_back(random.below(rows) * row);
  }
  tile.cos = cos.data(), tile.sin = sin.data(), tile.x = x.data();
  tile.cos_row = cos_row.data(), tile.sin_row = sin_row.data();

  const Guarded before(result.elements * item, true);
  if (in_place) before.fill_from(x);
  return agree(random, before, type, [&](Isa isa, const Guarded& out) {
    RopeTile call = tile;
    call.out = out.data();
    if (in_place) call.x = call.out;
    const bool aligned = reinterpret_cast<uintptr_t>(out.data()) % 64 == 0;
    rope_rows(isa).of[t].rotate[interleaved][streamed && aligned](call);
  });
}

bool rope_grad_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  const int t = static_cast<int>(type);
  RopeGradRow row{};
  row.pairs = random.length(130);
  row.heads = random.below(5);
  const Strides in(random, 2 * row.pairs, row.heads, 1, random.chance(2));
  const Strides of_grad(random, 2 * row.pairs, row.heads, 1, random.chance(2));
  const Guarded x(in.elements * kItem[t], true), grad(of_grad.elements * kItem[t], true);
  randomise(random, x, kItem[t], type);
  randomise(random, grad, kItem[t], type);
  row.x = x.data(), row.x_head = in.inner, row.x_dim = in.step;
  row.grad = grad.data(), row.grad_head = of_grad.inner, row.grad_dim = of_grad.step;
  const Guarded before(2 * row.pairs * 8, true);
  std::memset(before.data(), 0, static_cast<size_t>(before.bytes()));
  const bool interleaved = random.chance(2);
  return agree(random, before, RopeDtype::f64, [&](Isa isa, const Guarded& out) {
    RopeGradRow call = row;
    call.dcos = reinterpret_cast<double*>(out.data());
    call.dsin = call.dcos + row.pairs;
    rope_rows(isa).of[t].table_grad[interleaved](call);
  });
}

bool rope_table_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  const int t = static_cast<int>(type);
  RopeTableRun run{};
  const int64_t pairs = random.length(130), more = random.below(2);
  run.n = pairs + more;
  run.count = random.below(6);
  run.factor = random.chance(2) ? 1.0 : random.unit() * 2;
  std::vector<double> frequencies, fractional;
  std::vector<int64_t> whole;
  for (int64_t i = 0; i < run.n; ++i) frequencies.push_back(random.unit());
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t near = random.below(200) - 50;
    whole.push_back(random.chance(2) ? near : static_cast<int64_t>(random.bits()) >> 30);
    fractional.push_back(random.chance(20) ? 0.0 / 0.0 : (random.unit() - 0.5) * 1e6);
  }
  run.frequencies = frequencies.data();
  (random.chance(2) ? run.fractional = fractional.data(), 0 : (run.whole = whole.data(), 0));
  const bool interleaved = random.chance(2), cos_first = random.chance(2);
  const int64_t width = 2 * pairs + more, stride = width + random.below(4);
  const int64_t elements = run.count && width ? (run.count - 1) * stride + width : 0;
  const Guarded before(elements * kItem[t], true);
  return agree(random, before, type, [&](Isa isa, const Guarded& out) {
    RopeTableRun call = run;
    const Guarded base(2 * run.n * 8, true), offsets(128 * run.n * 8, true);
    call.base = 0.0 / 0.0;
    call.base_cos = reinterpret_cast<double*>(base.data());
    call.base_sin = call.base_cos + run.n;
    call.offsets.cos = reinterpret_cast<double*>(offsets.data());
    call.offsets.sin = call.offsets.cos + 64 * run.n;
    // Whichever stands first has the column more.
    unsigned char* first = out.data();
    unsigned char* second = first + (interleaved ? 1 : pairs + more) * kItem[t];
    call.out = {cos_first ? first : second, cos_first ? second : first, stride, pairs, interleaved};
    rope_table_rows(isa).fill[t](call);
  });
}

bool sinusoidal_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  const int t = static_cast<int>(type);
  const RopeDtype math = type == RopeDtype::f64 ? RopeDtype::f64 : RopeDtype::f32;
  const int64_t wide = kItem[static_cast<int>(math)];
  SinusoidalTile tile{};
  tile.tokens = random.below(5);
  tile.dim = random.length(150);
  tile.scale = random.chance(2) ? 1.0 : random.unit() * 8;
  const Strides in(random, tile.dim, tile.tokens, 1, random.chance(2));
  const Strides result(random, tile.dim, tile.tokens, 1, random.chance(2));
  tile.x_token = in.inner, tile.x_dim = in.step;
  tile.out_token = result.inner, tile.out_dim = result.step;
  const Guarded table(tile.tokens * tile.dim * wide, true), x(in.elements * kItem[t], true);
  randomise(random, table, wide, math);
  randomise(random, x, kItem[t], type);
  tile.x = x.data(), tile.table = table.data();
  const Guarded before(result.elements * kItem[t], true);
  return agree(random, before, type, [&](Isa isa, const Guarded& out) {
    SinusoidalTile call = tile;
    call.out = out.data();
    sinusoidal_rows(isa).add[t](call);
  });
}

bool alibi_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  const int t = static_cast<int>(type), op = static_cast<int>(random.below(6));
  const bool sums = op >= 4, cells = op < 2;
  AlibiTile tile{};
  tile.rows = random.below(4);
  tile.keys = random.length(100);
  if (tile.keys == 0 && !cells) tile.keys = 1;
  tile.position = random.below(tile.keys + 8) - 4;
  tile.causal = random.chance(2);
  tile.slope = random.unit();
  tile.scale = random.chance(2) ? 1.0 : random.unit();
  const Strides in(random, tile.keys, tile.rows, 1, random.chance(2));
  const Strides of_grad(random, tile.keys, tile.rows, 1, random.chance(2));
  const Strides result(random, tile.keys, tile.rows, 1, random.chance(2));
  const int64_t item = kItem[t];
  const Guarded x(in.elements * item, true), grad(of_grad.elements * item, true);
  randomise(random, x, item, type);
  randomise(random, grad, item, type);
  tile.x = x.data(), tile.x_row = in.inner, tile.x_key = in.step;
  tile.grad = grad.data(), tile.grad_row = of_grad.inner, tile.grad_key = of_grad.step;
  tile.out_row = result.inner, tile.out_key = result.step;
  const Guarded keep(tile.keys, true), positions(tile.keys * 8, true);
  for (int64_t j = 0; j < tile.keys; ++j) {
    const int64_t position = static_cast<int64_t>(random.bits()) >> random.below(64);
    keep.data()[j] = static_cast<unsigned char>(random.below(2));
    std::memcpy(positions.data() + 8 * j, &position, 8);
  }
  if (op == 2 && random.chance(2)) tile.keep = keep.data();
  // With key positions, queries are the last keys.
  if ((op == 0 || op == 4) && tile.rows <= tile.keys && random.chance(3)) {
    tile.position = tile.keys - tile.rows;
    tile.key_positions = reinterpret_cast<const int64_t*>(positions.data());
  }
  const int64_t scratch = 2 * ((tile.keys + kAlibiLanes - 1) / kAlibiLanes * kAlibiLanes) * 8;
  const Guarded before(sums ? 8 : result.elements * item, true);
  const auto call_one = [&](Isa isa, const Guarded& out) {
    AlibiTile call = tile;
    const Guarded work(scratch, true);
    call.scratch = work.data();
    call.out = out.data();
    const AlibiRows& rows = alibi_rows(isa);
    void (*const kernels[4])(const AlibiTile&) = {rows.bias[t], rows.add[t], rows.softmax[t],
                                                  rows.softmax_grad[t]};
    if (!sums) return kernels[op](call);
    const double sum = (op == 4 ? rows.slope_grad : rows.softmax_slope_grad)[t](call);
    std::memcpy(out.data(), &sum, 8);
  };
  return agree(random, before, sums ? RopeDtype::f64 : type, call_one);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: rows CASES SEED\n");
    return 2;
  }
  const int64_t cases = std::atoll(arguments[1]);
  const uint64_t seed = std::strtoull(arguments[2], nullptr, 10);
  const struct {
    const char* name;
    bool (*run)(Random&);
  } kernels[] = {{"rope", rope_case},
                 {"rope_table_grad", rope_grad_case},
                 {"rope_table", rope_table_case},
                 {"add_sinusoidal", sinusoidal_case},
                 {"alibi", alibi_case}};
  static const char* const names[] = {"plain", "avx2", "avx512"};
  std::printf("instruction sets:");
  for (const Isa isa : instruction_sets()) std::printf(" %s", names[static_cast<int>(isa)]);
  std::printf("\n");
  for (const auto& kernel : kernels) {
    for (int64_t i = 0; i < cases; ++i) {
      Random random{seed + static_cast<uint64_t>(i)};
      if (!kernel.run(random)) {
        std::printf("%s: instruction sets differ in case %" PRIu64 "\n", kernel.name,
                    seed + static_cast<uint64_t>(i));
        return 1;
      }
    }
    std::printf("%s: %" PRId64 " cases, no fault\n", kernel.name, cases);
  }
  return 0;
}
