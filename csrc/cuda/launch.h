// The torch side of a CUDA op: its device, its stream, and where it registers. Needs c10/cuda only:
// ATen/cuda/CUDAContext.h would pull in headers of cuBLAS and cuSPARSE, which many toolkits lack.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "cuda/runtime.h"

#ifdef POSENC_CUDA_ON_CPU
#define POSENC_CUDA_LIBRARY(m) TORCH_LIBRARY_IMPL(posenc_cuda_source, CPU, m)
#else
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#define POSENC_CUDA_LIBRARY(m) TORCH_LIBRARY_IMPL(posenc_ext, CUDA, m)
#endif

namespace posenc {

// Calls launch(stream) on the device of `t` and its current stream, and reports a failed launch.
template <class Launch>
void launch_on_device_of(const at::Tensor& t, const Launch& launch) {
#ifdef POSENC_CUDA_ON_CPU
  (void)t;
  launch(cudaStream_t{});
#else
  const c10::cuda::CUDAGuard guard(t.device());
  launch(c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
#endif
}

}  // namespace posenc
