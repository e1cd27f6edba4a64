"""Gradients of rope.

The map is linear in x and in the tables, so three operations are closed under differentiation:

    rotate(x; cos, sin)              its gradient in x is the inverse rotation,
    table_grads(g, x)                its gradient in the tables,
    rotate(x; dcos, dsin) again      the gradient of table_grads in g, and inverted, in x.

Each backward calls the differentiable function, never a raw op, so every order of derivative works.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from .._native import _C
from .rope_options import RopeOptions, check_tensors

_ops = torch.ops.posenc_ext


def _forward_mode() -> bool:
    return forward_ad._current_level >= 0


def _differentiated(*tensors: Tensor) -> bool:
    """Does any derivative flow through these? If not, the op alone will do."""
    return _forward_mode() or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def _apply(function: type[Function], *args: Any) -> Any:
    """Call a Function; in forward mode its Dual, since torch.compile refuses one with a jvp."""
    if _forward_mode():
        from .rope_forward_ad import DUALS

        function = DUALS[function]
    return function.apply(*args)


def rotate(x: Tensor, options: RopeOptions) -> Tensor:
    if _differentiated(x, options.cos, options.sin):
        return _apply(Rope, x, *options)
    return _ops.rope(x, *options)


def rotate_pair(q: Tensor, k: Tensor, options: RopeOptions) -> tuple[Tensor, Tensor]:
    if _differentiated(q, k, options.cos, options.sin):
        return _apply(ApplyRope, q, k, *options)
    return _ops.apply_rope(q, k, *options)


def rotate_inplace(op: str, xs: tuple[Tensor, ...], options: RopeOptions) -> tuple[Tensor, ...]:
    """Rotate one or two tensors in place: all of them, or on an error none."""
    names = "x" if len(xs) == 1 else "qk"
    for name, x in zip(names, xs, strict=True):
        if not torch.compiler.is_compiling() and x.is_neg():
            raise ValueError(
                f"posenc_ext.{op}: {name} must not be a lazily negated view when inplace=True, "
                "got one: call resolve_neg() first"
            )
    write = _ops.rope_ if len(xs) == 1 else _ops.apply_rope_
    if not _differentiated(*xs, options.cos, options.sin):
        write(*xs, *options)
        return xs
    for name, x in zip(names, xs, strict=True):
        _check_inplace(op, name, x, options)
    _check_saved(op, options)
    tables = _tables_needed(options)
    # Not detached: the gradient of the tables depends on x, and may be differentiated again.
    before = [x.clone() if tables else None for x in xs]
    write(*(x.detach() for x in xs), *options.detached())
    # One Function per tensor: autograd lets only a Function with one output write into a view.
    return tuple(_apply(Rotated, x, b, *options) for x, b in zip(xs, before, strict=True))


def rotate_out(x: Tensor, out: Tensor, inplace: bool, options: RopeOptions) -> Tensor:
    check_tensors("rope", out=out)
    if inplace:
        raise ValueError("posenc_ext.rope: out must not be given with inplace=True, got both")
    if not torch.compiler.is_compiling() and out.is_neg():
        raise ValueError("posenc_ext.rope: out must not be a lazily negated view, got one")
    inputs = (x, options.cos, options.sin, out)
    dual = _forward_mode() and any(forward_ad.unpack_dual(t).tangent is not None for t in inputs)
    if dual or (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        raise ValueError(
            "posenc_ext.rope: out must not be given when a gradient is needed (out= is not "
            "differentiable), got an argument that requires grad"
        )
    _ops.rope_out(x, *options, out=out)
    return out


def _check_inplace(op: str, name: str, x: Tensor, options: RopeOptions) -> None:
    """What autograd would refuse after the write, refuse before it."""
    leaf = x.is_leaf and x.requires_grad
    base = None if torch.compiler.is_compiling() else x._base
    if leaf or (base is not None and base.is_leaf and base.requires_grad):
        what = "a leaf" if leaf else "a view of a leaf"
        raise ValueError(
            f"posenc_ext.{op}: {name} must not be {what} that requires grad when inplace=True, got "
            f"one of shape {list(x.shape)}"
        )
    if not torch.compiler.is_compiling():
        _C.check_inplace(x, any(t.requires_grad for t in (x, options.cos, options.sin)))


def _check_saved(op: str, options: RopeOptions) -> None:
    """What autograd would refuse to save for backward, refuse before the write."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return
    tensors = {
        "cos": options.cos,
        "sin": options.sin,
        "positions": options.positions,
        "offset": options.offsets,
        "cu_seqlens": options.cu_seqlens,
    }
    for name, t in tensors.items():
        if t is not None and t.is_inference():
            raise ValueError(
                f"posenc_ext.{op}: {name} must not be an inference tensor when a gradient is "
                "needed, got one: clone() it outside inference mode"
            )


