#include "cpu/norm_rope_rows.h"

#include <cmath>

#define POSENC_BODY "cpu/norm_rope_rows.inc"
#include "cpu/for_each_isa.h"

namespace posenc {

const NormRowsByType& norm_rope_rows(Isa isa) {
#if POSENC_X86
  if (isa == Isa::avx512) return avx512::rows;
  if (isa == Isa::avx2) return avx2::rows;
#endif
  return plain::rows;
}

}  // namespace posenc
