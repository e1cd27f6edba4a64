#include "cpu/rope_table_rows.h"

#define POSENC_BODY "cpu/rope_table_rows.inc"
#include "cpu/for_each_isa.h"

namespace posenc {

const RopeTableRows& rope_table_rows(Isa isa) {
#if POSENC_X86
  if (isa == Isa::avx512) return avx512::table_rows;
  if (isa == Isa::avx2) return avx2::table_rows;
#endif
  return plain::table_rows;
}

}  // namespace posenc
