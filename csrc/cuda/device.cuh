// What every kernel uses: grid-stride loops, 16-byte access, checks on the device, the launch.
// Torch-free. The same kernels are compiled for the CPU as well, with -DPOSENC_CUDA_ON_CPU and a
// header of the tests that stands in for the CUDA runtime; nothing else may tell the two apart.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/runtime.h"
#include "half.h"

#ifndef POSENC_CUDA_ON_CPU
// Kernels take one struct by value, or a few plain arguments.
#define POSENC_LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(__VA_ARGS__)

// What assert() calls, which NDEBUG would take away.
extern "C" __host__ __device__ void __assert_fail(const char*, const char*, unsigned,
                                                  const char*) noexcept
    __attribute__((__noreturn__));

// Stops the kernel with a message unless `ok`, in every build. What follows must still stay inside
// its memory: other threads run on for a while.
#define POSENC_DEVICE_CHECK(ok, message) \
  ((ok) ? static_cast<void>(0) : __assert_fail(message, __FILE__, __LINE__, "posenc_ext"))

#define POSENC_MAX_BLOCKS 65535
#define POSENC_FULL_GPU 528  // blocks: four on each of 132 multiprocessors
#define POSENC_ASSUME_GLOBAL(pointer) __builtin_assume(__isGlobal(pointer))
#define POSENC_COUNT_READ(bytes)
#define POSENC_COUNT_WRITE(bytes)
#endif

#define POSENC_DEVICE static __device__ __forceinline__
#define POSENC_DEVICE_METHOD __device__ __forceinline__

namespace posenc {

constexpr int kThreads = 256;  // of every block

// Blocks that share a multiprocessor at least, where threads walk over rows with their loads in
// flight: the code for 10.0 and later needs the registers of two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kWalkingBlocks = 2;
#else
constexpr int kWalkingBlocks = 3;
#endif

// How many blocks to start for `items` of work. Kernels walk on in steps of the grid, so fewer
// blocks than items are right too, and no axis of the grid ever reaches its limit.
static inline int64_t grid_for(int64_t items) {
  return items < POSENC_MAX_BLOCKS ? items : POSENC_MAX_BLOCKS;
}

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The thread's place in the grid and the step to its next item:
//   for (int64_t i = grid_thread(); i < n; i += grid_step())
POSENC_DEVICE int64_t grid_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
POSENC_DEVICE int64_t grid_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

struct Division {
  int64_t quotient, remainder;
};

// a / b for numbers that are not negative; most are small, and 64 bits cost several times as much.
POSENC_DEVICE Division divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) {
    const auto small = static_cast<uint32_t>(a), by = static_cast<uint32_t>(b);
    const uint32_t quotient = small / by;
    return {quotient, small - quotient * by};
  }
  const int64_t quotient = a / b;
  return {quotient, a - quotient * b};
}

// Global memory is read and written through these.
template <class T>
POSENC_DEVICE T load(const T* from) {
  POSENC_COUNT_READ(sizeof(T));
  POSENC_ASSUME_GLOBAL(from);
  return *from;
}
template <class T>
POSENC_DEVICE void store(T* to, T value) {
  POSENC_COUNT_WRITE(sizeof(T));
  POSENC_ASSUME_GLOBAL(to);
  *to = value;
}

// 16 bytes of T, read and written in one instruction: the address must be a multiple of 16.
using Bytes16 = uint4;

template <class T>
struct Pack {
  static constexpr int size = 16 / sizeof(T);
  T at[size];
};

POSENC_DEVICE Bytes16 load16(const void* from) { return load(static_cast<const Bytes16*>(from)); }
POSENC_DEVICE void store16(void* to, const Bytes16& bytes) {
#ifdef __CUDA_ARCH__  // left to itself, the compiler makes four stores of some packs of 16-bit
                      // types
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(bytes.x), "r"(bytes.y), "r"(bytes.z), "r"(bytes.w)
               : "memory");
#else
  store(static_cast<Bytes16*>(to), bytes);
#endif
}

template <class T>
POSENC_DEVICE Pack<T> load_pack(const T* from) {
  const Bytes16 bytes = load16(from);
  Pack<T> pack;
  memcpy(&pack, &bytes, 16);
  return pack;
}
template <class T>
POSENC_DEVICE void store_pack(T* to, const Pack<T>& pack) {
  Bytes16 bytes;
  memcpy(&bytes, &pack, 16);
  store16(to, bytes);
}

// Two 16-bit elements in the word that holds them in memory, rounded in one instruction.
POSENC_DEVICE uint32_t narrow_two(float first, float second, bf16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  bf16 a, b;
  narrow(first, a), narrow(second, b);
  return a.bits | static_cast<uint32_t>(b.bits) << 16;
#endif
}
POSENC_DEVICE uint32_t narrow_two(float first, float second, f16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  f16 a, b;
  narrow(first, a), narrow(second, b);
  return a.bits | static_cast<uint32_t>(b.bits) << 16;
#endif
}

// 16 bytes of T as the type that arithmetic runs in, and back.
template <class T>
POSENC_DEVICE void widen_pack(const Bytes16& bytes, math_t<T>* to) {
  if constexpr (sizeof(T) == 2) {
    const uint32_t words[] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = widen(T{static_cast<uint16_t>(words[i])});
      to[2 * i + 1] = widen(T{static_cast<uint16_t>(words[i] >> 16)});
    }
  } else {
    memcpy(to, &bytes, 16);
  }
}
template <class T>
POSENC_DEVICE Bytes16 narrow_pack(const math_t<T>* from) {
  if constexpr (sizeof(T) == 2) {
    return {narrow_two(from[0], from[1], T{}), narrow_two(from[2], from[3], T{}),
            narrow_two(from[4], from[5], T{}), narrow_two(from[6], from[7], T{})};
  } else {
    Bytes16 bytes;
    memcpy(&bytes, from, 16);
    return bytes;
  }
}

// May a kernel use packs on rows that start at `data` plus any multiples of these strides (in
// elements of `item` bytes)?
template <class... Strides>
static inline bool aligned16(const void* data, int64_t item, Strides... strides) {
  return ((reinterpret_cast<uintptr_t>(data) | ... | static_cast<uintptr_t>(strides * item)) &
          15) == 0;
}

}  // namespace posenc
