// The library of ops, and the module. Only this file and autograd.cpp see Python.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>

#include "checks.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "schemas.h"
#include "sinusoidal.h"

TORCH_LIBRARY(posenc_ext, m) { posenc::define_ops(m); }

namespace posenc {

void differentiate(const std::string& name, pybind11::object function);  // autograd.cpp

namespace {

namespace py = pybind11;
using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

// ---- The short path: an eager call that needs the kernel and nothing else. ----
//
// posenc_ext.ops calls these first. They take the arguments as Python gave them and answer None for
// whatever is not plain: a gradient, a transform, a mode, a subclass, a wrong type. The Python code
// then goes the long way, which also words the errors. Both ways end in the same dispatcher op.

bool modes_active() {
  const auto& included = c10::impl::tls_local_dispatch_key_set().included_;
  return included.has_any(c10::DispatchKeySet({c10::DispatchKey::Python,
                                               c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                               c10::DispatchKey::Functionalize})) ||
         at::impl::torch_function_mode_enabled();
}

class PlainArguments {
 public:
  explicit PlainArguments(bool plain) : plain_(plain) {}

  const Tensor& tensor(py::handle object) {
    static const Tensor none;
    if (!THPVariable_CheckExact(object.ptr())) {
      plain_ = false;
      return none;
    }
    const Tensor& t = THPVariable_Unpack(object.ptr());
    const bool derivative =
        t.unsafeGetTensorImpl()->autograd_meta() != nullptr &&
        ((t.requires_grad() && c10::GradMode::is_enabled()) || t._fw_grad(0).defined());
    plain_ = plain_ && !derivative && !t.is_complex() && !t.is_neg() &&
             t.key_set().has(c10::DispatchKey::Dense);
    return t;
  }

  OptionalTensor optional_tensor(py::handle object) {
    if (object.is_none()) return std::nullopt;
    return tensor(object);
  }

  bool boolean(py::handle object) {
    plain_ = plain_ && PyBool_Check(object.ptr());
    return object.ptr() == Py_True;
  }

  c10::string_view string(py::handle object) {
    Py_ssize_t size = 0;
    const char* text =
        PyUnicode_Check(object.ptr()) ? PyUnicode_AsUTF8AndSize(object.ptr(), &size) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      plain_ = false;
      return {};
    }
    return {text, static_cast<size_t>(size)};
  }

  // An int, or a tensor of ints.
  int64_t offset(py::handle object, OptionalTensor& offsets) {
    if (!PyLong_CheckExact(object.ptr())) {
      offsets = tensor(object);
      return 0;
    }
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    plain_ = plain_ && overflow == 0;
    return value;
  }

  bool plain() const { return plain_; }

 private:
  bool plain_;
};

struct RopeArguments {
  Tensor cos, sin;
  OptionalTensor positions, offsets, cu_seqlens;
  int64_t offset = 0;
  c10::string_view layout;
  bool interleaved = false, inverse = false, inplace = false;

  RopeArguments(PlainArguments& read, py::handle cos_, py::handle sin_, py::handle layout_,
                py::handle positions_, py::handle offset_, py::handle cu_seqlens_,
                py::handle interleaved_, py::handle inverse_, py::handle inplace_)
      : cos(read.tensor(cos_)),
        sin(read.tensor(sin_)),
        positions(read.optional_tensor(positions_)),
        cu_seqlens(read.optional_tensor(cu_seqlens_)),
        layout(read.string(layout_)),
        interleaved(read.boolean(interleaved_)),
        inverse(read.boolean(inverse_)),
        inplace(read.boolean(inplace_)) {
    offset = read.offset(offset_, offsets);
  }
};

template <class Result, class... Lead>
using RopeOp = Result(Lead..., const Tensor&, const Tensor&, const OptionalTensor&,
                      const OptionalTensor&, const OptionalTensor&, SymInt, c10::string_view, bool,
                      bool);

template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Runs below autograd, and without the GIL when there is enough work for another thread to matter.
template <class Call>
auto run(int64_t elements, const Call& call) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (elements < 65536) return call();
  py::gil_scoped_release no_gil;
  return call();
}

py::object rope(py::handle x_, py::handle cos, py::handle sin, py::handle layout,
                py::handle positions, py::handle offset, py::handle cu_seqlens,
                py::handle interleaved, py::handle inverse, py::handle inplace, py::handle out_) {
  static const auto op = find_op<RopeOp<Tensor, const Tensor&>>("posenc_ext::rope");
  static const auto op_ = find_op<RopeOp<void, const Tensor&>>("posenc_ext::rope_");
  PlainArguments read(!modes_active() && out_.is_none());
  const Tensor& x = read.tensor(x_);
  const RopeArguments a(read, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
                        inplace);
  if (!read.plain()) return py::none();
  if (a.inplace) {
    run(x.numel(), [&] {
      op_.call(x, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
               a.interleaved, a.inverse);
    });
    return py::reinterpret_borrow<py::object>(x_);
  }
  Tensor result = run(x.numel(), [&] {
    return op.call(x, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
                   a.interleaved, a.inverse);
  });
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(result)));
}

