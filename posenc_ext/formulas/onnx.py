"""What torch.onnx.export turns the rotations into: ``RotaryEmbedding``, where the opset has it.

Source: https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from ..ops.rope_options import RopeOptions
from .common import exact, like
from .rope import length_of, row_numbers, token_tables
from .rope import rope as plain_rope

OPSET = 23  # the first with RotaryEmbedding


def opset_version() -> int:
    """The opset of the torch.onnx.export that is going on, 0 if there is none.

    torch does not tell it to a decomposition, so this looks for the exporter's registry of
    translations among its callers.
    """
    frame = sys._getframe().f_back
    while frame is not None:
        registry: Any = frame.f_locals.get("registry")
        if type(registry).__name__ == "ONNXRegistry":
            return int(registry.opset_version)
        frame = frame.f_back
    return 0


def rope(x: Tensor, *arguments: Any) -> Tensor:
    options = RopeOptions(*arguments)
    heads = x.shape[options.layout.index("h")] if "h" in options.layout else 1
    known = isinstance(heads, int) and isinstance(x.shape[-1], int)
    # RotaryEmbedding knows no float64, and no head without channels.
    if x.dtype == torch.float64 or not known or not heads * options.rotary_dim:
        return plain_rope(x, *arguments)
    if options.interleaved_out != options.interleaved or opset_version() < OPSET:
        return plain_rope(x, *arguments)
    return _rotary_embedding(x, heads, options)


def apply_rope(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return rope(q, *options), rope(k, *options)


def _rotary_embedding(x: Tensor, heads: int, options: RopeOptions) -> Tensor:
    """Its input is [B, H, S, D], or [B, S, H * D] for the other layouts."""
    layout, dtype = options.layout, x.dtype
    if options.cos.dtype != dtype:  # float32 tables: arithmetic in float32, one rounding
        dtype = exact(dtype)
    y = x.to(dtype)
    if "b" not in layout:
        y = y.unsqueeze(0)
    elif layout.startswith("sb"):
        y = y.transpose(0, 1)
    by_head = layout in ("bhsd", "hsd")
    if "h" in layout and not by_head:
        y = y.flatten(2)
    cos, sin, rows = _tables(y.shape[0], length_of(x, layout), options)
    y = torch.onnx.ops.rotary_embedding(
        y,
        cos.to(dtype),
        sin.to(dtype),
        rows,
        interleaved=options.interleaved,
        num_heads=heads,
        rotary_embedding_dim=0 if options.rotary_dim == x.shape[-1] else options.rotary_dim,
    )
    if "h" in layout and not by_head:
        y = y.unflatten(2, (heads, -1))
    if "b" not in layout:
        y = y.squeeze(0)
    elif layout.startswith("sb"):
        y = y.transpose(0, 1)
    return like(y, x)


def _tables(batch: int, length: int, options: RopeOptions) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tables [L, n] and the row of each token, [B, S]; or [B, S, n] and None."""
    rows = row_numbers(length, options) if options.cos.dim() == 2 else None
    if rows is None:
        cos, sin = (t.expand(batch, -1, -1) for t in token_tables(length, options))
        return cos, sin, None
    sin = -options.sin if options.inverse else options.sin
    return options.cos, sin, rows.long().expand(batch, length)
