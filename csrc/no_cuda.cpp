// In a build without CUDA kernels every op says so when it meets a CUDA tensor.
#ifndef POSENC_CUDA_VERSION
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <string_view>

#include "checks.h"
#include "schemas.h"

namespace posenc {
namespace {

// The public function that an op stands behind: rope for rope_ and rope_out.
std::string_view public_name(std::string_view op) {
  if (op.ends_with("_out")) return op.substr(0, op.size() - 4);
  return op.ends_with("_") ? op.substr(0, op.size() - 1) : op;
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  std::string_view name = op.operator_name().name;
  name.remove_prefix(name.find("::") + 2);
  const at::IValue* given = &stack->back() + 1 - static_cast<int64_t>(arguments.size());
  size_t which = 0;  // the first on CUDA
  while (which + 1 < arguments.size() &&
         !(given[which].isTensor() && given[which].toTensor().is_cuda()))
    ++which;
  if (!given[which].isTensor()) which = 0;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "posenc_ext.", public_name(name), ": ",
                              arguments[which].name(),
                              " must be on the CPU, since this posenc_ext was built without CUDA "
                              "(reinstall it where nvcc and a torch with CUDA are), got a tensor "
                              "on ",
                              given[which].toTensor().device());
}

TORCH_LIBRARY_IMPL(posenc_ext, CUDA, m) {
  for (std::string_view schema : kSchemas)
    m.impl(std::string(schema.substr(0, schema.find('('))).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace
}  // namespace posenc
#endif
