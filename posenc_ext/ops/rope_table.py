"""Tables of cos and sin for rotary position embedding (RoPE), from exactly reduced angles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments import arange, check_dtype, check_precision, error, integer, number
from ..distributed import beside
from ..types import Precision
from .functions import Op, apply, one_by_one, save
from .mrope import by_axes, check_axes, section_axes
from .rope_options import check_tensors


def rope_table(
    positions: int | Tensor,
    inv_freq: Tensor,
    *,
    attention_factor: float = 1.0,
    sections: Sequence[int] | Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    precision: Precision = "exact",
) -> tuple[Tensor, Tensor]:
    """cos and sin of position times frequency.

    >>> import torch, posenc_ext
    >>> inv_freq = posenc_ext.rope_frequencies(128).inv_freq
    >>> cos, sin = posenc_ext.rope_table(4096, inv_freq)
    >>> cos.shape, cos.dtype
    (torch.Size([4096, 64]), torch.float32)
    >>> cos, sin = posenc_ext.rope_table(torch.tensor([131071]), inv_freq)
    >>> round(cos[0, 1].item(), 7)  # a float32 angle gives -0.9792
    -0.9782709

    With precision "exact" each value is computed in double from an exactly reduced angle and
    rounded once to `dtype`: float32 is within 0.51 ulp of the true value for integers below 2^31 in
    magnitude (within 2^-50 where the value itself is below 2^-20), float64 within 2^-51. The bits
    depend on the position and the frequency alone: not on threads, instruction set, or what else is
    in the table. An integer held in a floating tensor gives the bits of that integer. Angles beyond
    2^53 radians, infinite and NaN positions give NaN.

    Args:
        positions: an int n for ``0 .. n-1``, or an int32, int64 or floating tensor ``[...]``, which
            may be negative or fractional, in any order and with any strides.
        inv_freq: float64 or float32 ``[R/2]``, the angle per position, in radians. float32 is
            widened (exactly), so prefer the float64 of :func:`rope_frequencies`. They are copied
            to the positions from another device, and to a GPU each call then waits for that.
        attention_factor: multiplies cos and sin before they are rounded.
        sections: for positions ``[axes, ...]`` with one row per axis: how many frequencies each
            axis turns, such as ``[16, 24, 24]`` for time, height and width in chunks, or an int
            tensor ``[R/2]`` on the CPU with the axis of each frequency (:func:`mrope_axes`). The
            tables are ``[..., R/2]``; equal rows give the bits of one axis alone.
        dtype: float32, float64, bfloat16 or float16.
        device: where to build the tables; default: where the positions are (for an int, where
            `inv_freq` is).
        precision: "float32" gives what Hugging Face models compute, bit for bit: the float32
            product, torch's cos and sin of it, times `attention_factor`, cast to `dtype`. Its error
            grows with the position, to 4e-3 at 131071.

    Returns:
        cos and sin, contiguous ``[..., R/2]`` of `dtype`.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape or value.

    Differentiable in `inv_freq` and in floating positions, to any order, forward and backward.
    Autocast does not change the result.
    """
    op = "rope_table"
    check_precision(op, precision)
    if isinstance(inv_freq, tuple):  # the result of rope_frequencies
        raise error(
            TypeError,
            op,
            f"inv_freq must be a tensor, got {type(inv_freq).__name__}; pass its .inv_freq and "
            "its .attention_factor as attention_factor",
        )
    check_tensors(op, inv_freq=inv_freq)
    if inv_freq.dtype not in (torch.float64, torch.float32):
        raise error(
            TypeError,
            op,
            f"inv_freq must be float64 or float32 (fewer bits lose the position), "
            f"got {inv_freq.dtype}",
        )
    check_dtype(op, dtype)
    factor = number(op, "attention_factor", attention_factor)
    given = positions
    if isinstance(positions, Tensor):
        check_tensors(op, positions=positions)
        positions = positions.to(device or positions.device)
    else:
        n = integer(op, "positions", positions, "an int or a tensor")
        if n < 0:
            raise error(ValueError, op, f"positions must not be negative as an int, got {n}")
        positions = arange(0, n, device or inv_freq.device)
    if inv_freq.is_meta and not positions.is_meta:
        raise error(
            ValueError,
            op,
            f"inv_freq must not be a meta tensor with positions on {positions.device}, got one of "
            f"shape {list(inv_freq.shape)}",
        )
    inv_freq = inv_freq.to(positions.device)

    def build(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        (positions,), (inv_freq,) = beside(inv_freq, positions), beside(positions, inv_freq)
        if precision == "float32":
            return _float32_table(positions, inv_freq, factor, dtype)
        return table(positions, inv_freq.double(), factor, dtype)

    if sections is None:
        return build(positions, inv_freq)
    if inv_freq.dim() != 1:
        raise error(ValueError, op, f"inv_freq must have shape [R/2], got {list(inv_freq.shape)}")
    axes = section_axes(op, sections, inv_freq.shape[0])
    check_axes(op, axes, given)
    return by_axes(build, positions, inv_freq, axes)


def _float32_table(
    positions: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    if positions.dtype not in (torch.int32, torch.int64) and not positions.is_floating_point():
        raise error(
            TypeError,
            "rope_table",
            f"positions must be int32, int64 or floating, got {positions.dtype}",
        )
    if inv_freq.dim() != 1:
        raise error(
            ValueError,
            "rope_table",
            f"inv_freq must have shape [R/2], got {list(inv_freq.shape)}",
        )
    angle = positions.float().unsqueeze(-1) * inv_freq.float()
    return (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)


# Derivatives. The angle is phi = position * frequency, so d cos = -sin dphi, d sin = cos dphi; the
# derivatives call `table` again, in float64, so that every order of derivative works.


def table(
    positions: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The op, differentiable: positions [...], inv_freq float64 [n] -> cos, sin [..., n]."""
    return apply(Table, positions, inv_freq, factor, dtype)


