"""Derivatives of the sinusoidal ops.

add_sinusoidal is linear in x, and its table constant. A column of sinusoidal_table is the sin or
cos of position * frequency, so its derivative is a column of cos or -sin times the frequency.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .functions import Op, apply, one_by_one, per_batch, save, spread
from .rope_table import table


def add(x: Tensor, *options: Any) -> Tensor:
    """The op, differentiable; `options` as in its schema."""
    return apply(Add, x, *options)


class Add(Op, name="add_sinusoidal", inputs=1):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.scale = inputs[4]
        save(ctx)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        return None if grad is None else grad * ctx.scale, *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, *_: Any) -> Tensor | None:
        return None if dx is None else dx * ctx.scale

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, frequencies: Tensor, offsets: Any, *options: Any
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        x = spread(x, in_dims[0], size, 0)
        each = x.shape[1] if x.dim() == 4 else 1
        offsets = per_batch(offsets, in_dims[2], 1, size, each)
        y = add(x.reshape(size * each, *x.shape[-2:]), frequencies, offsets, *options)
        return y.view(x.shape), 0


def sinusoidal_table(positions: Tensor, frequencies: Tensor, *options: Any) -> Tensor:
    """The op, differentiable in positions [...]; `options` as in its schema."""
    return apply(Table, positions, frequencies, *options)


class Table(Op, name="sinusoidal_table", inputs=1):
    """sinusoidal_table(positions)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        positions, frequencies, *ctx.order, ctx.dtype = inputs
        save(ctx, positions, frequencies)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        positions, frequencies = ctx.saved_tensors
        if grad is None:
            return (None,) * 6
        slope = _slope(positions, frequencies, *ctx.order)
        return (grad * slope).sum(-1).to(positions.dtype), *(None,) * 5

    @staticmethod
    def jvp(ctx: Any, dp: Tensor | None, *_: Any) -> Tensor | None:
        positions, frequencies = ctx.saved_tensors
        if dp is None:
            return None
        return (_slope(positions, frequencies, *ctx.order) * dp.unsqueeze(-1)).to(ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: Any, positions: Tensor, *args: Any) -> tuple[Any, Any]:
        if in_dims[1] is not None:
            return one_by_one(Table, info, in_dims, positions, *args)
        return sinusoidal_table(positions.movedim(in_dims[0], 0), *args), 0


def _slope(
    positions: Tensor, frequencies: Tensor, dim: int, interleaved: bool, cos_first: bool
) -> Tensor:
    """The derivative of each value of the table in its position, in float64."""
    cos, sin = table(positions, frequencies, 1.0, torch.float64)
    by_cos, by_sin = -sin * frequencies, cos * frequencies
    pair = (by_cos, by_sin) if cos_first else (by_sin, by_cos)
    if interleaved:
        return torch.stack(pair, -1).flatten(-2)[..., :dim]
    return F.pad(torch.cat(pair, -1)[..., :dim], (0, max(dim - 2 * cos.shape[-1], 0)))
