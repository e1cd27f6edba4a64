"""Gradients of alibi_bias and add_alibi.

Both are linear in the slopes, with the unit bias u = -|j - i|, and so is the adjoint

    slope_grads(g) = sum(g * u),

whose own adjoint is the bias again. Each backward calls the differentiable function, never a raw
op, so every order of derivative works.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from .._native import _C

_ops = torch.ops.posenc_ext


def forward_mode() -> bool:
    return forward_ad._current_level >= 0


def differentiated(*tensors: Tensor) -> bool:
    """Does any derivative flow through these? If not, the op alone will do."""
    return forward_mode() or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def apply(function: type[Function], dual: type[Function], *args: Any) -> Any:
    """Call a Function; in forward mode its dual, since torch.compile refuses one with a jvp."""
    return (dual if forward_mode() else function).apply(*args)


def save(ctx: Any, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    if forward_mode():
        ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def bias(
    slopes: Tensor,
    q_len: int,
    k_len: int,
    causal: bool,
    dtype: torch.dtype,
    key_positions: Tensor | None = None,
) -> Tensor:
    """[H, Q, K], or [B, H, Q, K] if slopes or positions have a batch."""
    args = (slopes, q_len, k_len, causal, dtype, key_positions)
    return apply(_Bias, _BiasDual, *args) if differentiated(slopes) else _ops.alibi_bias(*args)


def slope_grads(
    grad: Tensor, slopes: Tensor, causal: bool, key_positions: Tensor | None = None
) -> Tensor:
    """sum(grad * u) for every slope; of `slopes` only shape and dtype matter."""
    args = (grad, slopes.detach(), causal, key_positions)
    if differentiated(grad):
        return apply(_SlopeGrad, _SlopeGradDual, *args)
    return _ops.alibi_slope_grad(*args)


def add(scores: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    if differentiated(scores, slopes):
        return apply(_Add, _AddDual, scores, slopes, causal)
    return _ops.add_alibi(scores, slopes, causal)


def add_inplace(scores: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    if not torch.compiler.is_compiling() and scores.is_neg():
        raise ValueError(
            "posenc_ext.add_alibi: scores must not be a lazily negated view when inplace=True, got "
            "one: call resolve_neg() first"
        )
    if not differentiated(scores, slopes):
        _ops.add_alibi_(scores, slopes, causal)
        return scores
    _check_inplace(scores, slopes)
    _ops.add_alibi_(scores.detach(), slopes.detach(), causal)
    return apply(_Added, _AddedDual, scores, slopes, causal)


def _check_inplace(scores: Tensor, slopes: Tensor) -> None:
    """What autograd would refuse after the write, refuse before it."""
    leaf = scores.is_leaf and scores.requires_grad
    base = None if torch.compiler.is_compiling() else scores._base
    if leaf or (base is not None and base.is_leaf and base.requires_grad):
        what = "a leaf" if leaf else "a view of a leaf"
        raise ValueError(
            f"posenc_ext.add_alibi: scores must not be {what} that requires grad when "
            f"inplace=True, got one of shape {list(scores.shape)}"
        )
    if torch.compiler.is_compiling():
        return
    _C.check_inplace(scores, scores.requires_grad or slopes.requires_grad)
    if slopes.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            "posenc_ext.add_alibi: slopes must not be an inference tensor when a gradient is "
            "needed, got one: clone() it outside inference mode"
        )


def visible(x: Tensor, causal: bool) -> Tensor:
    """x with zeros where a causal mask hides the key."""
    return x.tril(x.shape[-1] - x.shape[-2]) if causal else x


def unmasked_bias(
    slopes: Tensor, shape: torch.Size, dtype: torch.dtype, key_positions: Tensor | None = None
) -> Tensor:
    """The bias of these slopes for scores of this shape, expanded to it."""
    return bias(slopes, shape[-2], shape[-1], False, dtype, key_positions).expand(shape)


class _Bias(Function):
    """bias(slopes)."""

    @staticmethod
    def forward(ctx: Any, slopes: Tensor, *args: Any) -> Tensor:
        *_, causal, dtype, positions = args
        y = _ops.alibi_bias(slopes, *args)
        ctx.causal, ctx.shape, ctx.dtype = causal, y.shape, dtype
        save(ctx, slopes, positions)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        slopes, positions = ctx.saved_tensors
        dslopes = None if grad is None else slope_grads(grad, slopes, ctx.causal, positions)
        return dslopes, *(None,) * 5


class _BiasDual(_Bias):
    @staticmethod
    def jvp(ctx: Any, dslopes: Tensor, *_: Any) -> Tensor:
        positions = ctx.saved_tensors[1]
        return visible(unmasked_bias(dslopes, ctx.shape, ctx.dtype, positions), ctx.causal)


class _SlopeGrad(Function):
    """slope_grads(grad)."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, slopes: Tensor, causal: bool, positions: Any) -> Tensor:
        ctx.causal, ctx.shape, ctx.dtype = causal, grad.shape, grad.dtype
        save(ctx, slopes, positions)
        return _ops.alibi_slope_grad(grad, slopes, causal, positions)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
        positions = ctx.saved_tensors[1]
        if v is None:
            return (None,) * 4
        dgrad = visible(unmasked_bias(v, ctx.shape, ctx.dtype, positions), ctx.causal)
        return dgrad, None, None, None


class _SlopeGradDual(_SlopeGrad):
    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor, *_: Any) -> Tensor:
        slopes, positions = ctx.saved_tensors
        return slope_grads(dgrad, slopes, ctx.causal, positions)


class _Add(Function):
    """add(scores, slopes)."""

    @staticmethod
    def setup(ctx: Any, scores: Tensor, slopes: Tensor, causal: bool) -> None:
        ctx.causal, ctx.shape, ctx.dtype = causal, scores.shape, scores.dtype
        save(ctx, slopes)

    @staticmethod
    def forward(ctx: Any, scores: Tensor, slopes: Tensor, causal: bool) -> Tensor:
        _Add.setup(ctx, scores, slopes, causal)
        return _ops.add_alibi(scores, slopes, causal)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        (slopes,) = ctx.saved_tensors
        if grad is None:
            return None, None, None
        dscores = visible(grad, ctx.causal) if ctx.needs_input_grad[0] else None
        dslopes = slope_grads(grad, slopes, ctx.causal) if ctx.needs_input_grad[1] else None
        return dscores, dslopes, None

    @staticmethod
    def tangent(ctx: Any, dscores: Tensor | None, dslopes: Tensor | None) -> Tensor:
        if dslopes is None:
            return visible(dscores, ctx.causal)  # type: ignore[arg-type]  # one of them is there
        tangent = unmasked_bias(dslopes, ctx.shape, ctx.dtype)
        return visible(tangent if dscores is None else tangent + dscores, ctx.causal)


class _Added(_Add):
    """Tells autograd that the bias has been added to scores in place."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, slopes: Tensor, causal: bool) -> Tensor:
        _Add.setup(ctx, scores, slopes, causal)
        ctx.mark_dirty(scores)
        return scores


class _AddDual(_Add):
    @staticmethod
    def jvp(ctx: Any, dscores: Tensor | None, dslopes: Tensor | None, _: Any) -> Tensor:
        return _Add.tangent(ctx, dscores, dslopes)


class _AddedDual(_Added):
    @staticmethod
    def jvp(ctx: Any, dscores: Tensor | None, dslopes: Tensor | None, _: Any) -> Tensor:
        tangent = _Add.tangent(ctx, dscores, dslopes)
        # Autograd wants the tangent of a dirty input changed in place.
        return tangent if dscores is None else dscores.copy_(tangent)
