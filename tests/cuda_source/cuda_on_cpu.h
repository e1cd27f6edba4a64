// Stands in for the CUDA runtime, so that g++ compiles the kernels of csrc/cuda and a CPU runs
// them: every thread of a block is a fiber, and blocks run one after the other. It shows what a
// kernel computes and where it reads and writes, not how fast, and not races within a warp.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // blocks run one after the other

struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
using dim3 = uint3;
using cudaStream_t = void*;

inline uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuda_on_cpu {

// Runs the kernel in every thread of every block. An exception of a thread ends the launch.
void launch(int64_t blocks, int threads, const std::function<void()>& kernel);

void block_barrier();
void warp_barrier(unsigned mask);
// The value that lane `from` of this thread's warp gives in the same call. The mask must name this
// lane and that one.
uint64_t exchange(unsigned mask, uint64_t value, unsigned from);

// On a GPU a failed assert stops the launch, but other threads run on for a while.
inline bool stop_at_asserts = true;
inline void device_assert(const char* message) {
  if (stop_at_asserts) throw std::runtime_error(message);
}

struct Traffic {
  int64_t read, written;  // bytes, by load() and store()
};
inline Traffic traffic;

template <class T>
T shuffle(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(mask, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::block_barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { cuda_on_cpu::warp_barrier(mask); }
template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return cuda_on_cpu::shuffle(mask, value, static_cast<unsigned>(lane) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip) {
  return cuda_on_cpu::shuffle(mask, value, (threadIdx.x % 32) ^ static_cast<unsigned>(flip));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = threadIdx.x % 32;
  return cuda_on_cpu::shuffle(mask, value, lane + delta < 32 ? lane + delta : lane);
}

// Few blocks, so that a kernel has to walk on to items beyond its grid.
#define POSENC_MAX_BLOCKS 7
#define POSENC_FULL_GPU 2
#define POSENC_ASSUME_GLOBAL(pointer)
#define POSENC_COUNT_READ(bytes) (cuda_on_cpu::traffic.read += static_cast<int64_t>(bytes))
#define POSENC_COUNT_WRITE(bytes) (cuda_on_cpu::traffic.written += static_cast<int64_t>(bytes))
#define POSENC_LAUNCH(kernel, blocks, threads, stream, ...) \
  (static_cast<void>(stream), cuda_on_cpu::launch(blocks, threads, [&] { kernel(__VA_ARGS__); }))
#define POSENC_DEVICE_CHECK(ok, message) \
  ((ok) ? static_cast<void>(0) : cuda_on_cpu::device_assert("device assert: " message))
