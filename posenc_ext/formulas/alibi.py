"""Formulas of the ALiBi ops. u is the unit bias -|j - p|, p the key that a query stands at."""

from __future__ import annotations

import torch
from torch import Tensor

from .common import exact, like, write

INF = float("inf")


def _queries(q_len: int, k_len: int, device: torch.device) -> Tensor:
    """[Q, 1]: the key that each query stands at."""
    return torch.arange(q_len, device=device).unsqueeze(-1) + (k_len - q_len)


def _ahead(q_len: int, k_len: int, device: torch.device) -> Tensor:
    """[Q, K]: by how much each key is ahead of the query."""
    return torch.arange(k_len, device=device) - _queries(q_len, k_len, device)


def _unit(
    q_len: int, k_len: int, like: Tensor, dtype: torch.dtype, key_positions: Tensor | None = None
) -> Tensor:
    """u, [Q, K] or [B, 1, Q, K], on the device of `like`."""
    if key_positions is None:
        distance = _ahead(q_len, k_len, like.device)
    else:
        stand = key_positions[:, _queries(q_len, k_len, like.device)]  # [B, Q, 1]
        distance = (key_positions.unsqueeze(1) - stand).unsqueeze(1)
    return -distance.abs().to(dtype)


def _visible(x: Tensor, causal: bool, hidden: float = 0.0) -> Tensor:
    if not causal:
        return x
    return torch.where(_ahead(x.shape[-2], x.shape[-1], x.device) > 0, hidden, x)


def _biased(x: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    """x [B, H, Q, K] plus the bias, in the dtype of x."""
    unit = _unit(x.shape[-2], x.shape[-1], x, x.dtype)
    return _visible(x + slopes.to(x.dtype)[..., None, None] * unit, causal, -INF)


def alibi_bias(
    slopes: Tensor,
    q_len: int,
    k_len: int,
    causal: bool,
    dtype: torch.dtype,
    key_positions: Tensor | None,
) -> Tensor:
    unit = _unit(q_len, k_len, slopes, exact(dtype), key_positions)
    bias = slopes.to(exact(dtype))[..., None, None] * unit
    return _visible(bias, causal, -INF).to(dtype)


def add_alibi(scores: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    return like(_biased(scores.to(exact(scores.dtype)), slopes, causal), scores)


def add_alibi_(scores: Tensor, slopes: Tensor, causal: bool) -> None:
    write(scores, add_alibi(scores, slopes, causal))


def alibi_softmax(
    scores: Tensor, slopes: Tensor, scale: float, causal: bool, key_padding_mask: Tensor | None
) -> Tensor:
    biased = _biased(scores.to(exact(scores.dtype)) * scale, slopes, causal)
    if key_padding_mask is not None:
        biased = torch.where(key_padding_mask[:, None, None, :], biased, -INF)
    blind = (biased == -INF).all(-1, keepdim=True)  # rows that see no key become zeros, not NaN
    y = torch.where(blind, 0.0, torch.where(blind, 0.0, biased).softmax(-1))
    return like(y, scores)


def alibi_slope_grad(
    grad: Tensor, slopes: Tensor, causal: bool, key_positions: Tensor | None
) -> Tensor:
    g = _visible(grad.to(exact(grad.dtype)), causal)
    sums = (g * _unit(g.shape[-2], g.shape[-1], g, g.dtype, key_positions)).sum((-1, -2))
    return (sums.sum(0) if sums.dim() > slopes.dim() else sums).to(slopes.dtype)


def _through_softmax(grad: Tensor, y: Tensor, causal: bool) -> Tensor:
    g, y = grad.to(exact(y.dtype)), _visible(y.to(exact(y.dtype)), causal)
    return y * (g - (y * g).sum(-1, keepdim=True))


def alibi_softmax_grad(grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    return like(_through_softmax(grad, y, causal) * scale, y)


def alibi_softmax_slope_grad(grad: Tensor, y: Tensor, slopes: Tensor, causal: bool) -> Tensor:
    return alibi_slope_grad(_through_softmax(grad, y, causal), slopes, causal, None)
