"""Learned absolute positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import at_least, error, number, probability
from ..ops.position_ids import (
    INTEGERS,
    check_ids,
    check_rows,
    padding_aware_positions,
    sizes_of_ids,
)
from ..ops.rope_options import check_tensors
from ..types import called_as
from .tracing import record

_OP = "LearnedPositionalEncoding"


class LearnedPositionalEncoding(nn.Module):
    """``dropout(x + weight[positions])``, with a learned vector for each position.

    >>> import torch, posenc_ext
    >>> encoding = posenc_ext.LearnedPositionalEncoding(8, max_len=512)
    >>> encoding(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    There is no vector beyond `max_len`: such a position is an IndexError, never the last row again.

    Args:
        d_model: D, the width of x.
        max_len: rows of the table.
        dropout: probability of dropout, after the addition.
        padding_idx: the row of padding, zero at first and without a gradient. Positions then count
            from ``padding_idx + 1``, so ``max_len - padding_idx - 1`` of them are left.
        std: standard deviation of the initial weight.
        device, dtype: of the weight ``[max_len, D]``.

    The only tensor is `weight`, as in an ``nn.Embedding``: the table of a BERT, GPT-2, BART, OPT or
    RoBERTa checkpoint loads as it is. Positions of those models are made by
    :func:`posenc_ext.sequential_positions`, :func:`posenc_ext.attention_mask_positions` and
    :func:`posenc_ext.padding_aware_positions`.
    """

    def __init__(
        self,
        d_model: int,
        max_len: int,
        dropout: float = 0.0,
        *,
        padding_idx: int | None = None,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = at_least(_OP, "d_model", d_model, 1)
        self.max_len = at_least(_OP, "max_len", max_len, 0)
        if padding_idx is not None:
            padding_idx = at_least(_OP, "padding_idx", padding_idx, 0)
            if padding_idx >= max_len:
                text = f"padding_idx must be below max_len = {max_len}, got {padding_idx}"
                raise error(ValueError, _OP, text)
        self.padding_idx = padding_idx
        self.dropout = nn.Dropout(probability(_OP, dropout))
        self.std = number(_OP, "std", std)
        if self.std < 0:
            raise error(ValueError, _OP, f"std must be at least 0, got {std}")
        self.weight = nn.Parameter(torch.empty(max_len, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.normal_(0.0, self.std)
            if self.padding_idx is not None:
                self.weight[self.padding_idx].zero_()

    def forward(
        self,
        x: Tensor,
        *,
        offset: int | Tensor = 0,
        positions: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Add the rows of x's positions; the result has the shape and dtype of x.

        Args:
            x: ``[B, S, D]`` or ``[S, D]``, floating.
            offset: tokens before these, an int or an integer tensor ``[]`` or ``[B]``.
            positions: int32 or int64 ``[S]`` or ``[B, S]``, the rows themselves, instead of
                `offset`.
            tokens: the ids ``[B, S]`` or ``[S]`` that x embeds: with `padding_idx`, padding among
                them takes its row and is not counted.

        Raises:
            TypeError: a wrong type or dtype.
            ValueError: a wrong shape, or arguments that exclude each other.
            IndexError: a position outside ``0 .. max_len - 1``, with both numbers. Positions in a
                tensor are compared where they can be read at no cost: not under torch.compile, nor
                on a GPU, where the lookup itself refuses them.
        """
        if isinstance(x, Proxy):
            return record(locals())
        self._check(x, offset, positions, tokens)
        first = 0
        if tokens is not None:
            assert self.padding_idx is not None
            positions = padding_aware_positions(tokens, self.padding_idx, past=offset)
        elif positions is None:
            first = 0 if self.padding_idx is None else self.padding_idx + 1
            if not isinstance(offset, Tensor):
                return self._add(x, self._slice(offset, first, x.shape[-2]))
            column = offset[:, None] if offset.dim() else offset
            positions = column + torch.arange(first, first + x.shape[-2], device=x.device)
        if first or torch.compiler.is_compiling():
            check_rows(_OP, "positions", positions, self.max_len, "max_len", first)
        try:
            rows = F.embedding(positions, self.weight, self.padding_idx)
        except IndexError:  # of torch, which does not say which
            check_rows(_OP, "positions", positions, self.max_len, "max_len", first)
            raise
        return self._add(x, rows)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _add(self, x: Tensor, rows: Tensor) -> Tensor:
        y = (x + rows).to(x.dtype)
        return self.dropout(y) if self.training else y

    def _slice(self, offset: int, first: int, length: int) -> Tensor:
        end = offset + first + length
        if length and end > self.max_len:
            text = f"x must end within max_len = {self.max_len} rows, got {end}: {length} tokens "
            raise error(IndexError, _OP, text + f"from row {offset + first}")
        return self.weight[end - length : end] if length else self.weight[:0]

    def _check(self, x: Any, offset: Any, positions: Any, tokens: Any) -> None:
        check_tensors(_OP, x=x)
        if not x.is_floating_point():
            raise error(TypeError, _OP, f"x must be a floating tensor, got {x.dtype}")
        if x.dim() not in (2, 3) or x.shape[-1] != self.d_model:
            text = f"x must have shape [B, S, D] or [S, D] with D = {self.d_model}, got "
            raise error(ValueError, _OP, text + f"{list(x.shape)}")
        given = list(x.shape[:-1])
        if tokens is not None:
            check_ids(_OP, "tokens", tokens)
            if self.padding_idx is None:
                text = f"tokens must be None without padding_idx, got {tokens.dtype}"
                raise error(ValueError, _OP, text)
            if list(tokens.shape) != given:
                text = f"tokens must have shape {given}, got {list(tokens.shape)}"
                raise error(ValueError, _OP, text)
        if isinstance(offset, Tensor):
            check_tensors(_OP, offset=offset)
            if offset.dtype not in INTEGERS:
                raise error(TypeError, _OP, f"offset must be int32 or int64, got {offset.dtype}")
            if offset.dim() and (len(given) != 2 or list(offset.shape) != given[:1]):
                text = f"offset must be an int or have shape [B] of x {list(x.shape)}, got "
                raise error(ValueError, _OP, text + f"{list(offset.shape)}")
        else:
            at_least(_OP, "offset", offset, 0)
        if positions is None:
            return
        check_ids(_OP, "positions", positions)
        if list(positions.shape) not in sizes_of_ids(given):
            text = f"positions must have shape [S] or [B, S] of x {list(x.shape)}, got "
            raise error(ValueError, _OP, text + f"{list(positions.shape)}")
        if tokens is not None or isinstance(offset, Tensor) or offset != 0:
            other = "offset" if tokens is None else "tokens"
            text = f"positions must be None with {other}, got {list(positions.shape)}"
            raise error(ValueError, _OP, text)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.d_model}, max_len={self.max_len}{padding}"
