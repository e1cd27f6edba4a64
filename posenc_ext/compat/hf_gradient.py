"""The gradient of q and k in the memory order of Hugging Face code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ContiguousGradient(torch.autograd.Function):
    """The identity; the gradient becomes contiguous, as that of sums and of `cat` is. It keeps its
    values, but what adds it up later, as a norm of q does for its weight, adds in that order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


def contiguous_gradient(x: Any) -> Any:
    if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
        return ContiguousGradient.apply(x)
    return x
