// What a cache of keys and values stores: the float8 formats and int8, rounded to nearest even and
// saturated. Torch-free.
#pragma once

#include "half.h"

namespace posenc {

// How a cache stores an element: as it is, or divided by a scale and rounded to 8 bits.
enum class CacheFormat { same, e4m3, e5m2, int8 };

// 4 bits of exponent, 3 of mantissa, no infinity; the largest is 448.
struct e4m3 {
  uint8_t bits;
};
// 5 bits of exponent, 2 of mantissa; the largest number is 57344.
struct e5m2 {
  uint8_t bits;
};

// A NaN stays one. Below the smallest normal number the sum rounds at the smallest subnormal.
POSENC_INLINE void saturate(float x, e4m3& out) {
  const uint32_t u = float_bits(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  const uint32_t small = float_bits(bits_float(magnitude) + 16384.0f) - 0x46800000u;  // of 2^-9
  const uint32_t normal = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  uint32_t bits = magnitude < 0x3c800000u ? small : normal;  // 2^-6
  bits = magnitude >= 0x43e00000u ? 0x7eu : bits;            // 448
  bits = magnitude > 0x7f800000u ? 0x7fu : bits;
  out.bits = static_cast<uint8_t>(sign | bits);
}
POSENC_INLINE void saturate(float x, e5m2& out) {
  const uint32_t u = float_bits(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  const uint32_t small = float_bits(bits_float(magnitude) + 128.0f) - 0x43000000u;  // of 2^-16
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
  uint32_t bits = magnitude < 0x38800000u ? small : normal;  // 2^-14
  bits = magnitude >= 0x47600000u ? 0x7bu : bits;            // 57344
  bits = magnitude > 0x7f800000u ? 0x7fu : bits;
  out.bits = static_cast<uint8_t>(sign | bits);
}
// A NaN becomes 0.
POSENC_INLINE void saturate(float x, int8_t& out) {
  float clamped = x < 127.0f ? x : 127.0f;
  clamped = clamped > -128.0f ? clamped : -128.0f;
  clamped = x != x ? 0.0f : clamped;
  const uint32_t rounded = float_bits(clamped + 12582912.0f) - 0x4b400000u;  // 1.5 * 2^23
  out = static_cast<int8_t>(static_cast<int32_t>(rounded));
}

}  // namespace posenc
