// bfloat16 and float16 as stored, and their exact conversions. Torch-free; every function is static
// and always inlined, so that no instruction-set copy of it can replace another at link time.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define POSENC_INLINE static __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define POSENC_INLINE static inline __attribute__((always_inline))
#else
#define POSENC_INLINE static inline
#endif

namespace posenc {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

POSENC_INLINE uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

POSENC_INLINE float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// What a tensor may hold, to choose a kernel by.
enum class RopeDtype { f32, f64, bf16, f16 };

// The type that arithmetic on T runs in.
template <class T>
struct math_type {
  using type = float;
};
template <>
struct math_type<double> {
  using type = double;
};
template <class T>
using math_t = typename math_type<T>::type;

POSENC_INLINE float widen(float x) { return x; }
POSENC_INLINE double widen(double x) { return x; }
POSENC_INLINE float widen(bf16 x) { return bits_float(static_cast<uint32_t>(x.bits) << 16); }

POSENC_INLINE float widen(f16 x) {
#ifdef __CUDA_ARCH__  // one instruction, exact
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    return bits_float(sign | float_bits(static_cast<float>(mantissa) * 5.9604644775390625e-8f));
  }
  if (exponent == 31) {  // infinity, or a NaN made quiet as the hardware conversion does
    return bits_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  }
  return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
#endif
}

POSENC_INLINE void narrow(float x, float& out) { out = x; }
POSENC_INLINE void narrow(double x, double& out) { out = x; }

// Round to nearest, ties to even; every NaN becomes 0x7fc0, as in c10::BFloat16 (0x7fff on a GPU,
// whose one instruction agrees in all but the bits of NaN, here and for float16).
POSENC_INLINE void narrow(float x, bf16& out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  const uint32_t u = float_bits(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
#endif
}

// Round to nearest, ties to even, with subnormals; bit-equal to VCVTPS2PH.
POSENC_INLINE void narrow(float x, f16& out) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  const uint32_t u = float_bits(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 2^16 or more
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: let a float addition round at 2^-24
    half = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  out.bits = static_cast<uint16_t>(sign | half);
#endif
}

// A double to a 16-bit type in one rounding: first to float with the last bit made sticky (round to
// odd), which keeps the second rounding from seeing a false tie.
POSENC_INLINE float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  if (back == x || x != x) return nearest;
  const bool away = (back < 0 ? -back : back) > (x < 0 ? -x : x);
  return bits_float((float_bits(nearest) - (away ? 1u : 0u)) | 1u);
}

POSENC_INLINE void narrow(double x, float& out) { out = static_cast<float>(x); }
POSENC_INLINE void narrow(double x, bf16& out) { narrow(round_to_odd(x), out); }
POSENC_INLINE void narrow(double x, f16& out) { narrow(round_to_odd(x), out); }

}  // namespace posenc
