// Compiles POSENC_BODY, a file name, once per instruction set. Each copy lives in its own namespace
// (plain, avx2, avx512) and, but for `plain`, in a target region, so that no build flag is needed.
// The run-time condition in isa.cpp must imply the feature list of a region. FMA is left out on
// purpose, and the build says -fno-tree-slp-vectorize: GCC 12 fuses neighbouring a*b-c and a*b+c
// into VFMADDSUB whatever -ffp-contract says, and then instruction sets would differ in the last
// bit. A body is torch-free: a shared inline function compiled here with AVX could replace the
// plain copy of another file at link time.
//
// No include guard: every <op>_rows.cpp includes it once.
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define POSENC_X86 1
#ifndef __clang__  // GCC 12 and 13 warn about the undefined operands inside their own AVX-512
                   // headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#else
#define POSENC_X86 0
#endif

namespace posenc::plain {
#include POSENC_BODY
}  // namespace posenc::plain

#if POSENC_X86
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
namespace posenc::avx2 {
#define POSENC_AVX2 1
#include POSENC_BODY
#undef POSENC_AVX2
}  // namespace posenc::avx2
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,f16c"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,f16c")
#endif
namespace posenc::avx512 {
#define POSENC_AVX512 1
#include POSENC_BODY
#undef POSENC_AVX512
}  // namespace posenc::avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
