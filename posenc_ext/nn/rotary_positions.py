"""Positions of a rotary module's tokens, checked or made."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from ..arguments import error, integer

OP = "RotaryPositionalEmbedding"


def check_inputs(q: Any, k: Any, layout: str) -> None:
    for name, x in (("q", q), ("k", k)):
        if x is None and name == "k":
            continue
        if not isinstance(x, Tensor):
            raise error(TypeError, OP, f"{name} must be a tensor, got {type(x).__name__}")
        if x.dim() != len(layout):
            raise error(
                ValueError,
                OP,
                f"{name} must have {len(layout)} dimensions for layout {layout!r}, got "
                f"{list(x.shape)}",
            )


def length_of(seq_len: Any) -> int | None:
    """A length that may be left out."""
    if seq_len is None:
        return None
    if isinstance(seq_len, torch.SymInt):
        return cast(int, seq_len)
    length = integer(OP, "seq_len", seq_len)
    if length < 0:
        raise error(ValueError, OP, f"seq_len must not be negative, got {length}")
    return length


def offset_of(offset: Any) -> Any:
    """An int far enough from the ends of int64, or a tensor."""
    if isinstance(offset, (Tensor, torch.SymInt)):
        return offset
    if isinstance(offset, bool) or not (isinstance(offset, int) or hasattr(offset, "__index__")):
        text = f"offset must be an int or a tensor, got {type(offset).__name__}"
        raise error(TypeError, OP, text)
    offset = integer(OP, "offset", offset)
    if not torch.compiler.is_compiling() and not -(2**62) <= offset <= 2**62:
        raise error(ValueError, OP, f"offset must be between -2^62 and 2^62, got {offset}")
    return offset


def length_from(positions: Tensor) -> int:
    """The length of a sequence with these positions, for the rules that depend on it."""
    largest = positions.max().item()
    if not math.isfinite(largest):
        raise error(
            ValueError,
            OP,
            f"positions must be finite for a rule that depends on the length, got {largest}",
        )
    return int(largest) + 1


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
