// A stand-in for the CUDA runtime, for two GPUs that are not there: device memory is host memory,
// copies happen at once, kernels do nothing. What torch and the extension ask of the runtime is
// written down, a line each, for stand_in.py to read. Preloaded, it takes the place of libcudart.
// A call that would break the capture of a graph, or that names a stream of another device, fails
// as the runtime's would. What is not here fails for want of a driver.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <string>

struct CUstream_st {
  int device;
  int capture = 0;      // the number of the capture it takes part in, or 0
  bool origin = false;  // did that begin here?
};
struct CUevent_st {
  int capture = 0;
};

namespace stand_in {

constexpr int devices = 2;
inline std::recursive_mutex mutex;
inline std::string written;
inline thread_local int current = 0;
inline thread_local cudaError_t last = cudaSuccess;

// Writes a line.
void note(const char* format, ...);
// Writes it down, for the caller to return.
cudaError_t fail(cudaError_t error, const char* what);

// The default stream is 0 on every device.
inline bool capturing(cudaStream_t stream) { return stream && stream->capture; }
inline bool foreign(cudaStream_t stream) { return stream && stream->device != current; }
inline unsigned long long number(const void* handle) {
  return reinterpret_cast<unsigned long long>(handle);
}

}  // namespace stand_in
