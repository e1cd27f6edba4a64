// Arguments of norm_rope: what they must be beside those of rope, for CPU, CUDA and meta tensors.
#pragma once

#include <cmath>

#include "norm_rope_rule.h"
#include "rope.h"

namespace posenc {

// The arguments that every norm_rope op takes after those of rope.
struct NormOptions {
  double eps, weight_offset;
  std::string_view norm, norm_dims, order, rounding;
};

// A tensor to normalise and rotate, with its weights, under the names that the caller knows.
struct NormInput {
  RopeInput x;
  const char* weight_name;
  const std::optional<at::Tensor>& weight;  // [D]; [H * D] for norm_dims "all"
  const char* bias_name;
  const std::optional<at::Tensor>& bias;
};

inline void check_word(const char* op, const char* name, std::string_view word,
                       std::initializer_list<std::string_view> known) {
  for (const auto& each : known)
    if (each == word) return;
  std::string list;
  for (const auto& each : known) list += (list.empty() ? "'" : ", '") + std::string(each) + "'";
  POSENC_CHECK_VALUE(false, op, name, " must be one of ", list, ", got '", word, "'");
}

inline NormRule check_norm_options(const char* op, const NormOptions& o) {
  POSENC_CHECK_VALUE(std::isfinite(o.eps) && o.eps >= 0, op,
                     "eps must be finite and at least 0, got ", o.eps);
  POSENC_CHECK_VALUE(std::isfinite(o.weight_offset), op, "weight_offset must be finite, got ",
                     o.weight_offset);
  check_word(op, "norm", o.norm, {"rms", "layer", "l2"});
  check_word(op, "norm_dims", o.norm_dims, {"head", "all"});
  check_word(op, "order", o.order, {"norm_first", "rope_first"});
  check_word(op, "rounding", o.rounding, {"once", "norm", "transformers"});
  return {.eps = o.eps,
          .centred = o.norm == "layer",
          .averaged = o.norm != "l2",
          .rope_first = o.order == "rope_first",
          .round_unit = o.rounding == "transformers",
          .round_between = o.rounding != "once"};
}

// The weight or the bias of x.
template <class Int>
void check_norm_parameter(const char* op, RopeInput x, RopeAxes axes, const char* name,
                          const std::optional<at::Tensor>& t, bool all) {
  if (!t) return;
  const auto type = x.tensor.scalar_type();
  POSENC_CHECK_TYPE(t->scalar_type() == at::kFloat || t->scalar_type() == type, op, name,
                    " must be float32 or have the dtype of ", x.name, " (", type, "), got ",
                    t->scalar_type());
  POSENC_CHECK_VALUE(t->device() == x.tensor.device(), op, name, " must be on the device of ",
                     x.name, " (", x.tensor.device(), "), got ", t->device());
  POSENC_CHECK_TYPE(t->layout() == at::kStrided, op, name, " must be a dense tensor, got ",
                    t->layout());
  check_allocated<Int>(op, name, *t);
  const auto size = sizes_of<Int>(x.tensor);
  Int channels = size.back();
  if (all && axes.heads >= 0) channels = channels * size[axes.heads];
  const auto given = sizes_of<Int>(*t);
  POSENC_CHECK_VALUE(given.size() == 1 && given[0] == channels, op, name, " must have shape [",
                     all ? "H * D" : "D", "] = [", channels, "] for norm_dims '",
                     all ? "all" : "head", "', got ", given);
}

template <class Int>
RopeAxes check_norm_rope(const char* op, const NormInput& in, const NormOptions& norm,
                         const RopeOptions<Int>& options) {
  const RopeAxes axes = check_rope(op, in.x, options);
  POSENC_CHECK_VALUE(options.interleaved_out == options.interleaved, op,
                     "interleaved_out must equal interleaved, got ", options.interleaved_out);
  check_norm_options(op, norm);
  const bool all = norm.norm_dims == "all";
  check_norm_parameter<Int>(op, in.x, axes, in.weight_name, in.weight, all);
  check_norm_parameter<Int>(op, in.x, axes, in.bias_name, in.bias, all);
  return axes;
}

template <class Int>
RopeAxes check_qk_norm_rope(const char* op, const NormInput& q, const NormInput& k,
                            const NormOptions& norm, const RopeOptions<Int>& options) {
  check_apply_rope(op, q.x.tensor, k.x.tensor, options);
  check_norm_rope(op, q, norm, options);
  return check_norm_rope(op, k, norm, options);
}

// norm_rope_grad: x and its weights as for norm_rope, and the gradient of its output.
template <class Int>
RopeAxes check_norm_rope_grad(const char* op, const at::Tensor& grad, const NormInput& in,
                              const NormOptions& norm, const RopeOptions<Int>& options) {
  check_rope_table_grad(op, grad, in.x.tensor, options);
  return check_norm_rope(op, in, norm, options);
}

}  // namespace posenc
