"""Derivatives of rope.

The map is linear in x and in the tables, so three operations are closed under differentiation:

    rotate(x; cos, sin)              its gradient in x is the inverse rotation, from the pairs of
                                     the output to those of the input,
    table_grads(g, x)                its gradient in the tables,
    rotate(x; dcos, dsin) again      the gradient of table_grads in g, and inverted, in x.

Each derivative calls the differentiable function, never a raw op, so every order of them works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .functions import (
    Op,
    apply,
    check_inplace,
    check_not_negated,
    check_out,
    differentiated,
    forward_mode,
    make_function,
    one_by_one,
    save,
    total,
    transformed,
)
from .rope_options import RopeOptions
from .rope_vmap import fold

_ops = torch.ops.posenc_ext


def rotate(x: Tensor, options: RopeOptions) -> Tensor:
    return apply(Rope, x, *options)


def rotate_pair(q: Tensor, k: Tensor, options: RopeOptions) -> tuple[Tensor, Tensor]:
    return apply(ApplyRope, q, k, *options)


def rotate_inplace(op: str, xs: tuple[Tensor, ...], options: RopeOptions) -> tuple[Tensor, ...]:
    """Rotate one or two tensors in place: all of them, or on an error none."""
    named = dict(zip("x" if len(xs) == 1 else "qk", xs, strict=True))
    for name, x in named.items():
        check_not_negated(op, name, x)
    write = _ops.rope_ if len(xs) == 1 else _ops.apply_rope_
    exporting = torch.compiler.is_exporting()  # to train later, perhaps
    if not exporting and not differentiated(*xs, options.cos, options.sin):
        write(*xs, *options)
        return xs
    check_inplace(op, named, options.tensors())
    if torch.compiler.is_compiling() or transformed():
        rotated = [rotate(x.clone(), options) for x in xs]  # x as it was may be saved
        return tuple(x.copy_(y) for x, y in zip(xs, rotated, strict=True))
    tables = _tables_needed(options)
    # Not detached: the gradient of the tables depends on x, and may be differentiated again.
    before = [x.clone() if tables else None for x in xs]
    write(*(x.detach() for x in xs), *options.detached())
    # One Function per tensor: autograd lets only a Function with one output write into a view.
    return tuple(_rotated(x, b, *options) for x, b in zip(xs, before, strict=True))


def rotate_out(x: Tensor, out: Tensor, inplace: bool, options: RopeOptions) -> Tensor:
    check_out("rope", out, inplace, (x, options.cos, options.sin))
    if torch.compiler.is_exporting() and out.shape == x.shape and out.dtype == x.dtype:
        return out.copy_(rotate(x, options))  # a graph without the in-place op decomposes
    _ops.rope_out(x, *options, out=out)
    return out


def table_grads(grad: Tensor, x: Tensor, options: RopeOptions) -> tuple[Tensor, Tensor]:
    """The gradient of rotate(x) in cos and in sin, for the gradient `grad` of its result."""
    return apply(TableGrads, grad, x, *options)


def rotate_by(x: Tensor, cos: Tensor | None, sin: Tensor | None, options: RopeOptions) -> Tensor:
    """Rotate the first R channels by other tables, a missing one being zero; the rest become 0."""
    if cos is None:
        cos = torch.zeros_like(options.cos)
    if sin is None:
        sin = torch.zeros_like(options.sin)
    rotated = rotate(x[..., : options.rotary_dim], options.with_tables(cos, sin))
    return F.pad(rotated, (0, x.shape[-1] - options.rotary_dim))


def _keep(ctx: Any, xs: tuple[Tensor | None, ...], options: Sequence[Any]) -> None:
    """Save the options, and the tensors that a derivative needs."""
    ctx.count = len(xs)
    ctx.flags = options[5:]
    save(ctx, *xs, *options[:5])


def _kept(ctx: Any) -> tuple[tuple[Any, ...], RopeOptions]:
    tensors = ctx.saved_tensors
    return tensors[: ctx.count], RopeOptions(*tensors[ctx.count :], *ctx.flags)


def _tables_needed(options: Sequence[Any]) -> bool:
    return options[0].requires_grad or options[1].requires_grad or forward_mode()


def _pull_back(
    x: Any, grad: Tensor | None, options: RopeOptions, need_x: bool, need_tables: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of rotate(x) in x, cos and sin. Only those of the tables read x."""
    if grad is None:
        return None, None, None
    dx = rotate(grad, options.inverted()) if need_x else None
    dcos, dsin = table_grads(grad, x, options) if need_tables else (None, None)
    return dx, dcos, dsin


def _push_forward(
    x: Tensor | None, dx: Tensor | None, tangents: tuple[Any, ...], options: RopeOptions
) -> Tensor | None:
    """The tangent of rotate(x): dx rotated, plus x rotated by the tangents of the tables."""
    dcos, dsin = tangents[:2]
    tables = dcos is not None or dsin is not None
    if tables and x is None:  # a compiled graph does not tell Python that it is in forward mode
        raise NotImplementedError(
            "posenc_ext.rope: torch.compile of forward mode over cos and sin is not supported: "
            "compile what torch.func.jvp differentiates, or differentiate in x alone"
        )
    return total(
        None if dx is None else rotate(dx, options),
        rotate_by(x, dcos, dsin, options) if tables and x is not None else None,
    )


