"""Derivatives of relative_gather and relative_scatter: each is the adjoint of the other.

Both are linear, so each derivative is a call of one of them, and every order works.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .functions import Op, apply, one_by_one, save


def gather(x: Tensor, index: Tensor, k_len: int) -> Tensor:
    """[..., Q, T] to [..., Q, K]."""
    return apply(Gather, x, index, k_len)


def scatter(y: Tensor, index: Tensor, size: int) -> Tensor:
    """[..., Q, K] to [..., Q, T]."""
    return apply(Scatter, y, index, size)


class Gather(Op, name="relative_gather", inputs=1):
    """gather(x)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, index, k_len = inputs
        ctx.sizes = x.shape[-1], k_len
        save(ctx, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        return None if grad is None else scatter(grad, index, ctx.sizes[0]), None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, *_: Any) -> Tensor:
        return gather(dx, ctx.saved_tensors[0], ctx.sizes[1])

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, index: Tensor, k_len: int) -> tuple[Any, Any]:
        if in_dims[1] is not None:
            return one_by_one(Gather, info, in_dims, x, index, k_len)
        return gather(x.movedim(in_dims[0], 0), index, k_len), 0


class Scatter(Op, name="relative_scatter", inputs=1):
    """scatter(y)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, index, size = inputs
        ctx.sizes = y.shape[-1], size
        save(ctx, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        return None if grad is None else gather(grad, index, ctx.sizes[0]), None, None

    @staticmethod
    def jvp(ctx: Any, dy: Tensor, *_: Any) -> Tensor:
        return scatter(dy, ctx.saved_tensors[0], ctx.sizes[1])

    @staticmethod
    def vmap(info: Any, in_dims: Any, y: Tensor, index: Tensor, size: int) -> tuple[Any, Any]:
        if in_dims[1] is not None:
            return one_by_one(Scatter, info, in_dims, y, index, size)
        return scatter(y.movedim(in_dims[0], 0), index, size), 0
