"""Positions of a rotary module's tokens, checked or made."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, TypedDict, cast, get_args

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ..arguments import arange, error, integer, length_of
from ..ops.mrope import Axes, check_axes
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
    layout: Layout | None
    inverse: bool
    inplace: bool


def check_layout(layout: Any) -> Layout:
    if layout not in LAYOUTS:
        raise error(ValueError, OP, f"layout must be one of {list(LAYOUTS)}, got {layout!r}")
    return cast(Layout, layout)


def check_inputs(q: Any, k: Any, layout: str, dim: int) -> None:
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
        if x.shape[-1] < dim:
            text = f"{name} must have at least dim = {dim} channels, got {list(x.shape)}"
            raise error(ValueError, OP, text)


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
    offset: Any, cu_seqlens: Tensor | None, size: int, batch: int, device: torch.device
) -> Tensor:
    """The positions of tokens 0 .. size-1 from these offsets: [S], [B, S], or packed [T]."""
    count = arange(0, size, device)
    if isinstance(offset, Tensor):
        check_whole("offset", offset, device, (0, 1))
        sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if offset.dim() and offset.shape[0] != sequences:
            name = "B" if cu_seqlens is None else "N"
            text = f"offset must be an int or have shape [{name}] = [{sequences}], got "
            raise error(ValueError, OP, text + f"{list(offset.shape)}")
        offset = offset.to(device)
    each = isinstance(offset, Tensor) and offset.dim() > 0
    if cu_seqlens is None:
        return count + offset.unsqueeze(-1) if each else count + offset
    starts = cu_seqlens.to(device)
    which = torch.searchsorted(starts, count.to(starts.dtype), right=True) - 1
    return count - starts[which] + (offset[which] if each else offset)


def check_boundaries(cu_seqlens: Any, layout: str, device: torch.device) -> None:
    check_whole("cu_seqlens", cu_seqlens, device, (1,))
    if layout != "thd":
        text = f"cu_seqlens must be used with layout 'thd', got layout {layout!r}"
        raise error(ValueError, OP, text)


def check_packing(cu_seqlens: Tensor, size: int, op: str = OP) -> None:
    """As the op has it, where the values can be read."""
    if torch.compiler.is_compiling() or type(cu_seqlens) is not Tensor or not cu_seqlens.is_cpu:
        return
    if is_functorch_wrapped_tensor(cu_seqlens):
        return
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0:
        raise error(ValueError, op, f"cu_seqlens must start with 0, got {bounds[0]}")
    for begin, end in pairwise(bounds):
        if not begin <= end <= size:
            text = f"cu_seqlens must not decrease, nor pass T = {size}, got {end} after {begin}"
            raise error(ValueError, op, text)
    if bounds[-1] != size:
        raise error(ValueError, op, f"cu_seqlens must end with T = {size}, got {bounds[-1]}")


def check_whole(
    name: str, t: Any, device: torch.device, dims: tuple[int, ...], op: str = OP
) -> None:
    """As the op has it, which does not see this tensor, but positions made of it."""
    check_tensors(op, **{name: t})
    if t.dtype not in (torch.int32, torch.int64):
        raise error(TypeError, op, f"{name} must be int32 or int64, got {t.dtype}")
    if t.dim() not in dims:
        shape = "[N + 1]" if name == "cu_seqlens" else "[] or [B]"
        raise error(ValueError, op, f"{name} must have shape {shape}, got {list(t.shape)}")
    if name == "cu_seqlens" and t.numel() == 0:
        raise error(ValueError, op, "cu_seqlens must have shape [N + 1], got [0]")
    if t.is_meta and device.type != "meta":
        raise error(ValueError, op, f"{name} must hold values for q on {device}, got a meta tensor")


def check_positions(
    positions: Any,
    size: int,
    batch: int,
    offset: Any,
    cu_seqlens: Any,
    axes: Axes | None,
    device: torch.device,
) -> None:
    """Positions say all: one for each token, and nothing beside them."""
    if not isinstance(positions, Tensor):
        raise error(TypeError, OP, f"positions must be a tensor, got {type(positions).__name__}")
    if axes is not None:
        check_axes(OP, axes, positions)
    given = list(positions.shape) if axes is None else list(positions.shape[1:])
    if given not in ([size], [1, size], [batch, size]):
        lead = "" if axes is None else "axes, "
        text = f"positions must be [{lead}S] or [{lead}B, S] with B = {batch} and S = {size}, got "
        more = "; a row for each axis needs a module with sections" if len(given) > 1 else ""
        raise error(ValueError, OP, text + f"{list(positions.shape)}{'' if axes else more}")
    check_tensors(OP, positions=positions)
    if positions.is_meta and device.type != "meta":
        text = f"positions must hold values for q on {device}, got a meta tensor"
        raise error(ValueError, OP, text)
    if cu_seqlens is not None or isinstance(offset, Tensor) or offset != 0:
        name = "offset" if cu_seqlens is None else "cu_seqlens"
        raise error(ValueError, OP, f"{name} must not be given with positions, got both")