class Rope(Op, name="rope", inputs=3):
    """rotate(x)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, *options = inputs
        _keep(ctx, (x if _tables_needed(options) else None,), options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (x,), options = _kept(ctx)
        tables = any(ctx.needs_input_grad[1:3])
        return *_pull_back(x, grad, options, ctx.needs_input_grad[0], tables), *(None,) * 8

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, *tangents: Any) -> Tensor | None:
        (x,), options = _kept(ctx)
        return _push_forward(x, dx, tangents, options)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, *options: Any) -> tuple[Any, Any]:
        folded = fold(info.batch_size, in_dims, (x,), options)
        if folded is None:
            return one_by_one(Rope, info, in_dims, x, *options)
        return folded.unfold(rotate(folded.xs[0], folded.options)), folded.axis


class ApplyRope(Op, name="apply_rope", inputs=4):
    """rotate(q) and rotate(k) in one pass."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, *options = inputs
        tables = _tables_needed(options)
        _keep(ctx, (q, k) if tables else (None, None), options)
        if not tables:
            constant = [
                y for y, need in zip(output, ctx.needs_input_grad, strict=False) if not need
            ]
            ctx.mark_non_differentiable(*constant)

    @staticmethod
    def backward(ctx: Any, grad_q: Any, grad_k: Any) -> tuple[Any, ...]:
        (q, k), options = _kept(ctx)
        need_q = ctx.needs_input_grad[0] and grad_q is not None
        need_k = ctx.needs_input_grad[1] and grad_k is not None
        back = options.inverted()
        dq: Tensor | None = None
        dk: Tensor | None = None
        dcos: Tensor | None = None
        dsin: Tensor | None = None
        if need_q and need_k:
            dq, dk = rotate_pair(grad_q, grad_k, back)
        elif need_q:
            dq = rotate(grad_q, back)
        elif need_k:
            dk = rotate(grad_k, back)
        if any(ctx.needs_input_grad[2:4]):
            for x, grad in ((q, grad_q), (k, grad_k)):
                if grad is not None:
                    c, s = table_grads(grad, x, options)
                    dcos, dsin = total(dcos, c), total(dsin, s)
        return dq, dk, dcos, dsin, *(None,) * 8

    @staticmethod
    def jvp(ctx: Any, dq: Tensor | None, dk: Tensor | None, *tangents: Any) -> tuple[Any, Any]:
        (q, k), options = _kept(ctx)
        dq_out = _push_forward(q, dq, tangents, options)
        dk_out = _push_forward(k, dk, tangents, options)
        # autograd takes no None from a jvp: where no tangent comes in, zeros go out.
        return (
            torch.zeros_like(q) if dq_out is None else dq_out,
            torch.zeros_like(k) if dk_out is None else dk_out,
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, q: Tensor, k: Tensor, *options: Any) -> tuple[Any, Any]:
        folded = fold(info.batch_size, in_dims, (q, k), options)
        if folded is None:
            return one_by_one(ApplyRope, info, in_dims, q, k, *options)
        pair = rotate_pair(folded.xs[0], folded.xs[1], folded.options)
        return tuple(map(folded.unfold, pair)), (folded.axis, folded.axis)


class Rotated:
    """Tells autograd that x has been rotated in place. `before` is a copy of what it was, if the
    tables need a gradient."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, before, *options = inputs
        _keep(ctx, (before,), options)
        ctx.mark_dirty(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (before,), options = _kept(ctx)
        tables = any(ctx.needs_input_grad[2:4])
        dx, dcos, dsin = _pull_back(before, grad, options, ctx.needs_input_grad[0], tables)
        return dx, None, dcos, dsin, *(None,) * 8


_rotated = make_function(Rotated, lambda x, *_: x)


class TableGrads(Op, name="rope_table_grad", inputs=2):
    """table_grads(grad, x)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        grad, x, *options = inputs
        _keep(ctx, (grad, x), options)

    @staticmethod
    def backward(ctx: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
        (grad, x), options = _kept(ctx)
        if cos is None and sin is None:
            return (None,) * 12
        need_grad, need_x = ctx.needs_input_grad[:2]
        dgrad = rotate_by(x, cos, sin, options) if need_grad else None
        dx = rotate_by(grad, cos, sin, options.inverted()) if need_x else None
        return dgrad, dx, *(None,) * 10

    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor | None, dx: Tensor | None, *_: Any) -> tuple[Any, Any]:
        (grad, x), options = _kept(ctx)
        none = (None, None)
        by_grad = none if dgrad is None else table_grads(dgrad, x, options)
        by_x = none if dx is None else table_grads(grad, dx, options)
        dcos, dsin = total(by_grad[0], by_x[0]), total(by_grad[1], by_x[1])
        # A tangent of the tables alone: their gradient does not depend on them.
        return (
            torch.zeros_like(options.cos) if dcos is None else dcos,
            torch.zeros_like(options.sin) if dsin is None else dsin,
        )
