"""Gradients of add_sinusoidal: scale * x + table is linear in x, and the table is constant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

_ops = torch.ops.posenc_ext


def _transformed() -> bool:
    """In forward mode, or inside torch.func."""
    return forward_ad._current_level >= 0 or (
        not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    )


def differentiated(x: Tensor) -> bool:
    """Does any derivative flow through x? If not, the op alone will do."""
    return _transformed() or (torch.is_grad_enabled() and x.requires_grad)


def add(
    x: Tensor,
    frequencies: Tensor,
    offsets: Tensor | None,
    offset: int,
    scale: float,
    interleaved: bool,
    cos_first: bool,
) -> Tensor:
    """The op, differentiable."""
    call: Any = _ops.add_sinusoidal
    if differentiated(x):
        call = (_AddTransformed if _transformed() else _Add).apply
    return call(x, frequencies, offsets, offset, scale, interleaved, cos_first)


class _Add(Function):
    @staticmethod
    def forward(x: Tensor, *options: Any) -> Tensor:
        return _ops.add_sinusoidal(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.scale = inputs[4]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        return None if grad is None else grad * ctx.scale, *(None,) * 6


class _AddTransformed(_Add):
    """With forward mode and vmap; apart, since torch.compile refuses a Function with either."""

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, *_: Any) -> Tensor | None:
        return None if dx is None else dx * ctx.scale

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, frequencies: Tensor, offsets: Any, *options: Any
    ) -> tuple[Tensor, int]:
        """One more batch axis V, folded into B."""
        x_dim, _, offsets_dim = in_dims[:3]
        size = info.batch_size
        x = x.expand(size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        each = x.shape[1] if x.dim() == 4 else 1
        if offsets is not None:
            if offsets_dim is None:
                offsets = offsets.expand(size, *offsets.shape)
            else:
                offsets = offsets.movedim(offsets_dim, 0)
            if offsets.dim() == 1:
                offsets = offsets.unsqueeze(1)
            offsets = offsets.expand(size, each).flatten()
        y = add(x.reshape(size * each, *x.shape[-2:]), frequencies, offsets, *options)
        return y.view(x.shape), 0
