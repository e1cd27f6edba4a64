"""Derivatives of alibi_softmax.

With y the softmax, J(y) = diag(y) - y y^T its symmetric Jacobian and u = -|j - i| the unit bias:

    score_grads(g; y)          scale * J(y) g = scale * y * (g - sum(y * g)),
                               the gradient of the scores, and their tangent,
    softmax_slope_grads(g; y)  sum(u * J(y) g), the gradient of the slopes.

Masked keys need no mask here: their y is 0. Each backward calls the differentiable function, never
a raw op; the derivative of J(y) g in y, which only second derivatives need, is composed of torch
operations.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .alibi_autograd import slope_grads, unmasked_bias, visible
from .functions import Op, apply, one_by_one, per_batch, save, spread, total


def softmax(
    scores: Tensor, slopes: Tensor, scale: float, causal: bool, key_padding_mask: Tensor | None
) -> Tensor:
    return apply(Softmax, scores, slopes, scale, causal, key_padding_mask)


def score_grads(grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    """scale * y * (grad - sum(y * grad))."""
    return apply(ScoreGrad, grad, y, scale, causal)


def softmax_slope_grads(grad: Tensor, y: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    """sum(u * score_grads(grad, y, 1)) for every slope; of `slopes` only shape and dtype matter."""
    return apply(SoftmaxSlopeGrad, grad, y, slopes.detach(), causal)


def _gradient_in_y(v: Tensor, grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    """The gradient in y of sum(v * score_grads(grad, y))."""
    y = visible(y, causal)
    dot = (y * grad).sum(-1, keepdim=True)
    mean = (y * v).sum(-1, keepdim=True)
    return visible((v * (grad - dot) - grad * mean) * scale, causal)


def _tangent_in_y(dy: Tensor, grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    """The tangent of score_grads(grad, y) as y moves along dy."""
    y, dy = visible(y, causal), visible(dy, causal)
    dot = (y * grad).sum(-1, keepdim=True)
    return (dy * (grad - dot) - y * (dy * grad).sum(-1, keepdim=True)) * scale


class Softmax(Op, name="alibi_softmax", inputs=2):
    """softmax(scores, slopes)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, slopes, ctx.scale, ctx.causal, _ = inputs
        save(ctx, output, slopes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        y, slopes = ctx.saved_tensors
        dscores: Tensor | None = None
        dslopes: Tensor | None = None
        if grad is not None and ctx.needs_input_grad[0]:
            dscores = score_grads(grad, y, ctx.scale, ctx.causal)
        if grad is not None and ctx.needs_input_grad[1]:
            dslopes = softmax_slope_grads(grad, y, slopes, ctx.causal)
        return dscores, dslopes, None, None, None

    @staticmethod
    def jvp(ctx: Any, dscores: Tensor | None, dslopes: Tensor | None, *_: Any) -> Tensor | None:
        y, _slopes = ctx.saved_tensors
        by_scores = None if dscores is None else score_grads(dscores, y, ctx.scale, ctx.causal)
        if dslopes is None:
            return by_scores
        dbias = unmasked_bias(dslopes, y.shape, y.dtype)
        return total(by_scores, score_grads(dbias, y, 1.0, ctx.causal))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:
        size, (scores_dim, slopes_dim, _, _, mask_dim) = info.batch_size, in_dims
        scores, slopes, scale, causal, mask = args
        if scores.dim() - (scores_dim is not None) != 4:  # which a single call puts into words
            return one_by_one(Softmax, info, in_dims, *args)
        scores = spread(scores, scores_dim, size, 0)
        slopes = per_batch(slopes, slopes_dim, 2, size, scores.shape[1])
        mask = per_batch(mask, mask_dim, 2, size, scores.shape[1])
        y = softmax(scores.flatten(0, 1), slopes, scale, causal, mask)
        return y.unflatten(0, scores.shape[:2]), 0


class ScoreGrad(Op, name="alibi_softmax_grad", inputs=2):
    """score_grads(grad, y)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        grad, y, ctx.scale, ctx.causal = inputs
        save(ctx, grad, y)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
        grad, y = ctx.saved_tensors
        dgrad: Tensor | None = None
        dy: Tensor | None = None
        if v is not None and ctx.needs_input_grad[0]:
            dgrad = score_grads(v, y, ctx.scale, ctx.causal)
        if v is not None and ctx.needs_input_grad[1]:
            dy = _gradient_in_y(v, grad, y, ctx.scale, ctx.causal)
        return dgrad, dy, None, None

    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor | None, dy: Tensor | None, *_: Any) -> Tensor | None:
        grad, y = ctx.saved_tensors
        by_grad = None if dgrad is None else score_grads(dgrad, y, ctx.scale, ctx.causal)
        by_y = None if dy is None else _tangent_in_y(dy, grad, y, ctx.scale, ctx.causal)
        return total(by_grad, by_y)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        grad, y = (spread(t, dim, size, 0) for t, dim in zip(args[:2], in_dims[:2], strict=True))
        dscores = score_grads(grad.flatten(0, 1), y.flatten(0, 1), *args[2:])
        return dscores.unflatten(0, y.shape[:2]), 0


class SoftmaxSlopeGrad(Op, name="alibi_softmax_slope_grad", inputs=2):
    """softmax_slope_grads(grad, y)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.causal = inputs
        save(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
        grad, y, _ = ctx.saved_tensors
        if v is None:
            return (None,) * 4
        vbias = unmasked_bias(v, y.shape, y.dtype)
        dgrad: Tensor | None = None
        dy: Tensor | None = None
        if ctx.needs_input_grad[0]:
            dgrad = score_grads(vbias, y, 1.0, ctx.causal)
        if ctx.needs_input_grad[1]:
            dy = _gradient_in_y(vbias, grad, y, 1.0, ctx.causal)
        return dgrad, dy, None, None

    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor | None, dy: Tensor | None, *_: Any) -> Tensor | None:
        grad, y, slopes = ctx.saved_tensors
        by_grad = None if dgrad is None else softmax_slope_grads(dgrad, y, slopes, ctx.causal)
        if dy is None:
            return by_grad
        moved = _tangent_in_y(dy, grad, y, 1.0, ctx.causal)
        return total(by_grad, slope_grads(moved, slopes, ctx.causal))
