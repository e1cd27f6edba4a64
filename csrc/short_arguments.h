// The arguments of a short call, as Python gave them, and the call. Included by *bindings.cpp only.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cmath>
#include <optional>

#include "rope_graph.h"

namespace posenc {

namespace py = pybind11;
using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

// ---- The short path: an eager call that needs the kernel and nothing else. ----
//
// posenc_ext.ops calls these first. They take the arguments as Python gave them and answer None for
// whatever is not plain: a gradient in more than what is rotated, a transform, a mode, a subclass,
// a wrong type. The Python code then goes the long way, which also words the errors. Both ways end
// in the same dispatcher op.

inline py::object wrap(Tensor t) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(t)));
}

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

inline bool modes_active() {
  const auto& included = c10::impl::tls_local_dispatch_key_set().included_;
  return included.has_any(c10::DispatchKeySet({c10::DispatchKey::Python,
                                               c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                               c10::DispatchKey::Functionalize})) ||
         at::impl::torch_function_mode_enabled();
}

class PlainArguments {
 public:
  explicit PlainArguments(bool plain) : plain_(plain) {}

  // One that may require a gradient: then it needs a graph, but is plain otherwise.
  const Tensor& rotated(py::handle object) {
    const bool required = THPVariable_CheckExact(object.ptr()) && c10::GradMode::is_enabled() &&
                          THPVariable_Unpack(object.ptr()).requires_grad();
    needs_graph_ = needs_graph_ || required;
    return tensor(object, required);
  }

  const Tensor& tensor(py::handle object, bool may_require_grad = false) {
    static const Tensor none;
    if (!THPVariable_CheckExact(object.ptr())) {
      plain_ = false;
      return none;
    }
    const Tensor& t = THPVariable_Unpack(object.ptr());
    const bool derivative =
        t.unsafeGetTensorImpl()->autograd_meta() != nullptr &&
        ((t.requires_grad() && c10::GradMode::is_enabled() && !may_require_grad) ||
         t._fw_grad(0).defined());
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

  // A finite float; what is none is worded elsewhere.
  double real(py::handle object) {
    const double value = PyFloat_CheckExact(object.ptr()) ? PyFloat_AS_DOUBLE(object.ptr()) : NAN;
    plain_ = plain_ && std::isfinite(value);
    return value;
  }

  // An int of at least 1; what is not one is worded elsewhere.
  int64_t positive(py::handle object) {
    int overflow = 0;
    const int64_t value =
        PyLong_CheckExact(object.ptr()) ? PyLong_AsLongLongAndOverflow(object.ptr(), &overflow) : 0;
    plain_ = plain_ && overflow == 0 && value > 0;
    return value;
  }

  bool plain() const { return plain_; }
  bool needs_graph() const { return needs_graph_; }

 private:
  bool plain_, needs_graph_ = false;
};

struct RopeArguments {
  Tensor cos, sin;
  OptionalTensor positions, offsets, cu_seqlens;
  int64_t offset = 0;
  c10::string_view layout;
  bool interleaved = false, inverse = false, inplace = false, interleaved_out = false;

  RopeArguments(PlainArguments& read, py::handle cos_, py::handle sin_, py::handle layout_,
                py::handle positions_, py::handle offset_, py::handle cu_seqlens_,
                py::handle interleaved_, py::handle inverse_, py::handle inplace_,
                py::handle interleaved_out_)
      : cos(read.tensor(cos_)),
        sin(read.tensor(sin_)),
        positions(read.optional_tensor(positions_)),
        cu_seqlens(read.optional_tensor(cu_seqlens_)),
        layout(read.string(layout_)),
        interleaved(read.boolean(interleaved_)),
        inverse(read.boolean(inverse_)),
        inplace(read.boolean(inplace_)),
        interleaved_out(interleaved_out_.is_none() ? interleaved : read.boolean(interleaved_out_)) {
    offset = read.offset(offset_, offsets);
  }

  RopeGraphOptions graph_options() const {
    return {cos,    sin,    positions,   offsets, cu_seqlens,
            offset, layout, interleaved, inverse, interleaved_out};
  }
};

struct NormArguments {
  double eps, weight_offset;
  c10::string_view norm, norm_dims, order, rounding;

  NormArguments(PlainArguments& read, py::handle eps_, py::handle weight_offset_, py::handle norm_,
                py::handle norm_dims_, py::handle order_, py::handle rounding_)
      : eps(read.real(eps_)),
        weight_offset(read.real(weight_offset_)),
        norm(read.string(norm_)),
        norm_dims(read.string(norm_dims_)),
        order(read.string(order_)),
        rounding(read.string(rounding_)) {}
};

// None, or (q_weight, k_weight, q_bias, k_bias, options in the order of NormArguments).
struct CacheNormArguments {
  OptionalTensor q_weight, k_weight, q_bias, k_bias;
  double eps = 0, weight_offset = 0;
  std::optional<c10::string_view> norm;
  c10::string_view norm_dims = "head", order = "norm_first", rounding = "once";

  CacheNormArguments(PlainArguments& read, py::handle given) {
    if (given.is_none()) return;
    const auto at = [&](Py_ssize_t i) { return py::handle(PyTuple_GET_ITEM(given.ptr(), i)); };
    q_weight = read.optional_tensor(at(0)), k_weight = read.optional_tensor(at(1));
    q_bias = read.optional_tensor(at(2)), k_bias = read.optional_tensor(at(3));
    eps = read.real(at(4)), weight_offset = read.real(at(5));
    norm = read.string(at(6)), norm_dims = read.string(at(7));
    order = read.string(at(8)), rounding = read.string(at(9));
  }
};

struct CacheArguments {
  Tensor k_cache, v_cache;
  OptionalTensor slots;
  c10::string_view layout;
  int64_t window = 0;
  OptionalTensor k_scale, v_scale;

  CacheArguments(PlainArguments& read, py::handle k_cache_, py::handle v_cache_, py::handle slots_,
                 py::handle layout_, py::handle window_, py::handle k_scale_, py::handle v_scale_)
      : k_cache(read.tensor(k_cache_)),
        v_cache(read.tensor(v_cache_)),
        slots(read.optional_tensor(slots_)),
        layout(layout_.is_none() ? c10::string_view(slots ? "nphd" : "blhd")
                                 : read.string(layout_)),
        window(window_.is_none() ? 0 : read.positive(window_)),
        k_scale(read.optional_tensor(k_scale_)),
        v_scale(read.optional_tensor(v_scale_)) {}
};

}  // namespace posenc
