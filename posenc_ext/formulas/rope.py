"""Formulas of the rotations. `options` are those of every rope op, in the order of its schema."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.rope_options import RopeOptions
from .common import exact, like, write


def row_numbers(length: int, options: RopeOptions) -> Tensor | None:
    """The row of the table [L, n] for each token, [S] or [B, S]; None if that is its own number and
    the table has no more."""
    offset = options.offset
    if options.positions is not None:
        return options.positions
    bounds, offsets = options.cu_seqlens, options.offsets
    if bounds is None and offsets is None:
        if isinstance(offset, int) and offset == 0 and _is_all(length, options.cos):
            return None
        return torch.arange(length, device=options.cos.device) + offset
    token = torch.arange(length, device=options.cos.device)
    if bounds is None:
        assert offsets is not None
        return token + (offsets.unsqueeze(-1) if offsets.dim() else offsets)
    which = (token.unsqueeze(-1) >= bounds).sum(-1) - 1
    if offsets is not None:
        start = offsets[which] if offsets.dim() else offsets
        return token - bounds[which] + start
    return token - bounds[which] + offset


def _is_all(length: int, table: Tensor) -> bool:
    """Has the table so many rows, whatever the symbols in these sizes stand for?"""
    if isinstance(length, int) and isinstance(table.shape[0], int):
        return length == table.shape[0]
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

    return statically_known_true(table.shape[0] == length)


def token_tables(length: int, options: RopeOptions) -> tuple[Tensor, Tensor]:
    """cos and sin of each token, [B | 1, S, n], the sine for the direction of the rotation."""
    cos, sin = options.cos, options.sin
    if cos.dim() == 2:
        rows = row_numbers(length, options)
        if rows is not None:
            cos, sin = F.embedding(rows, cos), F.embedding(rows, sin)
        if cos.dim() == 2:
            cos, sin = cos.unsqueeze(0), sin.unsqueeze(0)
    return cos, -sin if options.inverse else sin


def length_of(x: Tensor, layout: str) -> int:
    return x.shape[max(layout.find("s"), layout.find("t"))]


def _beside(table: Tensor, layout: str) -> Tensor:
    """[B | 1, S, n] with the axes of x."""
    if "b" not in layout:
        table = table.squeeze(0)
    elif layout.startswith("sb"):
        table = table.transpose(0, 1)
    heads = layout.find("h")
    return table if heads < 0 else table.unsqueeze(heads)


def _split(x: Tensor, n: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    return (x[..., 0 : 2 * n : 2], x[..., 1 : 2 * n : 2]) if interleaved else (
        x[..., :n], x[..., n : 2 * n]
    )  # fmt: skip


def rope(x: Tensor, *arguments: Any) -> Tensor:
    options = RopeOptions(*arguments)
    tables = token_tables(length_of(x, options.layout), options)
    cos, sin = (_beside(t, options.layout).to(exact(x.dtype)) for t in tables)
    n = cos.shape[-1]
    u, v = (part.to(cos.dtype) for part in _split(x, n, options.interleaved))
    turned = (u * cos - v * sin, v * cos + u * sin)
    together = options.interleaved_out
    y = torch.stack(turned, -1).flatten(-2) if together else torch.cat(turned, -1)
    y = y.to(x.dtype)
    return like(y if x.shape[-1] == 2 * n else torch.cat([y, x[..., 2 * n :]], -1), x)


def apply_rope(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return rope(q, *options), rope(k, *options)


def rope_(x: Tensor, *options: Any) -> None:
    write(x, rope(x, *options))


def apply_rope_(q: Tensor, k: Tensor, *options: Any) -> None:
    write(q, rope(q, *options))
    write(k, rope(k, *options))


def rope_out(x: Tensor, *options: Any, out: Tensor) -> None:
    write(out, rope(x, *options))


def rope_table_grad(grad: Tensor, x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    options = RopeOptions(*arguments)
    n, layout, length = options.cos.shape[-1], options.layout, length_of(x, options.layout)
    gu, gv = (t.to(exact(x.dtype)) for t in _split(grad, n, options.interleaved_out))
    u, v = (t.to(exact(x.dtype)) for t in _split(x, n, options.interleaved))
    by_sin = gv * u - gu * v
    pair = gu * u + gv * v, -by_sin if options.inverse else by_sin
    return tuple(_per_row(each, layout, length, options) for each in pair)  # type: ignore[return-value]


def _per_row(each: Tensor, layout: str, length: int, options: RopeOptions) -> Tensor:
    """Sums of what belongs to one value of a table, for `each` pair of channels of x."""
    if "h" in layout:
        each = each.sum(layout.index("h"))
    if "b" not in layout:
        each = each.unsqueeze(0)
    elif layout.startswith("sb"):
        each = each.transpose(0, 1)
    cos = options.cos  # each is [B, S, n] now
    if cos.dim() == 3:
        each = each if cos.shape[0] == each.shape[0] else each.sum(0, keepdim=True)
        return each.to(cos.dtype).contiguous()
    rows = row_numbers(length, options)
    if rows is None:
        return each.sum(0).to(cos.dtype)
    if rows.dim() == 1 or rows.shape[0] != each.shape[0]:
        each, rows = each.sum(0), rows.reshape(-1)
    sums = each.new_zeros(cos.shape)
    return sums.index_add(0, rows.reshape(-1), each.reshape(-1, cos.shape[-1])).to(cos.dtype)
