// The CUDA runtime, or what stands in for it when the kernels are compiled for the CPU.
#pragma once

#ifdef POSENC_CUDA_ON_CPU
#include "cuda_on_cpu.h"
#else
#include <cuda_runtime_api.h>
#endif
