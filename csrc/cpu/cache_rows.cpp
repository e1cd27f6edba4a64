#include "cpu/cache_rows.h"

#define POSENC_BODY "cpu/cache_rows.inc"
#include "cpu/for_each_isa.h"

namespace posenc {

const CacheRows& cache_rows(Isa isa) {
#if POSENC_X86
  if (isa == Isa::avx512) return avx512::cache;
  if (isa == Isa::avx2) return avx2::cache;
#endif
  return plain::cache;
}

}  // namespace posenc
