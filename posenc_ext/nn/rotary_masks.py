"""The masks of RotaryAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import error
from .rotary_positions import check_packing, check_whole


def packed_mask(
    op: str, cu_seqlens: Any, x: Tensor, past: Any, offset: Any, positions: Any, mask: Tensor | None
) -> Tensor:
    """The mask that hides other sequences, [S, S], joined with the one given."""
    for name, other in (("past", past), ("offset", offset), ("positions", positions)):
        if other is not None:
            raise error(ValueError, op, f"{name} must be None with cu_seqlens, got both")
    check_whole("cu_seqlens", cu_seqlens, x.device, (1,), op)
    if x.shape[0] != 1:
        text = f"x must be one sequence of packed ones with cu_seqlens, got B = {x.shape[0]}"
        raise error(ValueError, op, text)
    check_packing(cu_seqlens, x.shape[1], op)
    count = torch.arange(x.shape[1], device=x.device)
    which = torch.searchsorted(cu_seqlens.to(x.device, torch.int64), count, right=True)
    same = which[:, None] == which
    if mask is None:
        return same
    if mask.dtype == torch.bool:
        return mask & same
    return mask.masked_fill(~same, -float("inf"))


def one_mask(
    causal: bool, x: Tensor, keys: int, keep: Tensor | None, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, bool]:
    """One mask for scaled_dot_product_attention, [.., Q, K], or its own causal one."""
    length = x.shape[1]
    if keep is None and mask is None:
        if not causal or length == 1:
            return None, False
        if length == keys:
            return None, True
    seen = x.new_ones(length, keys, dtype=torch.bool)
    seen = seen.tril(keys - length) if causal else seen
    if keep is not None:
        seen = seen & keep[:, None, None, :]
    if mask is None:
        return seen, False
    if mask.dtype == torch.bool:
        return seen & mask, False
    return mask.to(dtype).masked_fill(~seen, -float("inf")), False
