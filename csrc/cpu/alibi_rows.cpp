#include "cpu/alibi_rows.h"

#define POSENC_BODY "cpu/alibi_rows.inc"
#include "cpu/for_each_isa.h"

namespace posenc {

const AlibiRows& alibi_rows(Isa isa) {
#if POSENC_X86
  if (isa == Isa::avx512) return avx512::alibi;
  if (isa == Isa::avx2) return avx2::alibi;
#endif
  return plain::alibi;
}

}  // namespace posenc