def table_grads(grad: Tensor, x: Tensor, options: RopeOptions) -> tuple[Tensor, Tensor]:
    """The gradient of rotate(x) in cos and in sin, for the gradient `grad` of its result."""
    if _differentiated(grad, x):
        return _apply(TableGrads, grad, x, *options)
    return _ops.rope_table_grad(grad, x, *options)


def rotate_by(x: Tensor, cos: Tensor | None, sin: Tensor | None, options: RopeOptions) -> Tensor:
    """Rotate the first R channels by other tables, a missing one being zero; the rest become 0."""
    if cos is None:
        cos = torch.zeros_like(options.cos)
    if sin is None:
        sin = torch.zeros_like(options.sin)
    rotated = rotate(x[..., : options.rotary_dim], options.with_tables(cos, sin))
    return F.pad(rotated, (0, x.shape[-1] - options.rotary_dim))


class Saved:
    """Keeps the options, and the tensors that a derivative needs, in an autograd context."""

    @staticmethod
    def save(ctx: Any, xs: tuple[Tensor | None, ...], options: tuple[Any, ...]) -> None:
        ctx.count = len(xs)
        ctx.flags = options[5:]
        ctx.save_for_backward(*xs, *options[:5])
        if _forward_mode():
            ctx.save_for_forward(*xs, *options[:5])
        ctx.set_materialize_grads(False)

    @staticmethod
    def load(ctx: Any) -> tuple[tuple[Any, ...], RopeOptions]:
        tensors = ctx.saved_tensors
        return tensors[: ctx.count], RopeOptions(*tensors[ctx.count :], *ctx.flags)


def _tables_needed(options: tuple[Any, ...]) -> bool:
    return options[0].requires_grad or options[1].requires_grad or _forward_mode()


class Rope(Function):
    """rotate(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *options: Any) -> Tensor:
        Saved.save(ctx, (x if _tables_needed(options) else None,), options)
        return _ops.rope(x, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (x,), options = Saved.load(ctx)
        tables = any(ctx.needs_input_grad[1:3])
        return *_pull_back(x, grad, options, ctx.needs_input_grad[0], tables), *(None,) * 7


def _pull_back(
    x: Any, grad: Tensor | None, options: RopeOptions, need_x: bool, need_tables: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of rotate(x) in x, cos and sin. Only those of the tables read x."""
    if grad is None:
        return None, None, None
    dx = rotate(grad, options.inverted()) if need_x else None
    dcos, dsin = table_grads(grad, x, options) if need_tables else (None, None)
    return dx, dcos, dsin


class ApplyRope(Function):
    """rotate(q) and rotate(k) in one pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        tables = _tables_needed(options)
        Saved.save(ctx, (q, k) if tables else (None, None), options)
        q_out, k_out = _ops.apply_rope(q, k, *options)
        if not tables:
            if not ctx.needs_input_grad[0]:
                ctx.mark_non_differentiable(q_out)
            if not ctx.needs_input_grad[1]:
                ctx.mark_non_differentiable(k_out)
        return q_out, k_out

    @staticmethod
    def backward(ctx: Any, grad_q: Any, grad_k: Any) -> tuple[Any, ...]:
        (q, k), options = Saved.load(ctx)
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
                    dcos = c if dcos is None else dcos + c
                    dsin = s if dsin is None else dsin + s
        return dq, dk, dcos, dsin, *(None,) * 7


class Rotated(Function):
    """Tells autograd that x has been rotated in place. `before` is a copy of what it was, if the
    tables need a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor | None, *options: Any) -> Tensor:
        Saved.save(ctx, (before,), options)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (before,), options = Saved.load(ctx)
        tables = any(ctx.needs_input_grad[2:4])
        dx, dcos, dsin = _pull_back(before, grad, options, ctx.needs_input_grad[0], tables)
        return dx, None, dcos, dsin, *(None,) * 7


class TableGrads(Function):
    """table_grads(grad, x)."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        Saved.save(ctx, (grad, x), options)
        return _ops.rope_table_grad(grad, x, *options)

    @staticmethod
    def backward(ctx: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
        (grad, x), options = Saved.load(ctx)
        if cos is None and sin is None:
            return (None,) * 11
        need_grad, need_x = ctx.needs_input_grad[:2]
        dgrad = rotate_by(x, cos, sin, options) if need_grad else None
        dx = rotate_by(grad, cos, sin, options.inverted()) if need_x else None
        return dgrad, dx, *(None,) * 9
