"""The options of norm_rope beside those of rope, checked as Python objects."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import error, number
from .rope_options import RopeOptions, check_tensors


class NormOptions(NamedTuple):
    """What every norm_rope op takes after the options of rope, in the order of its schema."""

    eps: float
    weight_offset: float
    norm: str
    norm_dims: str
    order: str
    rounding: str

    @property
    def rope_first(self) -> bool:
        return self.order == "rope_first"


def norm_options(
    op: str, eps: Any, weight_offset: Any, norm: Any, norm_dims: Any, order: Any, rounding: Any
) -> NormOptions:
    words = {"norm": norm, "norm_dims": norm_dims, "order": order, "rounding": rounding}
    for name, value in words.items():
        if not isinstance(value, str):
            raise error(TypeError, op, f"{name} must be a str, got {type(value).__name__}")
    eps, weight_offset = number(op, "eps", eps), number(op, "weight_offset", weight_offset)
    return NormOptions(eps, weight_offset, norm, norm_dims, order, rounding)


def check_parameters(op: str, **tensors: Any) -> None:
    for name, value in tensors.items():
        if value is not None:
            check_tensors(op, **{name: value})


class NormAxes:
    """The norm in torch's own operations, whose derivatives torch knows, for x of one layout.

    Arithmetic is in float32 (float64 for float64), and nothing is rounded on the way.
    """

    def __init__(self, x: Tensor, options: RopeOptions, norm: NormOptions) -> None:
        self.dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        self.norm, self.shape = norm, x.shape
        heads = options.layout.find("h") if norm.norm_dims == "all" else -1
        self.axes = (-1,) if heads < 0 else (heads, -1)
        # A weight beside x.
        self.beside = [1] * x.dim()
        for axis in self.axes:
            self.beside[axis] = x.shape[axis]
        self.channels = x.shape[-1] if heads < 0 else x.shape[heads] * x.shape[-1]
        self.count = 1 if norm.norm == "l2" else self.channels

    def parameter(self, t: Tensor, added: float = 0.0) -> Tensor:
        return (t.to(self.dtype) + added).view(self.beside)

    def weight(self, t: Tensor | None) -> Tensor | float:
        return 1.0 if t is None else self.parameter(t, self.norm.weight_offset)

    def sum(self, x: Tensor) -> Tensor:
        return x.sum(self.axes, keepdim=True)

    def centred(self, x: Tensor) -> Tensor:
        return x - self.sum(x) / self.channels if self.norm.norm == "layer" else x

    def unit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x normalised, without weights, and what it was multiplied by."""
        x = self.centred(x)
        scale = (self.sum(x * x) / self.count + self.norm.eps).rsqrt()
        return x * scale, scale

    def along(self, x: Tensor, unit: Tensor, scale: Tensor) -> Tensor:
        """The derivative of `unit` applied to x: it is symmetric, for tangents and gradients."""
        return self.centred(x - unit * (self.sum(x * unit) / self.count)) * scale

    def add_up(self, x: Tensor, like: Tensor) -> Tensor:
        """The gradient of a weight: x over all that shares it."""
        kept = [axis % x.dim() for axis in self.axes]
        others = [axis for axis in range(x.dim()) if axis not in kept]
        return x.permute(*others, *kept).reshape(-1, self.channels).sum(0).to(like.dtype)
