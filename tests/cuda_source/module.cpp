// The ops of csrc/cuda in a library of their own, posenc_cuda_source, with the kernels on the CPU.
#include <torch/library.h>

#include "cuda_on_cpu.h"
#include "schemas.h"

namespace {

// Bytes read and written by the kernels since the last call.
std::tuple<int64_t, int64_t> traffic() {
  const cuda_on_cpu::Traffic seen = cuda_on_cpu::traffic;
  cuda_on_cpu::traffic = {};
  return {seen.read, seen.written};
}

}  // namespace

TORCH_LIBRARY(posenc_cuda_source, m) {
  posenc::define_ops(m);
  m.def("traffic() -> (int, int)", traffic);
  m.def("stop_at_asserts(bool stop) -> ()", [](bool stop) { cuda_on_cpu::stop_at_asserts = stop; });
}
