// Random calls of the torch-free row kernels.
//
//   rows CASES SEED
//
// Each case runs the plain kernel and then every instruction set of this machine, and compares all
// bytes of the result; the relative kernels, which are plain only, are compared with their formula.
// Buffers end, or begin, at a page that may not be touched, and what lies between their elements is
// a canary. Prints a line for each kernel; exits with 1 at the first difference, naming the case; a
// wild access ends it by a signal.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "guarded.h"
//
#include "cpu/alibi_rows.h"
#include "cpu/rope_rows.h"
#include "cpu/rope_table_rows.h"
#include "cpu/sinusoidal_rows.h"

using namespace posenc;

namespace posenc {

bool norm_rope_case(Random& random);  // norm_rows.cpp
bool norm_rope_grad_case(Random& random);
bool cache_rows_case(Random& random);       // cache_rows.cpp
bool relative_gather_case(Random& random);  // relative_rows.cpp
bool relative_scatter_case(Random& random);

}  // namespace posenc

namespace {

bool rope_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  const int t = static_cast<int>(type);
  const RopeDtype math = type == RopeDtype::f64 ? RopeDtype::f64 : RopeDtype::f32;
  const int64_t item = kItem[t], wide = kItem[static_cast<int>(math)];
  const bool of_x = random.chance(2), of_out = random.chance(2), in_place = random.chance(3);
  bool streamed = !in_place && random.chance(3);
  RopeTile tile{};
  tile.pairs = random.length(130);
  if (streamed) tile.pairs = tile.pairs / (64 / item) * (64 / item);
  tile.tokens = random.below(4);
  tile.heads = random.below(4);
  tile.dim = 2 * tile.pairs + (streamed || random.chance(2) ? 0 : random.below(20));
  const Strides in(random, tile.dim, tile.heads, tile.tokens, random.chance(2));
  const Strides result =
      in_place ? in
               : Strides(random, tile.dim, tile.heads, tile.tokens, streamed || random.chance(2));
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
    const Guarded scratch(2 * tile.pairs * item, true);
    call.scratch = scratch.data();
    const bool aligned = reinterpret_cast<uintptr_t>(out.data()) % 64 == 0;
    rope_rows(isa).of[t].rotate[of_x][of_out][streamed && aligned](call);
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
  const bool x_pairs = random.chance(2), grad_pairs = random.chance(2);
  return agree(random, before, RopeDtype::f64, [&](Isa isa, const Guarded& out) {
    RopeGradRow call = row;
    call.dcos = reinterpret_cast<double*>(out.data());
    call.dsin = call.dcos + row.pairs;
    rope_rows(isa).of[t].table_grad[x_pairs][grad_pairs](call);
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
                 {"norm_rope", norm_rope_case},
                 {"norm_rope_grad", norm_rope_grad_case},
                 {"rope_table", rope_table_case},
                 {"add_sinusoidal", sinusoidal_case},
                 {"alibi", alibi_case},
                 {"cache", cache_rows_case},
                 {"relative_gather", relative_gather_case},
                 {"relative_scatter", relative_scatter_case}};
  static const char* const names[] = {"plain", "avx2", "avx512"};
  std::printf("instruction sets:");
  for (const Isa isa : instruction_sets()) std::printf(" %s", names[static_cast<int>(isa)]);
  std::printf("\n");
  for (const auto& kernel : kernels) {
    for (int64_t i = 0; i < cases; ++i) {
      Random random{seed + static_cast<uint64_t>(i)};
      if (!kernel.run(random)) {
        std::printf("%s: results differ in case %" PRIu64 "\n", kernel.name,
                    seed + static_cast<uint64_t>(i));
        return 1;
      }
    }
    std::printf("%s: %" PRId64 " cases, no fault\n", kernel.name, cases);
  }
  return 0;
}
