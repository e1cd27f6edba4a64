"""The rows of cos and sin for the tokens of a call, found once for all layers of a model."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._native import _C
from ..kept import is_plain
from ..ops.functions import transformed
from ..ops.mrope import Axes
from . import rotary_positions as tokens
from .rotary_tables import RotaryTables


class Rows(NamedTuple):
    """What apply_rope takes after the tensors."""

    cos: Tensor
    sin: Tensor
    positions: Tensor | None = None
    offset: Any = 0
    cu_seqlens: Tensor | None = None


class Tokens(NamedTuple):
    """Where the tokens of a call stand."""

    positions: Tensor | None
    offset: Any
    cu_seqlens: Tensor | None
    seq_len: int | None
    size: int  # S, or T
    batch: int
    device: torch.device
    double: bool


class Last(NamedTuple):
    """A call and its rows. `seen` has, for each tensor that the rows depend on, its values, or on a
    GPU, where they cannot be looked at, the tensor itself and what tells that it was written to."""

    key: tuple[Any, ...]
    seen: tuple[Tensor | tuple[weakref.ref[Tensor], int], ...]
    rows: Rows


class RotaryRows:
    """Rows from the kept tables, or computed. Every layer of a model asks for the same ones, so
    those of the last tensors of positions are remembered, outside of graphs and transforms."""

    def __init__(self, tables: RotaryTables, axes: Axes | None) -> None:
        self._tables, self._axes = tables, axes
        self._last: Last | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RotaryRows, (self._tables, self._axes)

    def clear(self) -> None:
        self._last = None

    def again(
        self, q: Tensor, k: Tensor | None, layout: Any, given: tuple[Any, ...], seq_len: Any
    ) -> tuple[tuple[Any, ...], Rows | None]:
        """The rows of the last call, if this one is for the same tokens, so that nothing is left
        to check; before them, what :meth:`of` remembers this call by. `given` are positions, offset
        and cu_seqlens."""
        kinds = [None if isinstance(t, Tensor) else t for t in given]
        shape = None if k is None else (k.shape, k.device)
        key: tuple[Any, ...] = (q.shape, q.dtype, q.device, shape, layout, kinds, seq_len)
        last = self._last
        if q.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                return (), None
            key += (torch.cuda.current_stream(q.device).cuda_stream,)
        if last is None or last.key != key:
            return key, None
        same = all(map(_unchanged, last.seen, (t for t in given if isinstance(t, Tensor))))
        return key, last.rows if same else None

    def of(self, call: Tokens, limit: int, key: tuple[Any, ...] = ()) -> Rows:
        rows = self._find(call, limit)
        tensors = [t for t in call[:3] if isinstance(t, Tensor)]
        if key and not transformed() and is_plain(rows.cos) and not rows.cos.requires_grad:
            seen = tuple(map(_look_at, tensors))
            if None not in seen:
                # Copies: those given may be written to, or be of inference mode.
                with torch.inference_mode(False):
                    own = [t.clone() if isinstance(t, Tensor) else t for t in rows[2:]]
                    self._last = Last(key, seen, Rows(*rows[:2], *own))  # type: ignore[arg-type]
        return rows

    def _find(self, call: Tokens, limit: int) -> Rows:
        positions, offset, cu_seqlens, seq_len, size, batch, device, double = call
        packed = cu_seqlens is not None
        if cu_seqlens is not None:
            tokens.check_packing(cu_seqlens, size)
        if positions is None and not isinstance(offset, Tensor) and not (packed and offset < 0):
            if cu_seqlens is not None and seq_len is None and self._tables.by_length:
                longest = cu_seqlens.diff().max() if cu_seqlens.numel() > 1 else 0
                seq_len = int(longest) + offset
            cos, sin, first = self._tables.rows(offset, size, seq_len, device, double, limit)
            return Rows(cos, sin, None, first, cu_seqlens)
        if seq_len is not None and self._axes is None and not tokens.is_floating(positions):
            cos, sin, _ = self._tables.rows(0, seq_len, seq_len, device, double, seq_len)
            return Rows(cos, sin, positions, offset, cu_seqlens)
        axes = None
        if positions is None:
            at = tokens.default_positions(offset, cu_seqlens, size, batch, device)
        else:
            axes = self._axes
            tokens.check_positions(positions, size, batch, offset, cu_seqlens, axes, device)
            at = positions.to(device)
        if seq_len is None and self._tables.by_length and at.numel():
            seq_len = tokens.length_from(at)
        if axes is None and _readable(at):
            kept = self._tables.kept_for(at, seq_len, double)
            if kept is not None:
                return Rows(*kept, at)
        dtype = torch.float64 if double else torch.float32
        if at.requires_grad or transformed() or torch.compiler.is_compiling():
            return Rows(*self._tables.at(at, seq_len, dtype, axes))
        with torch.inference_mode(False), torch.no_grad():  # may be used again, to train
            return Rows(*self._tables.at(at, seq_len, dtype, axes))


def _readable(positions: Tensor) -> bool:
    """Can these be looked at, at no cost?"""
    return (
        not torch.compiler.is_compiling()
        and not transformed()
        and type(positions) is Tensor
        and positions.device.type == "cpu"
        and positions.dim() in (1, 2)
        and positions.dtype in (torch.int32, torch.int64)
    )


def names_tokens(positions: Any, offset: Any, cu_seqlens: Any) -> bool:
    """Are there tensors among these?"""
    return (
        isinstance(positions, Tensor)
        or isinstance(offset, Tensor)
        or isinstance(cu_seqlens, Tensor)
    )


def _look_at(t: Tensor) -> Tensor | tuple[weakref.ref[Tensor], int] | None:
    if not is_plain(t):
        return None
    if t.device.type == "cpu":
        with torch.inference_mode(False):
            return t.detach().clone(memory_format=torch.contiguous_format)
    if t.is_inference():  # has no version
        return None
    return weakref.ref(t), t._version


def _unchanged(seen: Tensor | tuple[weakref.ref[Tensor], int], t: Tensor) -> bool:
    if isinstance(seen, Tensor):
        return _C.same_values(seen, t.contiguous())
    return seen[0]() is t and t._version == seen[1]
