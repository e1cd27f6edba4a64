"""Formulas of the rotation that writes into a cache. `arguments` are the options of every rope op,
then slots, cache_layout, window, k_scale, v_scale, the weights and biases of q and k, and the
options of the norm, if there is one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops.norm_rope_options import NormOptions
from ..ops.rope_options import RopeOptions
from . import rope as rotation
from .common import exact, write
from .norm_rope import norm_rope

_ROPE = len(RopeOptions._fields)


def _tokens(x: Tensor, layout: str) -> Tensor:
    """As ``[B, S, H, D]``."""
    x = x if "h" in layout else x.unsqueeze(-2)
    x = x.transpose(-2, -3) if layout in ("bhsd", "hsd") else x
    if "b" not in layout:
        return x.unsqueeze(0)
    return x.transpose(0, 1) if layout.startswith("sb") else x


def _slots(k: Tensor, rows: int, options: RopeOptions, window: int) -> Tensor:
    """Of k ``[B, S, H, D]`` in a contiguous cache, ``[B, S]``; -1 for what is not stored."""
    batch, length = k.shape[:2]
    token = torch.arange(length, device=k.device)
    numbers = rotation.row_numbers(length, options)
    row = token if numbers is None else numbers.long()
    if window > 0:
        row = row % window
    slots = torch.arange(batch, device=k.device).unsqueeze(-1) * rows + row
    if window > 0 and options.positions is None:  # a later token of the call takes the row
        slots = torch.where(token < length - window, -1, slots)
    return slots


def _stored(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x ``[B, S, H, D]`` as the cache holds it."""
    if dtype.is_floating_point and dtype.itemsize > 1:
        return x.to(dtype)
    if scale is not None:
        x = x / (scale.unsqueeze(-1) if scale.dim() else scale)
    if dtype == torch.int8:
        return x.nan_to_num(0.0, 1e9, -1e9).round().clamp(-128, 127).to(dtype)
    most = torch.finfo(dtype).max
    return x.clamp(-most, most).to(dtype)


def _put(cache: Tensor, heads_first: bool, slots: Tensor, values: Tensor) -> None:
    """Write ``[B, S, H, D]``; what has slot -1 goes to a row behind the last, which is cut off."""
    rows = cache.transpose(1, 2) if heads_first else cache  # [N, P, H, D]
    flat = rows.flatten(0, 1)
    flat = torch.cat([flat, flat.new_zeros(1, *flat.shape[1:])])
    slots = slots.flatten().long()
    slots = torch.where(slots < 0, flat.shape[0] - 1, slots)
    flat = flat.index_put((slots,), values.flatten(0, 1))
    write(rows, flat[:-1].view(rows.shape))


def apply_rope_cache(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, *arguments: Any
) -> Tensor:
    options = RopeOptions(*arguments[:_ROPE])
    slots, cache_layout, window, k_scale, v_scale = arguments[_ROPE : _ROPE + 5]
    q_weight, k_weight, q_bias, k_bias, *norm = arguments[_ROPE + 5 :]

    def turn(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, rope: tuple[Any, ...]
    ) -> Tensor:
        if NormOptions(*norm).norm is None:
            return rotation.rope(x, *rope)
        return norm_rope(x, weight, bias, *rope, *norm)

    heads_first = cache_layout[1] == "h"
    wide = exact(k.dtype)
    tables = options.with_tables(options.cos.to(wide), options.sin.to(wide))
    # In 8 bits the quotient is rounded alone.
    x = k.to(wide) if k_cache.dtype.itemsize == 1 else k
    turned = _tokens(turn(x, k_weight, k_bias, tables), options.layout)
    if slots is None:
        slots = _slots(turned, k_cache.shape[2 if heads_first else 1], options, window)
    values = _tokens(v, options.layout).to(wide)
    _put(k_cache, heads_first, slots, _stored(turned, k_scale, k_cache.dtype))
    _put(v_cache, heads_first, slots, _stored(values, v_scale, v_cache.dtype))
    return turn(q, q_weight, q_bias, options)


def apply_rope_cache_(q: Tensor, *arguments: Any) -> None:
    write(q, apply_rope_cache(q, *arguments))
