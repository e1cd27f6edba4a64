#include "cpu/isa.h"

#include <ATen/Version.h>

#include <string>

namespace posenc {

static Isa detect_isa() {
#if defined(__x86_64__) && defined(__GNUC__)
  // ATen reads ATEN_CPU_CAPABILITY once per process. Its AVX2 means AVX2 and FMA, its AVX512 means
  // VL, BW, DQ and FMA. It does not ask for F16C, which the row kernels use, so we do.
  const std::string name = at::get_cpu_capability();
  const bool f16c = __builtin_cpu_supports("f16c");
  if (f16c && name == "AVX512") return Isa::avx512;
  if (f16c && name == "AVX2") return Isa::avx2;
#endif
  return Isa::plain;
}

Isa current_isa() {
  static const Isa isa = detect_isa();
  return isa;
}

}  // namespace posenc
