"""Channel orders of rotary position embedding (RoPE): interleaved pairs to half pairs, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import error, integer
from ..distributed import beside


def interleaved_to_half(
    w: Tensor, rotary_dim: int, *, dim: int = -1, head_dim: int | None = None
) -> Tensor:
    """Reorder the channels of each head for a rotation of halves: ``0, 2, 4 .. 1, 3, 5 ..``.

    >>> import torch, posenc_ext
    >>> posenc_ext.interleaved_to_half(torch.arange(8), 6)
    tensor([0, 2, 4, 1, 3, 5, 6, 7])
    >>> weight = torch.randn(4 * 64, 512)  # rows of a query projection with 4 heads of 64
    >>> half = posenc_ext.interleaved_to_half(weight, 64, dim=0, head_dim=64)

    Rotating pairs ``(x[2i], x[2i + 1])`` and then reordering gives, bit for bit, what reordering
    and then rotating pairs ``(x[i], x[i + R/2])`` gives. Scores ``q @ k`` do not change when both
    are reordered. To run a checkpoint of the one kind with a rotation of the other kind, reorder
    the rows of the query and key projections, their biases, and the weights of query and key norms.

    Args:
        w: any dtype and shape. Activations ``[..., D]``; or a weight ``[H*D, in]`` with `dim` 0 and
            `head_dim` D; or a bias ``[H*D]`` with `head_dim` D.
        rotary_dim: R, even, at most D. Channels from R on keep their place.
        dim: the axis of the channels.
        head_dim: D, if the axis holds several heads one after the other. Default: its whole size.

    Returns:
        A new tensor of the shape of `w`.

    Raises:
        TypeError: a wrong type.
        ValueError: an R that is odd or more than D, an axis that is no multiple of `head_dim`.

    Differentiable in `w`.
    """
    return _reorder("interleaved_to_half", w, rotary_dim, dim, head_dim)


def half_to_interleaved(
    w: Tensor, rotary_dim: int, *, dim: int = -1, head_dim: int | None = None
) -> Tensor:
    """Undo :func:`interleaved_to_half`, which see: the order ``0, R/2, 1, R/2 + 1 ..``.

    >>> import torch, posenc_ext
    >>> posenc_ext.half_to_interleaved(torch.tensor([0, 2, 4, 1, 3, 5, 6, 7]), 6)
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """
    return _reorder("half_to_interleaved", w, rotary_dim, dim, head_dim)


def _reorder(op: str, w: Any, rotary_dim: Any, dim: Any, head_dim: Any) -> Tensor:
    if not isinstance(w, Tensor):
        raise error(TypeError, op, f"w must be a tensor, got {type(w).__name__}")
    rotary_dim, dim = integer(op, "rotary_dim", rotary_dim), integer(op, "dim", dim)
    if not -w.dim() <= dim < w.dim():
        raise error(ValueError, op, f"dim must be an axis of w {list(w.shape)}, got {dim}")
    size = w.shape[dim]
    head_dim = size if head_dim is None else integer(op, "head_dim", head_dim)
    if head_dim < 0 or (size % head_dim if head_dim else size):
        raise error(
            ValueError, op, f"head_dim must divide axis {dim} of w {list(w.shape)}, got {head_dim}"
        )
    if not 0 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise error(
            ValueError,
            op,
            f"rotary_dim must be even, from 0 to head_dim = {head_dim}, got {rotary_dim}",
        )
    pairs = (-1, 2) if op == "interleaved_to_half" else (2, -1)
    order = torch.arange(size, device=w.device).view(-1, head_dim) if size else None
    if order is None:
        return w.clone()
    rotated = order[:, :rotary_dim]
    if rotary_dim:
        rotated = rotated.unflatten(1, pairs).transpose(1, 2).flatten(1)
    (index,) = beside(w, torch.cat([rotated, order[:, rotary_dim:]], 1).flatten())
    return w.index_select(dim, index)
