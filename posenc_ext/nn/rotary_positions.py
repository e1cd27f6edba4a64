"""Positions of a rotary module's tokens, checked or made."""

from __future__ import annotations

import math
from typing import Any, TypedDict, get_args

import torch
from torch import Tensor

from ..arguments import error, integer, length_of
from ..ops.rope_options import check_tensors
from ..types import Layout

OP = "RotaryPositionalEmbedding"
LAYOUTS = get_args(Layout)


class Options(TypedDict, total=False):
    """The arguments of a call after q and k; for type checkers."""

    positions: Tensor | None
    offset: int | Tensor
    cu_seqlens: Tensor | None
    seq_len: int | None
    inverse: bool
    inplace: bool


def check_layout(layout: Any) -> None:
    if layout not in LAYOUTS:
        raise error(ValueError, OP, f"layout must be one of {list(LAYOUTS)}, got {layout!r}")


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


def size_of(seq_len: Any) -> int:
    length = length_of(OP, seq_len)
    return integer(OP, "seq_len", seq_len) if length is None else length


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
    _check_whole("offset", offset, device, (0, 1))
    count = torch.arange(size, device=device)
    offset = offset.to(device)
    if cu_seqlens is None:
        return count + offset.unsqueeze(-1) if offset.dim() else count + offset
    starts = cu_seqlens.to(device)
    which = torch.searchsorted(starts, count.to(starts.dtype), right=True) - 1
    return count - starts[which] + (offset[which] if offset.dim() else offset)


def check_boundaries(cu_seqlens: Any, device: torch.device) -> None:
    if cu_seqlens is not None:
        check_tensors(OP, cu_seqlens=cu_seqlens)
        _check_whole("cu_seqlens", cu_seqlens, device, (1,))
        if cu_seqlens.numel() == 0:
            raise error(ValueError, OP, "cu_seqlens must have shape [N + 1], got [0]")


def _check_whole(name: str, t: Tensor, device: torch.device, dims: tuple[int, ...]) -> None:
    """As the op has it, which does not see this tensor, but positions made of it."""
    check_tensors(OP, **{name: t})
    if t.dtype not in (torch.int32, torch.int64):
        raise error(TypeError, OP, f"{name} must be int32 or int64, got {t.dtype}")
    if t.dim() not in dims:
        shape = "[N + 1]" if name == "cu_seqlens" else "[] or [B]"
        raise error(ValueError, OP, f"{name} must have shape {shape}, got {list(t.shape)}")
    if t.is_meta and device.type != "meta":
        raise error(ValueError, OP, f"{name} must hold values for q on {device}, got a meta tensor")


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
