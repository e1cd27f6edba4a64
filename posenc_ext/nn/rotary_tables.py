"""The tables that a rotary module keeps: they grow on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._native import _C
from ..arguments import arange
from ..frequencies import RopeFrequencies, Rule
from ..kept import Written, faking, is_plain
from ..ops.mrope import Axes, by_axes
from ..ops.rope_frequencies import parsed, rope_frequencies
from ..ops.rope_table import rope_table
from ..scaling import DynamicNTK, LongRoPE
from ..types import Precision


class Kept(NamedTuple):
    """cos and sin for positions 0 .. L-1, [L, R/2]; replaced as a whole, never written to."""

    regime: int
    rows: int
    cos: Tensor
    sin: Tensor
    written: Written


class RotaryTables:
    """Tables by device and dtype.

    A `regime` names a set of frequencies of one rule: 0 for the usual one; for sequences beyond the
    original length 1 with LongRoPE, and the length itself with dynamic NTK. There are no locks:
    an entry is immutable, and replacing it is one assignment. Threads that race may build the same
    table twice. What a CUDA graph has captured stays with the module.
    """

    def __init__(
        self,
        dim: int,
        base: float,
        scaling: Rule | Mapping[str, Any] | None,
        layer_type: str | None,
        precision: Precision,
    ) -> None:
        self._arguments = (dim, base, scaling, layer_type, precision)
        self.precision = precision
        # A dict is read once: a graph that is compiled could not read it.
        self._rule = dim, base, rule = parsed(dim, base, scaling, layer_type)
        with torch.inference_mode(False):
            usual = self._frequencies(None)  # refuses what is wrong with the arguments
        self._dynamic = isinstance(rule, DynamicNTK)
        self.by_length = self._dynamic or (isinstance(rule, LongRoPE) and rule.pin is None)
        self._original = getattr(rule, "original_max_position_embeddings", 0)
        self._memo: dict[tuple[bool, torch.device], tuple[int, RopeFrequencies, Written]] = {}
        self._kept: dict[tuple[torch.device, bool, bool], Kept] = {}
        self._captured: list[Written] = []
        self._memo[False, usual.inv_freq.device] = (0, usual, Written(usual.inv_freq))

    def __reduce__(self) -> tuple[Any, ...]:
        return RotaryTables, self._arguments  # a copy starts without tables

    def clear(self) -> None:
        self._kept = {}

    def _frequencies(self, seq_len: int | None) -> RopeFrequencies:
        dim, base, rule = self._rule
        return rope_frequencies(dim, base, rule, seq_len=seq_len, precision=self.precision)

    def _regime(self, length: int | None) -> int:
        if not self.by_length or length is None or length <= self._original:
            return 0
        return length if self._dynamic else 1

    def frequencies(
        self, length: int | None, device: torch.device | None = None
    ) -> RopeFrequencies:
        """Those for a sequence of this length, on this device (default: the CPU)."""
        device = torch.device("cpu") if device is None else device
        regime = self._regime(length)
        entry = None if faking() else self._memo.get((regime > 0, device))
        if entry is not None and entry[0] == regime:
            self._hand_out(entry[2])
            return entry[1]
        if torch.compiler.is_compiling():
            inv_freq, factor = self._frequencies(length)
            return RopeFrequencies(inv_freq.to(device), factor)
        with torch.inference_mode(False):
            inv_freq, factor = self._frequencies(length)
            result = RopeFrequencies(inv_freq.to(device), factor)
        if is_plain(result.inv_freq):
            self._memo[regime > 0, device] = (regime, result, Written(result.inv_freq))
        return result

    def _hand_out(self, written: Written) -> None:
        if not torch.compiler.is_compiling():
            written.before_reading(self._captured)

    def rows(
        self,
        start: int,
        count: int,
        seq_len: int | None,
        device: torch.device,
        double: bool,
        limit: int,
    ) -> tuple[Tensor, Tensor, int]:
        """Tables that hold positions start .. start + count - 1, and the row of the first.

        They are kept if they need no more than `limit` rows. An export computes its own.
        """
        needed = start + count
        length = needed if seq_len is None else seq_len
        regime = self._regime(length)
        key = (device, double, regime > 0)
        dtype = torch.float64 if double else torch.float32
        # An exported graph that held a table would be bound to its length.
        apart = torch.compiler.is_exporting() or faking()
        kept = None if apart else self._kept.get(key)
        if kept is not None and kept.regime == regime:
            if kept.rows >= needed and start >= 0:
                self._hand_out(kept.written)
                return kept.cos, kept.sin, start
        else:
            kept = None
        changes = self._dynamic and regime > 0 and seq_len is None  # other rows at the next length
        if torch.compiler.is_compiling() or needed > limit or changes or start < 0:
            positions = arange(start, needed, device)
            return *self.at(positions, length, dtype), 0
        if kept is not None:
            needed = max(needed, min(2 * kept.rows, limit))
        with torch.inference_mode(False), torch.no_grad():
            positions = arange(0, max(needed, 0), device)
            cos, sin = self.at(positions, length, dtype)
        now = self._kept.get(key)
        longer = now is not None and now.regime == regime and now.rows >= len(cos)
        if is_plain(cos) and not longer:
            self._kept[key] = Kept(regime, len(cos), cos, sin, Written(cos, sin))
        return cos, sin, start

    def rotate_at_once(self, q: Any, k: Any, how: Any) -> Any:
        """The short path of decoding: plain tensors, by a table that is kept already. None in any
        other case. `how` is the layout and what follows it in the native op."""
        if torch.compiler.is_compiling() or type(q) is not Tensor or self.by_length:
            return None
        layout, needed = how[0], how[2]
        axis, dims = max(layout.find("s"), layout.find("t")), len(layout)
        if q.dim() != dims:
            return None
        kept = self._kept.get((q.device, q.dtype == torch.float64, False))
        if kept is None or needed < 0 or kept.rows < needed + q.size(axis):
            return None
        if 2 * kept.cos.size(1) > q.size(-1):
            return None
        if kept.written.on_cuda:
            kept.written.before_reading(self._captured)
        if k is None:
            single: Any = _C.rope
            return single(q, kept.cos, kept.sin, *how, None)
        if type(k) is not Tensor or k.dim() != dims or kept.rows < needed + k.size(axis):
            return None
        return _C.apply_rope(q, k, kept.cos, kept.sin, *how)

    def kept_for(
        self, positions: Tensor, length: int | None, double: bool
    ) -> tuple[Tensor, Tensor] | None:
        """The tables that are there, if they hold all of these positions, which are on the CPU."""
        regime = self._regime(length)
        kept = None if faking() else self._kept.get((positions.device, double, regime > 0))
        if kept is None or kept.regime != regime or positions.numel() == 0:
            return None
        least, most = positions.aminmax()
        return (kept.cos, kept.sin) if least >= 0 and most < kept.rows else None

    def at(
        self, positions: Tensor, length: int | None, dtype: torch.dtype, axes: Axes | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tables of any positions [...], or [axes, ...], computed."""
        inv_freq, factor = self.frequencies(length, positions.device)

        def build(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
            return rope_table(
                positions,
                inv_freq,
                attention_factor=factor,
                dtype=dtype,
                precision=self.precision,
            )

        if axes is None:
            return build(positions, inv_freq)
        return by_axes(build, positions, inv_freq, axes)
