// Derivatives of the ops when they are called through the dispatcher, as exported and compiled
// graphs and torch.func do. The formulas are in posenc_ext/ops/*_autograd.py; a call that needs
// none of them does not enter Python.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <unordered_map>

namespace posenc {

namespace py = pybind11;

namespace {

// By the name of the op: its arguments to its differentiable results. Never freed, as there is no
// Python left to do so when statics go.
std::unordered_map<std::string, PyObject*>& functions() {
  static auto* const map = new std::unordered_map<std::string, PyObject*>;
  return *map;
}

bool has_derivative(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const at::Tensor& t = value.toTensor();
  return t.defined() &&
         ((c10::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(0).defined());
}

py::object to_python(const c10::IValue& value, const c10::Type& type) {
  if (type.kind() == c10::TypeKind::ScalarTypeType) return py::cast(value.toScalarType());
  return torch::jit::toPyObject(value);
}

void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  if (std::none_of(arguments.begin(), arguments.end(), has_derivative)) {
    const at::AutoDispatchBelowAutograd below_autograd;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    return;
  }
  const py::gil_scoped_acquire gil;
  const auto values = torch::jit::pop(*stack, count);
  py::tuple positional(count);
  for (size_t i = 0; i < count; ++i) {
    positional[i] = to_python(values[i], *op.schema().arguments()[i].real_type());
  }
  const auto function = py::reinterpret_borrow<py::object>(functions().at(op.schema().name()));
  const py::object result = function(*positional);
  if (op.schema().returns().size() == 1) {
    torch::jit::push(*stack, result.cast<at::Tensor>());
  } else {
    for (const py::handle each : result) torch::jit::push(*stack, each.cast<at::Tensor>());
  }
}

}  // namespace

void differentiate(const std::string& name, py::object function) {
  static torch::Library* const library = new torch::Library(
      torch::Library::IMPL, "posenc_ext", c10::DispatchKey::Autograd, __FILE__, __LINE__);
  functions()["posenc_ext::" + name] = function.release().ptr();
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&call>());
}

}  // namespace posenc
