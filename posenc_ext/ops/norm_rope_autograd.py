"""Derivatives of norm_rope.

A first gradient is one native pass, in which the statistic of each row is computed again: nothing
is saved but the inputs. Where that gradient is differentiated itself, and for forward mode and the
gradients of cos and sin, the formulas of norm_rope_formula.py serve. Roundings on the way count as
the identity.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .._native import _C
from .functions import (
    Op,
    apply,
    check_inplace,
    check_not_negated,
    check_out,
    differentiated,
    forward_mode,
    one_by_one,
    save,
    total,
)
from .norm_rope_formula import Formula, Gradients, Parameters
from .norm_rope_options import NormOptions
from .rope_options import RopeOptions
from .rope_vmap import fold

_ops = torch.ops.posenc_ext


def norm_rotate(x: Tensor, p: Parameters, rope: RopeOptions, norm: NormOptions) -> Tensor:
    return apply(NormRope, x, *p, *rope, *norm)


def norm_rotate_pair(
    q: Tensor, k: Tensor, qp: Parameters, kp: Parameters, rope: RopeOptions, norm: NormOptions
) -> tuple[Tensor, Tensor]:
    return apply(QkNormRope, q, k, qp.weight, kp.weight, qp.bias, kp.bias, *rope, *norm)


def norm_rotate_inplace(
    op: str,
    xs: tuple[Tensor, ...],
    ps: tuple[Parameters, ...],
    rope: RopeOptions,
    norm: NormOptions,
) -> tuple[Tensor, ...]:
    """Normalise and rotate one or two tensors in place: all of them, or on an error none."""
    named = dict(zip("x" if len(xs) == 1 else "qk", xs, strict=True))
    for name, x in named.items():
        check_not_negated(op, name, x)
    pair = len(xs) == 2
    parameters = (*(p.weight for p in ps), *(p.bias for p in ps))
    exporting = torch.compiler.is_exporting()  # to train later, perhaps
    if not exporting and not differentiated(*xs, *parameters, rope.cos, rope.sin):
        (_ops.qk_norm_rope_ if pair else _ops.norm_rope_)(*xs, *parameters, *rope, *norm)
        return xs
    prefixes = [f"{name}_" if pair else "" for name in named]
    names = [f"{prefix}{kind}" for kind in ("weight", "bias") for prefix in prefixes]
    check_inplace(op, named, rope.tensors() | dict(zip(names, parameters, strict=True)))
    before = tuple(x.clone() for x in xs)  # which a derivative keeps
    results: tuple[Tensor, ...]
    if pair:
        results = norm_rotate_pair(before[0], before[1], ps[0], ps[1], rope, norm)
    else:
        results = (norm_rotate(before[0], ps[0], rope, norm),)
    return tuple(x.copy_(y) for x, y in zip(xs, results, strict=True))


def norm_rotate_out(
    x: Tensor, out: Tensor, inplace: bool, p: Parameters, rope: RopeOptions, norm: NormOptions
) -> Tensor:
    inputs = [t for t in (x, *p, rope.cos, rope.sin, out) if t is not None]
    check_out("norm_rope", out, inplace, inputs)
    _ops.norm_rope_out(x, *p, *rope, *norm, out=out)
    return out


def _pull_back(
    grad: Tensor | None,
    x: Tensor,
    p: Parameters,
    rope: RopeOptions,
    norm: NormOptions,
    parameters: bool,
    tables: bool,
) -> Gradients:
    """The gradients of norm_rotate: in one native pass, unless they need derivatives of their own.

    `parameters` and `tables` say which are wanted beside that of x.
    """
    if grad is None:
        return Gradients()
    if tables or differentiated(*(t for t in (grad, x, *p, rope.cos, rope.sin) if t is not None)):
        return Formula(x, p, rope, norm).pull_back(grad, tables)
    dx, dweight, dbias = _ops.norm_rope_grad(grad, x, *p, parameters, *rope, *norm)
    return Gradients(
        dx,
        dweight if parameters and p.weight is not None else None,
        dbias if parameters and p.bias is not None else None,
    )


def _differentiated_grad(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    parameters: bool,
    *options: Any,
) -> tuple[Tensor, ...]:
    """The op norm_rope_grad, called with tensors that need derivatives."""
    rope, norm = RopeOptions(*options[:10]), NormOptions(*options[10:])
    found = Formula(x, Parameters(weight, bias), rope, norm).pull_back(grad, False)
    given = (found.weight, found.bias) if parameters else (None, None)
    like = [x if t is None else t for t in (weight, bias)]
    empty = (t.new_empty(0) if g is None else g for g, t in zip(given, like, strict=True))
    dx: Any = found.x
    return dx, *empty


_C.differentiate("norm_rope_grad", _differentiated_grad)
_grad_op: Any = SimpleNamespace(raw=_ops.norm_rope_grad.default)
torch.library.register_vmap(
    "posenc_ext::norm_rope_grad",
    lambda info, in_dims, *args: one_by_one(_grad_op, info, in_dims, *args),
)


def _keep(ctx: Any, tensors: tuple[Tensor | None, ...], options: tuple[Any, ...]) -> None:
    """Save the tensors to normalise with their weights, and the options."""
    ctx.flags = options[5:]
    save(ctx, *tensors, *options[:5])


def _kept(ctx: Any) -> tuple[tuple[Any, ...], RopeOptions, NormOptions]:
    tensors = ctx.saved_tensors
    rope = RopeOptions(*tensors[-5:], *ctx.flags[:5])
    return tensors[:-5], rope, NormOptions(*ctx.flags[5:])


def _fold(info: Any, in_dims: Any, xs: tuple[Tensor, ...], options: tuple[Any, ...]) -> Any:
    """One call for all samples, if they share their weights; else None."""
    count = len(xs)
    rope, norm = RopeOptions(*options[:10]), NormOptions(*options[10:])
    if any(d is not None for d in in_dims[count : 3 * count]):
        return None
    if rope.cu_seqlens is not None and norm.norm_dims == "all":  # samples would become heads
        return None
    dims = (*in_dims[:count], *in_dims[3 * count : 3 * count + 10])
    return fold(info.batch_size, dims, xs, tuple(rope))


class NormRope(Op, name="norm_rope", inputs=5):
    """norm_rotate(x)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _keep(ctx, inputs[:3], inputs[3:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (x, *p), rope, norm = _kept(ctx)
        _, weight, bias, cos, sin = ctx.needs_input_grad[:5]
        grads = _pull_back(grad, x, Parameters(*p), rope, norm, weight or bias, cos or sin)
        return *grads, *(None,) * 14

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:
        (x, *p), rope, norm = _kept(ctx)
        return Formula(x, Parameters(*p), rope, norm).push_forward(Gradients(*tangents[:5]))

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, *rest: Any) -> tuple[Any, Any]:
        folded = _fold(info, in_dims, (x,), rest[2:])
        if folded is None:
            return one_by_one(NormRope, info, in_dims, x, *rest)
        norm = NormOptions(*rest[12:])
        y = norm_rotate(folded.xs[0], Parameters(*rest[:2]), folded.options, norm)
        return folded.unfold(y), folded.axis


class QkNormRope(Op, name="qk_norm_rope", inputs=8):
    """norm_rotate(q) and norm_rotate(k) in one pass."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _keep(ctx, inputs[:6], inputs[6:])
        need = ctx.needs_input_grad
        if not (need[6] or need[7] or forward_mode()):  # the tables concern both
            constant = [
                y for i, y in enumerate(output) if not (need[i] or need[i + 2] or need[i + 4])
            ]
            ctx.mark_non_differentiable(*constant)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        tensors, rope, norm = _kept(ctx)
        need = ctx.needs_input_grad
        found = [
            _pull_back(
                grad, tensors[i], Parameters(tensors[i + 2], tensors[i + 4]), rope, norm,
                need[i + 2] or need[i + 4], need[6] or need[7],
            )
            for i, grad in enumerate(grads)
        ]  # fmt: skip
        q, k = found
        tables = total(q.cos, k.cos), total(q.sin, k.sin)
        return q.x, k.x, q.weight, k.weight, q.bias, k.bias, *tables, *(None,) * 14

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        tensors, rope, norm = _kept(ctx)
        outputs = []
        for i in range(2):
            formula = Formula(tensors[i], Parameters(tensors[i + 2], tensors[i + 4]), rope, norm)
            given = Gradients(tangents[i], tangents[i + 2], tangents[i + 4], *tangents[6:8])
            pushed = formula.push_forward(given)
            # autograd takes no None from a jvp: where no tangent comes in, zeros go out.
            outputs.append(torch.zeros_like(tensors[i]) if pushed is None else pushed)
        return tuple(outputs)

    @staticmethod
    def vmap(info: Any, in_dims: Any, q: Tensor, k: Tensor, *rest: Any) -> tuple[Any, Any]:
        folded = _fold(info, in_dims, (q, k), rest[4:])
        if folded is None:
            return one_by_one(QkNormRope, info, in_dims, q, k, *rest)
        qp, kp = Parameters(rest[0], rest[2]), Parameters(rest[1], rest[3])
        norm = NormOptions(*rest[14:])
        pair = norm_rotate_pair(folded.xs[0], folded.xs[1], qp, kp, folded.options, norm)
        return tuple(map(folded.unfold, pair)), (folded.axis, folded.axis)
