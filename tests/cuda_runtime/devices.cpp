// The stand-in: kernels, devices, errors, and what torch asks of the driver and of cuBLAS.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "stand_in.h"

namespace stand_in {

void note(const char* format, ...) {
  char line[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  const std::lock_guard lock(mutex);
  written.append(line).append("\n");
}

cudaError_t fail(cudaError_t error, const char* what) {
  note("error %d %s", error, what);
  return last = error;
}

}  // namespace stand_in

using namespace stand_in;

namespace {

std::map<const void*, std::string> names;  // of kernels
struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, cudaStream_t stream) {
  if (foreign(stream)) return fail(cudaErrorInvalidResourceHandle, "launch: stream of a device");
  if (!grid.x || !grid.y || !grid.z || !block.x || block.x * block.y * block.z > 1024 ||
      grid.y > 65535 || grid.z > 65535)
    return fail(cudaErrorInvalidConfiguration, "launch: grid or block");
  const auto found = names.find(kernel);
  note("launch %d %llu %s", current, number(stream),
       found == names.end() ? "?" : found->second.c_str());
  return cudaSuccess;
}

// What torch asks of the driver itself: whether a device is in use.
int context_state(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int not_supported() { return 801; }

}  // namespace

extern "C" {

// What was written since the last call, to be freed by the caller.
char* stand_in_take() {
  const std::lock_guard lock(mutex);
  char* result = strdup(written.c_str());
  written.clear();
  return result;
}

// Kernels.
void** __cudaRegisterFatBinary(void*) { return static_cast<void**>(calloc(1, sizeof(void*))); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  names[host] = name;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid, *block = top.block, *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t,
                             cudaStream_t stream) {
  return launch(kernel, grid, block, stream);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* kernel, void**) {
  return launch(kernel, how->gridDim, how->blockDim, how->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* result, const void*) {
  *result = {};
  result->maxThreadsPerBlock = 1024;
  result->numRegs = 32;
  result->ptxVersion = result->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 4;
  return cudaSuccess;
}

// Devices.
cudaError_t cudaGetDeviceCount(int* count) { return *count = devices, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return fail(cudaErrorInvalidDevice, "cudaSetDevice");
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* result, int device) {
  *result = {};
  snprintf(result->name, sizeof result->name, "stand-in %d", device);
  result->major = 9;
  result->totalGlobalMem = size_t{140} << 30;
  result->sharedMemPerBlock = 48 << 10;
  result->sharedMemPerBlockOptin = 227 << 10;
  result->sharedMemPerMultiprocessor = 228 << 10;
  result->regsPerBlock = result->regsPerMultiprocessor = 65536;
  result->warpSize = 32;
  result->maxThreadsPerBlock = 1024;
  result->maxThreadsPerMultiProcessor = 2048;
  result->maxBlocksPerMultiProcessor = 32;
  result->multiProcessorCount = 132;
  for (int axis = 0; axis < 3; ++axis) {
    result->maxThreadsDim[axis] = axis < 2 ? 1024 : 64;
    result->maxGridSize[axis] = axis ? 65535 : 2147483647;
  }
  result->l2CacheSize = 50 << 20;
  result->unifiedAddressing = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp all;
  cudaGetDeviceProperties(&all, device);
  *value = attribute == cudaDevAttrMultiProcessorCount            ? all.multiProcessorCount
           : attribute == cudaDevAttrComputeCapabilityMajor       ? all.major
           : attribute == cudaDevAttrMaxThreadsPerBlock           ? all.maxThreadsPerBlock
           : attribute == cudaDevAttrMaxSharedMemoryPerBlock      ? 48 << 10
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
           : attribute == cudaDevAttrWarpSize                     ? 32
           : attribute == cudaDevAttrMaxGridDimX                  ? 2147483647
                                                                  : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  snprintf(id, size, "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** result, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  const bool state = !strcmp(name, "cuDevicePrimaryCtxGetState");
  *result = state ? reinterpret_cast<void*>(context_state) : reinterpret_cast<void*>(not_supported);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Errors.
cudaError_t cudaGetLastError() {
  const cudaError_t result = last;
  last = cudaSuccess;
  return result;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char* cudaGetErrorName(cudaError_t) { return "an error of the stand-in"; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorStreamCaptureUnsupported ? "operation not permitted in a capture"
                                                    : "an error of the stand-in";
}

// Of the driver, whose place this library takes, too, as far as torch looks its calls up.
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  return context_state(device, flags, active);
}
int cuCtxGetCurrent(void** context) { return *context = &configurations, 0; }
int cuCtxSetCurrent(void*) { return 0; }
#define POSENC_NOT_HERE(name) \
  int name() { return 801; }
POSENC_NOT_HERE(cuDeviceGet)
POSENC_NOT_HERE(cuDeviceGetAttribute)
POSENC_NOT_HERE(cuDevicePrimaryCtxRetain)
POSENC_NOT_HERE(cuFuncGetAttribute)
POSENC_NOT_HERE(cuFuncSetAttribute)
POSENC_NOT_HERE(cuFuncSetCacheConfig)
POSENC_NOT_HERE(cuGetErrorString)
POSENC_NOT_HERE(cuLaunchCooperativeKernel)
POSENC_NOT_HERE(cuLaunchKernel)
POSENC_NOT_HERE(cuLinkAddData_v2)
POSENC_NOT_HERE(cuLinkComplete)
POSENC_NOT_HERE(cuLinkCreate_v2)
POSENC_NOT_HERE(cuModuleGetFunction)
POSENC_NOT_HERE(cuModuleLoad)
POSENC_NOT_HERE(cuModuleLoadData)
POSENC_NOT_HERE(cuModuleLoadDataEx)
POSENC_NOT_HERE(cuModuleUnload)
POSENC_NOT_HERE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
POSENC_NOT_HERE(cuPointerGetAttribute)
POSENC_NOT_HERE(cuTensorMapEncodeTiled)

// cuBLAS, which needs a driver: matrix products are launches, too. Their arguments do not matter.
#define POSENC_BLAS(name) \
  int name() { return note("launch %d - " #name, current), 0; }
#define POSENC_BLAS_SILENT(name) \
  int name() { return 0; }
POSENC_BLAS(cublasSgemm_v2)
POSENC_BLAS(cublasDgemm_v2)
POSENC_BLAS(cublasGemmEx)
POSENC_BLAS(cublasSgemmStridedBatched)
POSENC_BLAS(cublasDgemmStridedBatched)
POSENC_BLAS(cublasGemmStridedBatchedEx)
POSENC_BLAS(cublasSgemv_v2)
POSENC_BLAS(cublasDgemv_v2)
POSENC_BLAS_SILENT(cublasCreate_v2)
POSENC_BLAS_SILENT(cublasDestroy_v2)
POSENC_BLAS_SILENT(cublasSetStream_v2)
POSENC_BLAS_SILENT(cublasSetWorkspace_v2)
POSENC_BLAS_SILENT(cublasSetMathMode)
POSENC_BLAS_SILENT(cublasGetMathMode)
POSENC_BLAS_SILENT(cublasSetPointerMode_v2)
POSENC_BLAS_SILENT(cublasGetPointerMode_v2)
}
