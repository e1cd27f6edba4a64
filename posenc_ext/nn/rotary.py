"""Rotary position embedding (RoPE) as a module that keeps its own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import arange, check_precision, error, integer, length_of
from ..configs import rotary_arguments
from ..frequencies import DEFAULT_BASE, RopeFrequencies, Rule
from ..kept import placed
from ..ops.mrope import check_axes, section_axes
from ..ops.rope import apply_rope
from ..ops.rope_options import check_flags
from ..types import Layout, Precision, called_as
from . import rotary_positions as tokens
from .rotary_rows import RotaryRows, Rows, Tokens, names_tokens
from .rotary_tables import RotaryTables
from .tracing import record

if TYPE_CHECKING:
    from typing_extensions import Unpack

OP = "RotaryPositionalEmbedding"
FIXED = ("base", "scaling", "interleaved", "layout", "precision", "layer_type", "sections")
# What older checkpoints saved for the same purpose.
OLD_KEYS = ("inv_freq", "original_inv_freq", "cos_cached", "sin_cached")


class RotaryPositionalEmbedding(nn.Module):
    """Rotates queries and keys by their positions, and keeps the table of cos and sin.

    >>> import torch, posenc_ext
    >>> rotary = posenc_ext.RotaryPositionalEmbedding(64, base=500000.0)
    >>> q, k = torch.randn(2, 16, 8, 64), torch.randn(2, 16, 2, 64)
    >>> q, k = rotary(q, k)
    >>> step, _ = rotary(torch.randn(2, 1, 8, 64), torch.randn(2, 1, 2, 64), offset=16)

    The table is no parameter and no buffer: it adds nothing to the state dict, stays in float32
    (float64 for float64 inputs) whatever ``.half()`` or ``.to(dtype)`` do, lives on the device of
    the inputs, and is not copied or pickled. Checkpoints that hold an ``inv_freq`` load, also
    strictly; the entry is ignored. The table doubles as longer sequences come and never shrinks; it
    holds at most :attr:`max_cached_rows` rows unless :meth:`reserve` asked for more, and rows past
    that are computed for the call. Threads may share the module.

    Rules whose frequencies depend on the length ("dynamic", "longrope") are functions of the length
    of the current call alone, so that a long sequence leaves no trace in later short ones. (Hugging
    Face keeps the frequencies of the longest sequence until one comes that fits the original
    length.) The length is ``offset + S``, or `seq_len` if given. Keys in a cache keep the rotation
    they got, so pass the final length of a generation as `seq_len` to rotate all of it alike.

    Args:
        dim: R, as for :func:`rope_frequencies`. Channels of a head beyond R pass through.
        base: the frequency base.
        scaling: a Hugging Face ``rope_parameters`` / ``rope_scaling`` dict or a rule of
            :mod:`posenc_ext.scaling`.
        interleaved: pairs are ``(x[2i], x[2i + 1])`` rather than ``(x[i], x[i + R/2])``.
        layout: the axes of q and k, as for :func:`apply_rope`.
        precision: "float32" gives the tables of Hugging Face, bit for bit; see :func:`rope_table`.
        layer_type: which entry of a nested `scaling` dict to use.
        sections: for multi-axis positions (M-RoPE), as for :func:`rope_table`.

    Raises:
        TypeError, ValueError: as :func:`rope_frequencies` and :func:`apply_rope`.
    """

    max_cached_rows = 2**18

    def __init__(
        self,
        dim: int,
        base: float = DEFAULT_BASE,
        *,
        scaling: Rule | Mapping[str, Any] | None = None,
        interleaved: bool = False,
        layout: Layout = "bshd",
        precision: Precision = "exact",
        layer_type: str | None = None,
        sections: Sequence[int] | Tensor | None = None,
    ) -> None:
        super().__init__()
        check_precision(OP, precision)
        check_flags(OP, interleaved=interleaved)
        tokens.check_layout(layout)
        self.base, self.scaling, self.layer_type = base, scaling, layer_type
        self.interleaved, self.layout, self.precision = bool(interleaved), layout, precision
        self._tables = RotaryTables(dim, base, scaling, layer_type, precision)
        self.dim, self.sections = 2 * len(self._tables.frequencies(None).inv_freq), sections
        self._axes = None if sections is None else section_axes(OP, sections, self.dim // 2)
        self._rows = RotaryRows(self._tables, self._axes)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("dim", *FIXED) and name in self.__dict__:
            text = f"{name} must stay as it was given, make another module, got {value!r}"
            raise error(AttributeError, OP, text)
        super().__setattr__(name, value)

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        layer_type: str | None = None,
        interleaved: bool | None = None,
        layout: Layout = "bshd",
        precision: Precision = "exact",
    ) -> RotaryPositionalEmbedding:
        """The rotary embedding of a Hugging Face model, from its config.

        >>> import posenc_ext
        >>> config = {"model_type": "llama", "head_dim": 128, "rope_theta": 500000.0}
        >>> posenc_ext.RotaryPositionalEmbedding.from_config(config)
        RotaryPositionalEmbedding(128, base=500000.0)

        Args:
            config: a config object of transformers 4 or 5, or its dict; :mod:`posenc_ext.configs`
                lists what is read. transformers is not imported.
            layer_type: "full_attention", "sliding_attention" .. for models that differ by layer.
            interleaved: how pairs are formed; default: as the ``model_type`` does. DeepSeek-V3's
                own code reads interleaved pairs and writes halves; here they are written
                interleaved, which gives the same scores.
            layout, precision: as for the class.

        Raises:
            ValueError: a missing, unknown or contradictory key, which is named.
        """
        arguments = rotary_arguments(config, layer_type, interleaved)
        return cls(**arguments._asdict(), layout=layout, precision=precision)

    @property
    def attention_factor(self) -> float:
        """What multiplies cos and sin (1.0 but for YaRN and LongRoPE)."""
        return self.frequencies().attention_factor

    def frequencies(self, seq_len: int | None = None) -> RopeFrequencies:
        """``(inv_freq [R/2], attention_factor)`` for a sequence of this length."""
        return self._tables.frequencies(length_of(OP, seq_len))

    def reserve(
        self,
        seq_len: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Build the table for positions below `seq_len` now: before compiling the model, capturing
        a CUDA graph or forking, so that no call has to. Moving the module drops the table.

        On CUDA, a stream other than the one that wrote the table waits for that once. A graph reads
        the table of the time of its capture, which the module keeps (so keep the module, too) even
        when a longer one has taken its place. Without a table, replays compute the rows anew.
        """
        rows = tokens.size_of(seq_len)
        self._tables.rows(0, rows, rows, placed(device), dtype == torch.float64, rows)

    def table(
        self,
        positions: int | Tensor,
        *,
        seq_len: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of positions, to use in many layers.

        >>> import torch, posenc_ext
        >>> rotary = posenc_ext.RotaryPositionalEmbedding(64)
        >>> cos, sin = rotary.table(torch.arange(16)[None], dtype=torch.bfloat16)
        >>> cos.shape, cos.dtype
        (torch.Size([1, 16, 32]), torch.bfloat16)

        Args:
            positions: an int n for ``0 .. n - 1``, or a tensor ``[...]`` of any values (``[axes,
                ...]`` with `sections`), as for :func:`rope_table`.
            seq_len: the length that length-dependent rules see. Default: n, or for a tensor its
                maximum + 1, whose reading waits for the device (for these rules only).
            dtype, device: of the result.

        Returns:
            ``[n, R/2]`` or ``[..., R/2]``. Treat it as read-only.
        """
        seq_len = length_of(OP, seq_len)
        if not isinstance(positions, Tensor):
            n = integer(OP, "positions", positions, "an int or a tensor")
            if n < 0:
                raise error(ValueError, OP, f"positions must not be negative as an int, got {n}")
            where = placed(device or "cpu")
            if dtype in (torch.float32, torch.float64):
                double, limit = dtype == torch.float64, self.max_cached_rows
                cos, sin, _ = self._tables.rows(0, n, seq_len, where, double, limit)
                return cos[:n], sin[:n]
            return self._tables.at(arange(0, n, where), n if seq_len is None else seq_len, dtype)
        positions = positions.to(device or positions.device)
        if seq_len is None and self._tables.by_length and positions.numel():
            seq_len = tokens.length_from(positions)
        if self._axes is not None:
            check_axes(OP, self._axes, positions)
        return self._tables.at(positions, seq_len, dtype, self._axes)

    @overload
    def forward(self, q: Tensor, k: None = None, **options: Unpack[tokens.Options]) -> Tensor: ...
    @overload
    def forward(
        self, q: Tensor, k: Tensor, **options: Unpack[tokens.Options]
    ) -> tuple[Tensor, Tensor]: ...
    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        offset: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        seq_len: int | None = None,
        layout: Layout | None = None,
        inverse: bool = False,
        inplace: bool = False,
    ) -> Any:
        """Rotate `q`, and `k` if given.

        Args:
            q, k: as for :func:`apply_rope`, with the axes of `layout`.
            positions: ``[S]`` or ``[B, S]`` of any dtype that :func:`rope_table` takes, so they may
                be negative or fractional; ``[axes, S]`` or ``[axes, B, S]`` with `sections`.
                Default ``0 .. S-1``.
            offset, cu_seqlens: as for :func:`apply_rope`.
            seq_len: an int above every position. With it, tensors of positions, offsets and
                boundaries pick rows of the kept table. Without it the angles of such tensors are
                computed per token, so that their values need not be known on the host.
                Length-dependent rules take it as the length.
            layout: of this call, in the place of that of the module.
            inverse, inplace: as for :func:`apply_rope`.

        Returns:
            The rotated `q`, or ``(q, k)`` if `k` is given.
        """
        if isinstance(q, Proxy):
            return record(locals())
        layout = self.layout if layout is None else tokens.check_layout(layout)
        if positions is None and cu_seqlens is None and seq_len is None and type(offset) is int:
            how = (layout, None, offset, None, self.interleaved, inverse, inplace, None)
            result = self._tables.rotate_at_once(q, k, how)
            if result is not None:
                return result
        given = (positions, offset, cu_seqlens)
        cos, sin, positions, offset, cu_seqlens = self._rows_for(q, k, layout, given, seq_len)
        rotated = apply_rope(
            q, k, cos, sin, layout=layout, positions=positions, offset=offset,
            cu_seqlens=cu_seqlens, interleaved=self.interleaved, inverse=inverse, inplace=inplace,
        )  # fmt: skip
        return rotated[0] if k is None else rotated

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _rows_for(
        self, q: Tensor, k: Tensor | None, layout: Layout, given: tuple[Any, ...], seq_len: Any
    ) -> Rows:
        """For q and k; `given` are positions, offset and cu_seqlens."""
        key: tuple[Any, ...] = ()
        if names_tokens(*given) and not torch.compiler.is_compiling() and type(q) is Tensor:
            key, rows = self._rows.again(q, k, layout, given, seq_len)
            if rows is not None:
                return rows
        positions, offset, cu_seqlens = given
        tokens.check_inputs(q, k, layout, self.dim)
        offset, seq_len = tokens.offset_of(offset), length_of(OP, seq_len)
        if cu_seqlens is not None:
            tokens.check_boundaries(cu_seqlens, layout, q.device)
        axis, batch = max(layout.find("s"), layout.find("t")), layout.find("b")
        size = q.shape[axis] if k is None else max(q.shape[axis], k.shape[axis])
        call = Tokens(
            positions, offset, cu_seqlens, seq_len, size, 1 if batch < 0 else q.shape[batch],
            q.device, q.dtype == torch.float64,
        )  # fmt: skip
        return self._rows.of(call, self.max_cached_rows, key)

    def _apply(self, fn: Any, recurse: bool = True) -> RotaryPositionalEmbedding:
        self._tables.clear()
        self._rows.clear()
        super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        unexpected = rest[3]
        unexpected[:] = [k for k in unexpected if k not in {prefix + old for old in OLD_KEYS}]

    def extra_repr(self) -> str:
        given = {name: getattr(self, name) for name in FIXED}
        usual = {"layout": "bshd", "precision": "exact", "interleaved": False}
        shown = {key: v for key, v in given.items() if v is not None and v != usual.get(key)}
        return ", ".join([str(self.dim), *(f"{key}={value!r}" for key, value in shown.items())])
