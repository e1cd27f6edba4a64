"""Gradients of relative_gather and relative_scatter: each is the adjoint of the other.

Both are linear, so each backward is a call of the other differentiable function, and every order of
derivative works.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from .alibi_autograd import apply, differentiated, save

_ops = torch.ops.posenc_ext


def gather(x: Tensor, index: Tensor, k_len: int) -> Tensor:
    """[..., Q, T] to [..., Q, K]."""
    if differentiated(x):
        return apply(_Gather, _GatherDual, x, index, k_len)
    return _ops.relative_gather(x, index, k_len)


def scatter(y: Tensor, index: Tensor, size: int) -> Tensor:
    """[..., Q, K] to [..., Q, T]."""
    if differentiated(y):
        return apply(_Scatter, _ScatterDual, y, index, size)
    return _ops.relative_scatter(y, index, size)


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, k_len: int) -> Tensor:
        ctx.sizes = x.shape[-1], k_len
        save(ctx, index)
        return _ops.relative_gather(x, index, k_len)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        return None if grad is None else scatter(grad, index, ctx.sizes[0]), None, None


class _GatherDual(_Gather):
    @staticmethod
    def jvp(ctx: Any, dx: Tensor, *_: Any) -> Tensor:
        return gather(dx, ctx.saved_tensors[0], ctx.sizes[1])


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.sizes = y.shape[-1], size
        save(ctx, index)
        return _ops.relative_scatter(y, index, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        return None if grad is None else gather(grad, index, ctx.sizes[0]), None, None


class _ScatterDual(_Scatter):
    @staticmethod
    def jvp(ctx: Any, dy: Tensor, *_: Any) -> Tensor:
        return scatter(dy, ctx.saved_tensors[0], ctx.sizes[1])