py::object apply_rope(py::handle q_, py::handle k_, py::handle cos, py::handle sin,
                      py::handle layout, py::handle positions, py::handle offset,
                      py::handle cu_seqlens, py::handle interleaved, py::handle inverse,
                      py::handle inplace) {
  using Pair = std::tuple<Tensor, Tensor>;
  static const auto op =
      find_op<RopeOp<Pair, const Tensor&, const Tensor&>>("posenc_ext::apply_rope");
  static const auto op_ =
      find_op<RopeOp<void, const Tensor&, const Tensor&>>("posenc_ext::apply_rope_");
  PlainArguments read(!modes_active());
  const Tensor &q = read.tensor(q_), &k = read.tensor(k_);
  const RopeArguments a(read, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
                        inplace);
  if (!read.plain()) return py::none();
  const int64_t elements = q.numel() + k.numel();
  if (a.inplace) {
    run(elements, [&] {
      op_.call(q, k, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
               a.interleaved, a.inverse);
    });
    return py::make_tuple(q_, k_);
  }
  auto [q_out, k_out] = run(elements, [&] {
    return op.call(q, k, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
                   a.interleaved, a.inverse);
  });
  return py::make_tuple(py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(q_out))),
                        py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(k_out))));
}

py::object add_sinusoidal(py::handle x_, py::handle offset_, py::handle scale, py::handle base_,
                          bool interleaved, bool cos_first, bool pad, double shift) {
  using Op =
      Tensor(const Tensor&, const Tensor&, const OptionalTensor&, SymInt, double, bool, bool);
  static const auto op = find_op<Op>("posenc_ext::add_sinusoidal");
  PlainArguments read(!modes_active() && PyFloat_CheckExact(scale.ptr()) &&
                      PyFloat_CheckExact(base_.ptr()));
  const Tensor& x = read.tensor(x_);
  OptionalTensor offsets;
  const int64_t offset = read.offset(offset_, offsets);
  if (!read.plain() || !x.is_cpu() || x.dim() < 2) return py::none();
  const double base = PyFloat_AS_DOUBLE(base_.ptr());
  const int64_t dim = x.size(-1), count = pad ? dim / 2 : (dim + 1) / 2;
  double denominator = (pad ? static_cast<double>(dim / 2) : static_cast<double>(dim) / 2) - shift;
  if (count <= 1) denominator = 1;
  if (!(base > 0 && std::isfinite(base) && denominator > 0)) return py::none();
  Tensor result = run(x.numel(), [&] {
    return op.call(x, kept_frequencies(count, base, denominator), offsets, offset,
                   PyFloat_AS_DOUBLE(scale.ptr()), interleaved, cos_first);
  });
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(result)));
}

// Would autograd allow to write into t a result that needs a gradient, through t or another input?
// Raises as it would, before anything is written.
void check_inplace(const Tensor& t, bool requires_grad) {
  torch::autograd::check_inplace(t, c10::GradMode::is_enabled() && requires_grad);
}

// Is `given` a plain tensor on the CPU with the values of `seen`, which is one and is contiguous?
bool same_values(py::handle seen_, py::handle given_) {
  PlainArguments read(!modes_active() &&
                      !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer));
  const Tensor &seen = read.tensor(seen_), &given = read.tensor(given_);
  if (!read.plain() || !given.is_cpu() || given.scalar_type() != seen.scalar_type() ||
      given.sizes() != seen.sizes() || !given.is_contiguous()) {
    return false;
  }
  return given.nbytes() == 0 ||
         std::memcmp(seen.const_data_ptr(), given.const_data_ptr(), given.nbytes()) == 0;
}

const char* cpu_capability() {
  switch (current_isa()) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    case Isa::plain:
      break;
  }
  return "default";
}

py::dict build_info() {
  py::dict info;
  info["version"] = POSENC_VERSION;
  info["torch"] = POSENC_TORCH_VERSION;
#ifdef POSENC_CUDA_VERSION
  info["cuda"] = POSENC_CUDA_VERSION;
#else
  info["cuda"] = py::none();
#endif
#ifdef _OPENMP
  info["openmp"] = true;
#else
  info["openmp"] = false;
#endif
#ifdef __VERSION__
  info["compiler"] = __VERSION__;
#else
  info["compiler"] = py::none();
#endif
#ifdef __FAST_MATH__
  info["fast_math"] = true;
#else
  info["fast_math"] = false;
#endif
  return info;
}

}  // namespace
}  // namespace posenc

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native kernels of posenc_ext.";
  m.def("rope", torch::wrap_pybind_function(posenc::rope));
  m.def("apply_rope", torch::wrap_pybind_function(posenc::apply_rope));
  m.def("add_sinusoidal", torch::wrap_pybind_function(posenc::add_sinusoidal));
  m.def("check_inplace", torch::wrap_pybind_function(posenc::check_inplace));
  m.def("differentiate", torch::wrap_pybind_function(posenc::differentiate));
  m.def("same_values", posenc::same_values);
  m.def("in_forked_child", posenc::in_forked_child);
  m.def("cpu_capability", posenc::cpu_capability, "ISA of the row kernels in use.");
  m.def("build_info", posenc::build_info, "What the module was compiled against.");
}
