"""Positions of a rotary module's tokens, checked or made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import error

OP = "RotaryPositionalEmbedding"


def is_floating(positions: Tensor | None) -> bool:
    return isinstance(positions, Tensor) and positions.is_floating_point()


def default_positions(
    offset: Tensor | Any, cu_seqlens: Tensor | None, size: int, device: torch.device
) -> Tensor:
    """The positions of tokens 0 .. size-1 for a tensor of offsets: [S], [B, S], or packed [T]."""
    if not isinstance(offset, Tensor):
        raise error(
            TypeError, OP, f"offset must be an int or a tensor, got {type(offset).__name__}"
        )
    count = torch.arange(size, device=device)
    offset = offset.to(device)
    if cu_seqlens is None:
        return count + offset.unsqueeze(-1) if offset.dim() else count + offset
    starts = cu_seqlens.to(device)
    which = torch.searchsorted(starts, count.to(starts.dtype), right=True) - 1
    return count - starts[which] + (offset[which] if offset.dim() else offset)


def check_positions(positions: Any, size: int, offset: Any, cu_seqlens: Any) -> None:
    """Positions say all: one for each token, and nothing beside them."""
    if not isinstance(positions, Tensor):
        raise error(TypeError, OP, f"positions must be a tensor, got {type(positions).__name__}")
    if positions.dim() == 0 or positions.shape[-1] != size:
        raise error(
            ValueError,
            OP,
            f"positions must be [..., S] with S = {size}, got {list(positions.shape)}",
        )
    if cu_seqlens is not None or isinstance(offset, Tensor) or offset != 0:
        name = "offset" if cu_seqlens is None else "cu_seqlens"
        raise error(ValueError, OP, f"{name} must not be given with positions, got both")
