"""The formulas of norm_rope and its derivatives in torch's operations and :func:`rotate`, whose own
derivatives are known to every order."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .functions import total
from .norm_rope_options import NormAxes, NormOptions
from .rope_autograd import rotate, rotate_by, table_grads
from .rope_options import RopeOptions


class Parameters(NamedTuple):
    weight: Tensor | None
    bias: Tensor | None


class Gradients(NamedTuple):
    x: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None


class Formula:
    """The norm at x, and what derivatives need of it, in the dtype of the arithmetic."""

    def __init__(self, x: Tensor, p: Parameters, rope: RopeOptions, norm: NormOptions) -> None:
        self.axes = axes = NormAxes(x, rope, norm)
        self.norm, self.parameters, self.dtype = norm, p, x.dtype
        self.rope = rope.with_tables(rope.cos.to(axes.dtype), rope.sin.to(axes.dtype))
        self.tables = rope.cos.dtype
        self.x = x.to(axes.dtype)
        self.unit, self.scale = axes.unit(rotate(self.x, self.rope) if norm.rope_first else self.x)
        self.weight = axes.weight(p.weight)

    def normed(self) -> Tensor:
        y = self.unit * self.weight
        bias = self.parameters.bias
        return y if bias is None else y + self.axes.parameter(bias)

    def pull_back(self, grad: Tensor, tables: bool) -> Gradients:
        """The gradients, for that of the result."""
        axes, (weight, bias) = self.axes, self.parameters
        grad = grad.to(axes.dtype)
        after = grad if self.norm.rope_first else rotate(grad, self.rope.inverted())
        before = axes.along(after * self.weight, self.unit, self.scale)
        dcos: Tensor | None = None
        dsin: Tensor | None = None
        if self.norm.rope_first:
            dx = rotate(before, self.rope.inverted())
            if tables:
                dcos, dsin = table_grads(before, self.x, self.rope)
        else:
            dx = before
            if tables:
                dcos, dsin = table_grads(grad, self.normed(), self.rope)
        return Gradients(
            dx.to(self.dtype),
            None if weight is None else axes.add_up(after * self.unit, weight),
            None if bias is None else axes.add_up(after, bias),
            None if dcos is None else dcos.to(self.tables),
            None if dsin is None else dsin.to(self.tables),
        )

    def push_forward(self, tangents: Gradients) -> Tensor | None:
        """The tangent of the result, for those of the arguments."""
        axes = self.axes
        dx, dweight, dbias, dcos, dsin = tangents
        dx = None if dx is None else dx.to(axes.dtype)
        if self.norm.rope_first:
            dx = self._turned(dx, self.x, dcos, dsin)
        dy = None if dx is None else axes.along(dx, self.unit, self.scale) * self.weight
        dy = total(
            dy,
            None if dweight is None else self.unit * axes.parameter(dweight),
            None if dbias is None else axes.parameter(dbias).expand(self.x.shape),
        )
        if not self.norm.rope_first:
            dy = self._turned(dy, self.normed(), dcos, dsin)
        return None if dy is None else dy.to(self.dtype)

    def _turned(
        self, dx: Tensor | None, x: Tensor, dcos: Tensor | None, dsin: Tensor | None
    ) -> Tensor | None:
        """The tangent of a rotation of x."""
        dtype, tables = self.axes.dtype, dcos is not None or dsin is not None
        dcos, dsin = (None if t is None else t.to(dtype) for t in (dcos, dsin))
        return total(
            None if dx is None else rotate(dx, self.rope),
            rotate_by(x, dcos, dsin, self.rope) if tables else None,
        )
