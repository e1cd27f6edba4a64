#include "cpu/sinusoidal_rows.h"

#define POSENC_BODY "cpu/sinusoidal_rows.inc"
#include "cpu/for_each_isa.h"

namespace posenc {

const SinusoidalRows& sinusoidal_rows(Isa isa) {
#if POSENC_X86
  if (isa == Isa::avx512) return avx512::sinusoidal_row_kernels;
  if (isa == Isa::avx2) return avx2::sinusoidal_row_kernels;
#endif
  return plain::sinusoidal_row_kernels;
}

}  // namespace posenc
