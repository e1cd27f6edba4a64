// The library of ops, and the module. Only this file, what it reads arguments with, and
// autograd.cpp see Python.
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
#include "power.h"
#include "schemas.h"
#include "short_arguments.h"
#include "sinusoidal.h"

TORCH_LIBRARY(posenc_ext, m) { posenc::define_ops(m); }

namespace posenc {

void differentiate(const std::string& name, pybind11::object function);  // autograd.cpp
void bind_norm_rope(pybind11::module_& m);                               // norm_rope_bindings.cpp

namespace {

template <class Result, class... Lead>
using RopeOp = Result(Lead..., const Tensor&, const Tensor&, const OptionalTensor&,
                      const OptionalTensor&, const OptionalTensor&, SymInt, c10::string_view, bool,
                      bool, bool);

template <class Result>
using CacheOp = Result(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                       const OptionalTensor&, SymInt, c10::string_view, bool, bool, bool,
                       const OptionalTensor&, c10::string_view, SymInt, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor&, double, double,
                       std::optional<c10::string_view>, c10::string_view, c10::string_view,
                       c10::string_view);

py::object rope(py::handle x_, py::handle cos, py::handle sin, py::handle layout,
                py::handle positions, py::handle offset, py::handle cu_seqlens,
                py::handle interleaved, py::handle inverse, py::handle inplace,
                py::handle interleaved_out, py::handle out_) {
  static const auto op = find_op<RopeOp<Tensor, const Tensor&>>("posenc_ext::rope");
  static const auto op_ = find_op<RopeOp<void, const Tensor&>>("posenc_ext::rope_");
  PlainArguments read(!modes_active() && out_.is_none());
  const Tensor& x = read.rotated(x_);
  const RopeArguments a(read, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
                        inplace, interleaved_out);
  if (!read.plain() || (read.needs_graph() && a.inplace)) return py::none();
  if (read.needs_graph()) {
    Tensor result;
    {
      const py::gil_scoped_release no_gil;
      result = rotate_with_graph(x, std::nullopt, a.graph_options()).first;
    }
    return wrap(std::move(result));
  }
  if (a.inplace) {
    run(x.numel(), [&] {
      op_.call(x, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
               a.interleaved, a.inverse, a.interleaved_out);
    });
    return py::reinterpret_borrow<py::object>(x_);
  }
  Tensor result = run(x.numel(), [&] {
    return op.call(x, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
                   a.interleaved, a.inverse, a.interleaved_out);
  });
  return wrap(std::move(result));
}

py::object apply_rope(py::handle q_, py::handle k_, py::handle cos, py::handle sin,
                      py::handle layout, py::handle positions, py::handle offset,
                      py::handle cu_seqlens, py::handle interleaved, py::handle inverse,
                      py::handle inplace, py::handle interleaved_out) {
  using Pair = std::tuple<Tensor, Tensor>;
  static const auto op =
      find_op<RopeOp<Pair, const Tensor&, const Tensor&>>("posenc_ext::apply_rope");
  static const auto op_ =
      find_op<RopeOp<void, const Tensor&, const Tensor&>>("posenc_ext::apply_rope_");
  PlainArguments read(!modes_active());
  const Tensor &q = read.rotated(q_), &k = read.rotated(k_);
  const RopeArguments a(read, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
                        inplace, interleaved_out);
  if (!read.plain() || (read.needs_graph() && a.inplace)) return py::none();
  if (read.needs_graph()) {
    std::pair<Tensor, Tensor> rotated;
    {
      const py::gil_scoped_release no_gil;
      rotated = rotate_with_graph(q, k, a.graph_options());
    }
    return py::make_tuple(wrap(std::move(rotated.first)), wrap(std::move(rotated.second)));
  }
  const int64_t elements = q.numel() + k.numel();
  if (a.inplace) {
    run(elements, [&] {
      op_.call(q, k, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
               a.interleaved, a.inverse, a.interleaved_out);
    });
    return py::make_tuple(q_, k_);
  }
  auto [q_out, k_out] = run(elements, [&] {
    return op.call(q, k, a.cos, a.sin, a.positions, a.offsets, a.cu_seqlens, a.offset, a.layout,
                   a.interleaved, a.inverse, a.interleaved_out);
  });
  return py::make_tuple(wrap(std::move(q_out)), wrap(std::move(k_out)));
}

py::object apply_rope_cache(py::handle q_, py::handle k_, py::handle v_, py::handle k_cache,
                            py::handle v_cache, py::handle cos, py::handle sin, py::handle layout,
                            py::handle positions, py::handle offset, py::handle cu_seqlens,
                            py::handle interleaved, py::handle inverse, py::handle inplace,
                            py::handle interleaved_out, py::handle slots, py::handle cache_layout,
                            py::handle window, py::handle k_scale, py::handle v_scale,
                            py::handle norm) {
  static const auto op = find_op<CacheOp<Tensor>>("posenc_ext::apply_rope_cache");
  static const auto op_ = find_op<CacheOp<void>>("posenc_ext::apply_rope_cache_");
  PlainArguments read(!modes_active());
  const Tensor &q = read.tensor(q_), &k = read.tensor(k_), &v = read.tensor(v_);
  const RopeArguments a(read, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
                        inplace, interleaved_out);
  const CacheArguments c(read, k_cache, v_cache, slots, cache_layout, window, k_scale, v_scale);
  const CacheNormArguments n(read, norm);
  if (!read.plain()) return py::none();
  const auto call = [&](const auto& handle) {
    return run(q.numel() + 2 * k.numel(), [&] {
      return handle.call(q, k, v, c.k_cache, c.v_cache, a.cos, a.sin, a.positions, a.offsets,
                         a.cu_seqlens, a.offset, a.layout, a.interleaved, a.inverse,
                         a.interleaved_out, c.slots, c.layout, c.window, c.k_scale, c.v_scale,
                         n.q_weight, n.k_weight, n.q_bias, n.k_bias, n.eps, n.weight_offset, n.norm,
                         n.norm_dims, n.order, n.rounding);
    });
  };
  if (a.inplace) {
    call(op_);
    return py::reinterpret_borrow<py::object>(q_);
  }
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(call(op)));
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
  m.def("apply_rope_cache", torch::wrap_pybind_function(posenc::apply_rope_cache));
  posenc::bind_norm_rope(m);
  m.def("add_sinusoidal", torch::wrap_pybind_function(posenc::add_sinusoidal));
  m.def("check_inplace", torch::wrap_pybind_function(posenc::check_inplace));
  m.def("differentiate", torch::wrap_pybind_function(posenc::differentiate));
  m.def("same_values", posenc::same_values);
  m.def("power", posenc::power);
  m.def("in_forked_child", posenc::in_forked_child);
  m.def("cpu_capability", posenc::cpu_capability, "ISA of the row kernels in use.");
  m.def("build_info", posenc::build_info, "What the module was compiled against.");
}
