// The schema of every op, on one screen. The name of an op's public function is its own without a
// trailing `_` or `_out`.
#pragma once

#include <torch/library.h>

namespace posenc {

// The arguments shared by every rope op, after the tensors to rotate.
#define ROPE_OPTIONS                                                                        \
  "Tensor cos, Tensor sin, Tensor? positions, Tensor? offsets, Tensor? cu_seqlens, SymInt " \
  "offset, "                                                                                \
  "str layout, bool interleaved, bool inverse, bool interleaved_out"

// Those that the norm_rope ops take after them.
#define NORM_OPTIONS \
  "float eps, float weight_offset, str norm, str norm_dims, str order, str rounding"

// Those that the ops with a cache take after those of rope; without `norm` there is none.
#define CACHE_OPTIONS                                                                  \
  "Tensor? slots, str cache_layout, SymInt window, Tensor? k_scale, Tensor? v_scale, " \
  "Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, "               \
  "float eps, float weight_offset, str? norm, str norm_dims, str order, str rounding"

constexpr const char* kSchemas[] = {
    "rope(Tensor x, " ROPE_OPTIONS ") -> Tensor",
    "rope_(Tensor(a!) x, " ROPE_OPTIONS ") -> ()",
    "rope_out(Tensor x, " ROPE_OPTIONS ", *, Tensor(a!) out) -> ()",
    "apply_rope(Tensor q, Tensor k, " ROPE_OPTIONS ") -> (Tensor, Tensor)",
    "apply_rope_(Tensor(a!) q, Tensor(b!) k, " ROPE_OPTIONS ") -> ()",
    "apply_rope_cache(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) "
    "v_cache, " ROPE_OPTIONS ", " CACHE_OPTIONS ") -> Tensor",
    "apply_rope_cache_(Tensor(a!) q, Tensor k, Tensor v, Tensor(b!) k_cache, Tensor(c!) "
    "v_cache, " ROPE_OPTIONS ", " CACHE_OPTIONS ") -> ()",
    // Gradients of cos and sin.
    "rope_table_grad(Tensor grad, Tensor x, " ROPE_OPTIONS ") -> (Tensor, Tensor)",
    "norm_rope(Tensor x, Tensor? weight, Tensor? bias, " ROPE_OPTIONS ", " NORM_OPTIONS
    ") -> Tensor",
    "norm_rope_(Tensor(a!) x, Tensor? weight, Tensor? bias, " ROPE_OPTIONS ", " NORM_OPTIONS
    ") -> ()",
    "norm_rope_out(Tensor x, Tensor? weight, Tensor? bias, " ROPE_OPTIONS ", " NORM_OPTIONS
    ", *, Tensor(a!) out) -> ()",
    "qk_norm_rope(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, "
    "Tensor? k_bias, " ROPE_OPTIONS ", " NORM_OPTIONS ") -> (Tensor, Tensor)",
    "qk_norm_rope_(Tensor(a!) q, Tensor(b!) k, Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, "
    "Tensor? k_bias, " ROPE_OPTIONS ", " NORM_OPTIONS ") -> ()",
    // Gradients of x and, if asked for and where they are given, of weight and bias; else empty.
    "norm_rope_grad(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, bool "
    "parameters, " ROPE_OPTIONS ", " NORM_OPTIONS ") -> (Tensor, Tensor, Tensor)",
    "rope_table(Tensor positions, Tensor inv_freq, float attention_factor, ScalarType dtype) -> "
    "(Tensor cos, Tensor sin)",
    "sinusoidal_frequencies(Tensor like, SymInt count, float base, float denominator) -> Tensor",
    "sinusoidal_table(Tensor positions, Tensor frequencies, SymInt dim, bool interleaved, bool "
    "cos_first, ScalarType dtype) -> Tensor",
    "add_sinusoidal(Tensor x, Tensor frequencies, Tensor? offsets, SymInt offset, float scale, "
    "bool interleaved, bool cos_first) -> Tensor",

    "alibi_bias(Tensor slopes, SymInt q_len, SymInt k_len, bool causal, ScalarType dtype, "
    "Tensor? key_positions) -> Tensor",
    "add_alibi(Tensor scores, Tensor slopes, bool causal) -> Tensor",
    "add_alibi_(Tensor(a!) scores, Tensor slopes, bool causal) -> ()",
    "alibi_softmax(Tensor scores, Tensor slopes, float scale, bool causal, "
    "Tensor? key_padding_mask) -> Tensor",
    // Gradients of the slopes of a bias, and of scores and slopes of the softmax y.
    "alibi_slope_grad(Tensor grad, Tensor slopes, bool causal, Tensor? key_positions) -> Tensor",
    "alibi_softmax_grad(Tensor grad, Tensor y, float scale, bool causal) -> Tensor",
    "alibi_softmax_slope_grad(Tensor grad, Tensor y, Tensor slopes, bool causal) -> Tensor",

    // Each is the adjoint, and so the gradient, of the other.
    "relative_gather(Tensor x, Tensor index, SymInt k_len) -> Tensor",
    "relative_scatter(Tensor y, Tensor index, SymInt size) -> Tensor",
};

inline void define_ops(torch::Library& m) {
  for (const char* schema : kSchemas) m.def(schema);
}

}  // namespace posenc
