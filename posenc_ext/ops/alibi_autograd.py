"""Derivatives of alibi_bias and add_alibi.

Both are linear in the slopes, with the unit bias u = -|j - i|, and so is the adjoint

    slope_grads(g) = sum(g * u),

whose own adjoint is the bias again. Each derivative calls the differentiable function, never a raw
op, so every order of them works.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..distributed import tril
from .functions import (
    Op,
    apply,
    check_inplace,
    check_not_negated,
    differentiated,
    make_function,
    one_by_one,
    per_batch,
    save,
    spread,
    total,
    transformed,
)

_ops = torch.ops.posenc_ext


def bias(
    slopes: Tensor,
    q_len: int,
    k_len: int,
    causal: bool,
    dtype: torch.dtype,
    key_positions: Tensor | None = None,
) -> Tensor:
    """[H, Q, K], or [B, H, Q, K] if slopes or positions have a batch."""
    return apply(Bias, slopes, q_len, k_len, causal, dtype, key_positions)


def slope_grads(
    grad: Tensor, slopes: Tensor, causal: bool, key_positions: Tensor | None = None
) -> Tensor:
    """sum(grad * u) for every slope; of `slopes` only shape and dtype matter."""
    return apply(SlopeGrad, grad, slopes.detach(), causal, key_positions)


def add(scores: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    return apply(Add, scores, slopes, causal)


def add_inplace(scores: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    op = "add_alibi"
    check_not_negated(op, "scores", scores)
    exporting = torch.compiler.is_exporting()  # to train later, perhaps
    if not exporting and not differentiated(scores, slopes):
        _ops.add_alibi_(scores, slopes, causal)
        return scores
    check_inplace(op, {"scores": scores}, {"slopes": slopes})
    if torch.compiler.is_compiling() or transformed():
        return scores.copy_(add(scores, slopes, causal))
    _ops.add_alibi_(scores.detach(), slopes.detach(), causal)
    return _added(scores, slopes, causal)


def visible(x: Tensor, causal: bool) -> Tensor:
    """x with zeros where a causal mask hides the key."""
    return tril(x, x.shape[-1] - x.shape[-2]) if causal else x


def unmasked_bias(
    slopes: Tensor, shape: torch.Size, dtype: torch.dtype, key_positions: Tensor | None = None
) -> Tensor:
    """The bias of these slopes for scores of this shape, expanded to it."""
    return bias(slopes, shape[-2], shape[-1], False, dtype, key_positions).expand(shape)


class Bias(Op, name="alibi_bias", inputs=1):
    """bias(slopes)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        slopes, *_, ctx.causal, ctx.dtype, positions = inputs
        ctx.shape = output.shape
        save(ctx, slopes, positions)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        slopes, positions = ctx.saved_tensors
        dslopes = None if grad is None else slope_grads(grad, slopes, ctx.causal, positions)
        return dslopes, *(None,) * 5

    @staticmethod
    def jvp(ctx: Any, dslopes: Tensor, *_: Any) -> Tensor:
        positions = ctx.saved_tensors[1]
        return visible(unmasked_bias(dslopes, ctx.shape, ctx.dtype, positions), ctx.causal)

    @staticmethod
    def vmap(info: Any, in_dims: Any, slopes: Tensor, *args: Any) -> tuple[Tensor, int]:
        size, (slopes_dim, *_, positions_dim) = info.batch_size, in_dims
        q_len, k_len, causal, dtype, positions = args
        pairs = ((slopes, slopes_dim), (positions, positions_dim))
        batches = [
            t.movedim(dim or 0, 0).shape[0 if dim is None else 1]
            for t, dim in pairs
            if t is not None and t.dim() - (dim is not None) == 2
        ]
        batch = batches[0] if batches else 1
        slopes = per_batch(slopes, slopes_dim, 2, size, batch)
        positions = per_batch(positions, positions_dim, 2, size, batch)
        y = bias(slopes, q_len, k_len, causal, dtype, positions)
        return (y.unflatten(0, (size, batch)) if batches else y), 0


class SlopeGrad(Op, name="alibi_slope_grad", inputs=1):
    """slope_grads(grad)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        grad, slopes, ctx.causal, positions = inputs
        ctx.shape, ctx.dtype = grad.shape, grad.dtype
        save(ctx, slopes, positions)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
        positions = ctx.saved_tensors[1]
        if v is None:
            return (None,) * 4
        dgrad = visible(unmasked_bias(v, ctx.shape, ctx.dtype, positions), ctx.causal)
        return dgrad, None, None, None

    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor, *_: Any) -> Tensor:
        slopes, positions = ctx.saved_tensors
        return slope_grads(dgrad, slopes, ctx.causal, positions)


class Add(Op, name="add_alibi", inputs=2):
    """add(scores, slopes)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, slopes, ctx.causal = inputs
        ctx.shape, ctx.dtype = scores.shape, scores.dtype
        save(ctx, slopes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (slopes,) = ctx.saved_tensors
        if grad is None:
            return None, None, None
        dscores = visible(grad, ctx.causal) if ctx.needs_input_grad[0] else None
        dslopes = slope_grads(grad, slopes, ctx.causal) if ctx.needs_input_grad[1] else None
        return dscores, dslopes, None

    @staticmethod
    def jvp(ctx: Any, dscores: Tensor | None, dslopes: Tensor | None, _: Any) -> Tensor | None:
        dbias = None if dslopes is None else unmasked_bias(dslopes, ctx.shape, ctx.dtype)
        tangent = total(dscores, dbias)
        return None if tangent is None else visible(tangent, ctx.causal)

    @staticmethod
    def vmap(info: Any, in_dims: Any, scores: Tensor, slopes: Tensor, causal: bool) -> Any:
        size, (scores_dim, slopes_dim, _) = info.batch_size, in_dims
        scores = spread(scores, scores_dim, size, 0)
        if scores.dim() != 5:  # which a single call puts into words
            return one_by_one(Add, info, (0, slopes_dim, None), scores, slopes, causal)
        slopes = per_batch(slopes, slopes_dim, 2, size, scores.shape[1])
        return add(scores.flatten(0, 1), slopes, causal).view(scores.shape), 0


class Added:
    """Tells autograd that the bias has been added to scores in place."""

    backward = Add.backward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        Add.setup_context(ctx, inputs, output)
        ctx.mark_dirty(output)


_added = make_function(Added, lambda scores, *_: scores)
