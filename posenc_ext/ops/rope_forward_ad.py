"""Forward-mode derivatives of rope: the Functions of rope_autograd, each with its jvp.

Apart from them because torch.compile refuses to trace a Function that has a jvp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from .rope_autograd import (
    ApplyRope,
    Rope,
    Rotated,
    Saved,
    TableGrads,
    rotate,
    rotate_by,
    table_grads,
)
from .rope_options import RopeOptions


def _push_forward(
    x: Tensor, dx: Tensor | None, tangents: tuple[Any, ...], options: RopeOptions
) -> Tensor | None:
    """The tangent of rotate(x): dx rotated, plus x rotated by the tangents of the tables."""
    dcos, dsin = tangents[:2]
    total = None if dx is None else rotate(dx, options)
    if dcos is not None or dsin is not None:
        tables = rotate_by(x, dcos, dsin, options)
        total = tables if total is None else total + tables
    return total


class _RopeDual(Rope):
    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, *tangents: Any) -> Tensor | None:
        (x,), options = Saved.load(ctx)
        return _push_forward(x, dx, tangents, options)


class _ApplyRopeDual(ApplyRope):
    @staticmethod
    def jvp(ctx: Any, dq: Tensor | None, dk: Tensor | None, *tangents: Any) -> tuple[Any, Any]:
        (q, k), options = Saved.load(ctx)
        dq_out = _push_forward(q, dq, tangents, options)
        dk_out = _push_forward(k, dk, tangents, options)
        # autograd takes no None from a jvp: where no tangent comes in, zeros go out.
        return (
            torch.zeros_like(q) if dq_out is None else dq_out,
            torch.zeros_like(k) if dk_out is None else dk_out,
        )


class _RotatedDual(Rotated):
    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, before: Tensor | None, *tangents: Any) -> Tensor | None:
        (x,), options = Saved.load(ctx)
        tangent = _push_forward(x, dx, tangents, options)
        if dx is None or tangent is None:
            return tangent
        return dx.copy_(tangent)  # autograd wants the tangent of a dirty input changed in place


class _TableGradsDual(TableGrads):
    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor | None, dx: Tensor | None, *_: Any) -> tuple[Any, Any]:
        (grad, x), options = Saved.load(ctx)
        terms = []
        if dgrad is not None:
            terms.append(table_grads(dgrad, x, options))
        if dx is not None:
            terms.append(table_grads(grad, dx, options))
        if not terms:  # a tangent of the tables alone: their gradient does not depend on them
            return torch.zeros_like(options.cos), torch.zeros_like(options.sin)
        dcos, dsin = terms[0]
        for c, s in terms[1:]:
            dcos, dsin = dcos + c, dsin + s
        return dcos, dsin


DUALS: dict[type[Function], type[Function]] = {
    Rope: _RopeDual,
    ApplyRope: _ApplyRopeDual,
    Rotated: _RotatedDual,
    TableGrads: _TableGradsDual,
}