class Table(Op, name="rope_table", inputs=2):
    """table(positions, inv_freq)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.factor, ctx.dtype = inputs
        save(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, grad_cos: Tensor | None, grad_sin: Tensor | None) -> tuple[Any, ...]:
        if grad_cos is None and grad_sin is None:
            return None, None, None, None
        positions, inv_freq = ctx.saved_tensors
        cos, sin = table(positions, inv_freq, ctx.factor, torch.float64)
        dphi = torch.zeros_like(cos)
        if grad_cos is not None:
            dphi = dphi - sin * grad_cos
        if grad_sin is not None:
            dphi = dphi + cos * grad_sin
        dp = df = None
        if ctx.needs_input_grad[0]:
            dp = (dphi * inv_freq).sum(-1).to(positions.dtype)
        if ctx.needs_input_grad[1]:
            df = (dphi * positions.double().unsqueeze(-1)).unsqueeze(0).sum((*range(dphi.dim()),))
        return dp, df, None, None

    @staticmethod
    def jvp(ctx: Any, dp: Tensor | None, df: Tensor | None, *_: Any) -> tuple[Any, Any]:
        positions, inv_freq = ctx.saved_tensors
        cos, sin = table(positions, inv_freq, ctx.factor, torch.float64)
        dphi = torch.zeros_like(cos)
        if dp is not None:
            dphi = dphi + dp.unsqueeze(-1) * inv_freq
        if df is not None:
            dphi = dphi + positions.double().unsqueeze(-1) * df
        return (-sin * dphi).to(ctx.dtype), (cos * dphi).to(ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: Any, positions: Tensor, *args: Any) -> tuple[Any, Any]:
        if in_dims[1] is not None:
            return one_by_one(Table, info, in_dims, positions, *args)
        return table(positions.movedim(in_dims[0], 0), *args), (0, 0)
