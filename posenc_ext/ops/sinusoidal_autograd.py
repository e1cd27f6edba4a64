"""Derivatives of add_sinusoidal: scale * x + table is linear in x, and the table is constant."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .functions import Op, apply, per_batch, save, spread


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
