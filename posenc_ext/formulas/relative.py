"""Formulas of the relative ops."""

from __future__ import annotations

import torch
from torch import Tensor

from .common import exact


def _columns(index: Tensor, q_len: int, k_len: int) -> Tensor:
    """[Q, K]: the column of a table that each cell belongs to, -1 for none."""
    key = torch.arange(k_len, device=index.device)
    query = torch.arange(q_len, device=index.device).unsqueeze(-1)
    return index.long()[key - query + (q_len - 1)]


def relative_gather(x: Tensor, index: Tensor, k_len: int) -> Tensor:
    column = _columns(index, x.shape[-2], k_len)
    size = (*x.shape[:-1], k_len)
    taken = x.gather(-1, column.clamp(min=0).expand(size))
    return torch.where(column < 0, 0.0, taken).to(x.dtype)


def relative_scatter(y: Tensor, index: Tensor, size: int) -> Tensor:
    column = _columns(index, *y.shape[-2:])
    values = torch.where(column < 0, 0.0, y.to(exact(y.dtype)))
    sums = values.new_zeros(*y.shape[:-1], size)
    return sums.scatter_add(-1, column.clamp(min=0).expand(y.shape), values).to(y.dtype)
