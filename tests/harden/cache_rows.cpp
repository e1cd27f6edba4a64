// Random calls of the row kernels of the cache, whose results are bytes without a second form: the
// instruction sets must agree in all of them. Called by rows.cpp.
#include "cpu/cache_rows.h"
//
#include "guarded.h"

namespace posenc {

bool cache_rows_case(Random& random) {
  const auto type = static_cast<RopeDtype>(random.below(4));
  const int t = static_cast<int>(type), format = 1 + static_cast<int>(random.below(3));
  const int64_t n = random.length(200);
  const Strides in(random, n, 1, 1, random.chance(2)), result(random, n, 1, 1, random.chance(2));
  const Guarded x(in.elements * kItem[t], random.chance(2));
  randomise(random, x, kItem[t], type);
  const float scale = random.chance(2) ? 1.0f : static_cast<float>(random.unit() * 4);
  const Guarded right(result.elements, true);
  for (const Isa isa : instruction_sets()) {
    const Guarded wide(n * 4, random.chance(2)), out(result.elements, random.chance(2));
    float* floats = reinterpret_cast<float*>(wide.data());
    cache_rows(isa).widen[t](x.data(), in.step, n, floats);
    const CacheRow row{floats, out.data(), n, result.step, scale};
    cache_rows(isa).store[format](row);
    if (isa == Isa::plain) {
      right.fill_from(out);
    } else if (std::memcmp(out.data(), right.data(), static_cast<size_t>(out.bytes()))) {
      return false;
    }
  }
  return true;
}

}  // namespace posenc
