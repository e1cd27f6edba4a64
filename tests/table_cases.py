"""Every public op and module, as a function of tensors, for the table of tests/pytorch_table.py."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from alibi_cases import scores_of, slopes_of
from rope_cases import table, uniform

import posenc_ext

F64 = torch.float64


class Case(NamedTuple):
    function: Callable[..., Any]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]  # of a length, in float64
    module: torch.nn.Module | None = None


def heads(s, h=2, d=4):
    return uniform((2, s, h, d), F64, s + h)


def rows(s):
    return tuple(t[: s + 2].contiguous() for t in table(2, F64))


def rope_inputs(s):
    return heads(s), *rows(s)


def pair_inputs(s):
    return heads(s), heads(s, 1), *rows(s)


def alibi_inputs(s):
    return scores_of((s, s + 1), F64, heads=2), slopes_of(2, F64)


def relative(function, columns):
    """A function of x and of an index that is made from its length."""

    def call(x):
        q_len, k_len = (x.shape[-2], x.shape[-2] + 1)
        index = torch.arange(q_len + k_len - 1, device=x.device) - q_len + 1
        return function(x, index.clamp(-2, 3) + 2, q_len, k_len)

    return Case(call, lambda s: (uniform((2, s, columns or s + 1), F64, s),))


def module(made, inputs):
    return Case(lambda *args: made(*args), inputs, made)


def norm_inputs(s):
    return heads(s), uniform((4,), F64, 7), *rows(s)


def qk_norm_inputs(s):
    return heads(s), heads(s, 1), *(uniform((4,), F64, seed) for seed in (7, 8)), *rows(s)


def in_place(op):
    """Into copies, since leaves are refused."""

    def call(*tensors):
        return op(*(t * 1 for t in tensors), inplace=True)

    return call


def bias(scores, slopes):
    return scores * posenc_ext.alibi_bias(slopes, *scores.shape[-2:], dtype=scores.dtype)


CASES = {
    "rope": Case(lambda x, c, s: posenc_ext.rope(x, c, s, offset=1), rope_inputs),
    "rope, in place": Case(in_place(posenc_ext.rope), rope_inputs),
    "apply_rope": Case(posenc_ext.apply_rope, pair_inputs),
    "apply_rope, in place": Case(in_place(posenc_ext.apply_rope), pair_inputs),
    "norm_rope": Case(
        lambda x, w, c, s: posenc_ext.norm_rope(
            x, w, c, s, bias=w, norm="layer", order="rope_first", offset=1),
        norm_inputs),
    "norm_rope, in place": Case(in_place(posenc_ext.norm_rope), norm_inputs),
    "qk_norm_rope": Case(
        lambda q, k, v, w, c, s: posenc_ext.qk_norm_rope(q, k, v, w, c, s, weight_offset=1.0),
        qk_norm_inputs),
    "qk_norm_rope, in place": Case(in_place(posenc_ext.qk_norm_rope), qk_norm_inputs),
    "rope_table": Case(
        lambda p, f: posenc_ext.rope_table(p, f, dtype=F64),
        lambda s: (uniform((s,), F64, 1), uniform((3,), F64, 2))),
    "interleaved_to_half": Case(
        lambda w: posenc_ext.interleaved_to_half(w, 4) ** 2, lambda s: (uniform((s, 6), F64),)),
    "half_to_interleaved": Case(
        lambda w: posenc_ext.half_to_interleaved(w, 4) ** 2, lambda s: (uniform((s, 6), F64),)),
    "sinusoidal_table": Case(
        lambda p: posenc_ext.sinusoidal_table(p, 5, dtype=F64), lambda s: (uniform((s,), F64),)),
    "add_sinusoidal": Case(
        lambda x: posenc_ext.add_sinusoidal(x, scale=2.0) ** 2,
        lambda s: (uniform((2, s, 5), F64),)),
    "alibi_bias": Case(bias, alibi_inputs),
    "add_alibi": Case(lambda s, m: posenc_ext.add_alibi(s, m) ** 2, alibi_inputs),
    "add_alibi, in place": Case(
        lambda s, m: posenc_ext.add_alibi(s * 1, m, inplace=True) ** 2, alibi_inputs),
    "alibi_softmax": Case(
        lambda s, m: posenc_ext.alibi_softmax(s, m, scale=0.5, causal=True), alibi_inputs),
    "relative_gather": relative(
        lambda x, index, q, k: posenc_ext.relative_gather(x, index, k) ** 2, 6),
    "relative_scatter": relative(
        lambda x, index, q, k: posenc_ext.relative_scatter(x, index, 6) ** 2, None),
    "rel_shift": Case(lambda x: posenc_ext.rel_shift(x) ** 2, lambda s: (uniform((s, s), F64),)),
    "RotaryPositionalEmbedding": module(
        posenc_ext.RotaryPositionalEmbedding(4), lambda s: (heads(s), heads(s, 1))),
    "SinusoidalPositionalEncoding": module(
        posenc_ext.SinusoidalPositionalEncoding(4, scale=2.0),
        lambda s: (uniform((2, s, 4), F64),)),
    "LearnedPositionalEncoding": module(
        posenc_ext.LearnedPositionalEncoding(4, 64, dtype=F64),
        lambda s: (uniform((2, s, 4), F64),)),
    "ALiBiAttention": module(
        posenc_ext.ALiBiAttention(4, 2, dtype=F64), lambda s: (uniform((2, s, 4), F64),)),
}  # fmt: skip
