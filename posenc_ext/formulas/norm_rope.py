"""Formulas of the norm with the rotation. `options` are those of every rope op, then those of the
norm, in the order of the schemas."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..ops.norm_rope_options import NormAxes, NormOptions
from ..ops.rope_options import RopeOptions
from . import rope as rotation
from .common import like, write

_ROPE = len(RopeOptions._fields)


def _parsed(options: tuple[Any, ...], x: Tensor) -> tuple[NormAxes, RopeOptions]:
    """The norm of x, and the rotation with tables in the dtype of the arithmetic."""
    rope = RopeOptions(*options[:_ROPE])
    axes = NormAxes(x, rope, NormOptions(*options[_ROPE:]))
    return axes, rope.with_tables(rope.cos.to(axes.dtype), rope.sin.to(axes.dtype))


def norm_rope(x: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any) -> Tensor:
    axes, rope = _parsed(options, x)
    norm, y = axes.norm, x.to(axes.dtype)

    def rounded(t: Tensor, *when: str) -> Tensor:
        return t.to(x.dtype).to(axes.dtype) if norm.rounding in when else t

    if norm.rope_first:
        y = rounded(rotation.rope(y, *rope), "norm", "transformers")
    y = rounded(axes.unit(y)[0], "transformers") * axes.weight(weight)
    if bias is not None:
        y = y + axes.parameter(bias)
    if not norm.rope_first:
        y = rotation.rope(rounded(y, "norm", "transformers"), *rope)
    return like(y, x)


def norm_rope_(x: Tensor, *arguments: Any) -> None:
    write(x, norm_rope(x, *arguments))


def norm_rope_out(x: Tensor, *arguments: Any, out: Tensor) -> None:
    write(out, norm_rope(x, *arguments))


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    q_bias: Tensor | None,
    k_bias: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor]:
    return norm_rope(q, q_weight, q_bias, *options), norm_rope(k, k_weight, k_bias, *options)


def qk_norm_rope_(q: Tensor, k: Tensor, *arguments: Any) -> None:
    for x, y in zip((q, k), qk_norm_rope(q, k, *arguments), strict=True):
        write(x, y)


def norm_rope_grad(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    parameters: bool,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    axes, rope = _parsed(options, x)
    back, first = rope.inverted(), axes.norm.rope_first
    y, after = x.to(axes.dtype), grad.to(axes.dtype)
    unit, scale = axes.unit(rotation.rope(y, *rope) if first else y)
    after = after if first else rotation.rope(after, *back)
    dx = axes.along(after * axes.weight(weight), unit, scale)
    dx = rotation.rope(dx, *back) if first else dx

    def gradient(parameter: Tensor | None, by: Tensor) -> Tensor:
        if parameter is None or not parameters:
            return (x if parameter is None else parameter).new_empty(0)
        return axes.add_up(by, parameter)

    return like(dx, x), gradient(weight, after * unit), gradient(bias, after)
