"""Sinusoidal position encoding as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from .._native import _C
from ..arguments import check_dtype, error, integer, number, probability
from ..ops.functions import readable
from ..ops.position_ids import check_rows
from ..ops.rope_options import check_flags, check_tensors
from ..ops.sinusoidal import add_sinusoidal, check_positions, sinusoidal_table
from ..ops.sinusoidal_options import CONVENTIONS, base_of, convention_of
from ..types import SinusoidConvention, called_as
from .tracing import record

_OP = "SinusoidalPositionalEncoding"
# What other implementations keep their table under.
_OLD_KEYS = ("pe", "weight", "weights", "_float_tensor", "inv_freq", "div_term")


class SinusoidalPositionalEncoding(nn.Module):
    """``dropout(scale * x + table)``, for sequences of any length.

    >>> import torch, posenc_ext
    >>> encoding = posenc_ext.SinusoidalPositionalEncoding(8, dropout=0.1)
    >>> encoding(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    The module holds no tensors: it adds nothing to the state dict (and ignores a `pe`, `weight`,
    `weights` or `_float_tensor` in an old one), stays exact under ``.half()`` and ``.bfloat16()``,
    and works after meta-device construction. See :func:`posenc_ext.add_sinusoidal`.

    Args:
        d_model: D, the width of x.
        max_len: the number of positions allowed; default: no limit.
        dropout: probability of dropout, after the addition.
        scale: multiplies x, such as ``sqrt(d_model)`` in "Attention Is All You Need".
        base, convention: as for :func:`posenc_ext.sinusoidal_table`.
        batch_first: x is ``[B, S, D]``; else ``[S, B, D]``. Either may lack B.
        padding_idx: with it, the module must be given `tokens`, and counts as fairseq does: the
            first token that is not padding has position ``padding_idx + 1``, the next one
            ``padding_idx + 2``; nothing is added to padding. This way builds the rows of the batch
            in memory.

    Shapes: x ``[B, S, D]`` (or as `batch_first` says) to the same, with the dtype of x.
    """

    def __init__(
        self,
        d_model: int,
        max_len: int | None = None,
        dropout: float = 0.0,
        *,
        scale: float = 1.0,
        base: float = 10000.0,
        convention: SinusoidConvention = "interleaved",
        batch_first: bool = True,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        self.d_model = _size("d_model", d_model)
        self.max_len = None if max_len is None else _size("max_len", max_len)
        convention_of(_OP, convention)
        self.scale = number(_OP, "scale", scale)
        self.base = base_of(_OP, "base", base)
        self.convention = convention
        check_flags(_OP, batch_first=batch_first)
        self.batch_first = bool(batch_first)
        self.padding_idx = None if padding_idx is None else _size("padding_idx", padding_idx)
        self.dropout = nn.Dropout(probability(_OP, dropout))

    def forward(
        self,
        x: Tensor,
        *,
        offset: int | Tensor = 0,
        positions: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Add the positions from `offset` on (an int, or an integer tensor ``[]`` or ``[B]``).

        `positions`: int32, int64 or floating ``[S]`` or ``[B, S]`` (``[S, B]`` without
        `batch_first`), instead of `offset`; not with `padding_idx`, which counts itself.

        `tokens`: the ids ``[B, S]`` (``[S, B]`` without `batch_first`) that x embeds; needed with
        `padding_idx`, which marks padding among them, and only then.

        Raises ValueError for a width other than `d_model`, IndexError for positions outside
        ``0 .. max_len - 1``. Under torch.compile, and on another device than the CPU, a tensor
        `offset` or `positions` is not compared with `max_len`.
        """
        if type(x) is Tensor and tokens is None and positions is None and not self.training:
            y = self._at_once(x, offset)
            if y is not None:
                return y
        if isinstance(x, Proxy):
            return record(locals())
        self._check(x, tokens)
        swap = not self.batch_first and x.dim() == 3
        if swap:
            x = x.transpose(0, 1)
        if tokens is None:
            options: dict[str, Any] = {"base": self.base, "convention": self.convention}
            if positions is None:
                self._check_length(offset, x.shape[-2])
            else:
                check_tensors(_OP, positions=positions)
                options["positions"] = positions.t() if swap and positions.dim() == 2 else positions
                check_positions(_OP, x, options["positions"], offset)
                if self.max_len is not None:
                    check_rows(_OP, "positions", positions, self.max_len, "max_len")
            y = add_sinusoidal(x, offset=offset, scale=self.scale, **options)
        elif positions is not None:
            raise error(
                ValueError, _OP, f"positions must be None with tokens, got {_name(positions)}"
            )
        else:
            y = self._add_tokens(x, offset, tokens.transpose(0, 1) if swap else tokens)
        if self.training and getattr(self._modules["dropout"], "p", True):
            y = self.dropout(y)
        return y.transpose(0, 1) if swap else y

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _at_once(self, x: Tensor, offset: int | Tensor) -> Tensor | None:
        """The short path of decoding: a plain tensor on the CPU that needs no gradient, and nothing
        to check but its width. None in any other case."""
        if not (self.batch_first and self.max_len is None and self.padding_idx is None):
            return None
        if torch.compiler.is_compiling() or not 2 <= x.dim() <= 3 or x.size(-1) != self.d_model:
            return None
        how = CONVENTIONS[self.convention]
        return _C.add_sinusoidal(x, offset, self.scale, self.base, *how)

    def _add_tokens(self, x: Tensor, offset: int | Tensor, tokens: Tensor) -> Tensor:
        padding = self.padding_idx
        assert padding is not None
        offset = self._checked_offset(offset, tokens)
        self._check_length(offset, x.shape[-2], padding + 1)
        real = tokens != padding
        start = offset.unsqueeze(-1) if isinstance(offset, Tensor) and offset.dim() else offset
        positions = (real.cumsum(-1) + start) * real + padding
        rows = sinusoidal_table(
            positions,
            self.d_model,
            base=self.base,
            convention=self.convention,
            padding_idx=padding,
            dtype=torch.float64 if x.dtype == torch.float64 else torch.float32,
        )
        return (x.to(rows.dtype) * self.scale + rows).to(x.dtype)

    def _check(self, x: Tensor, tokens: Tensor | None) -> None:
        if not isinstance(x, Tensor):
            raise error(TypeError, _OP, f"x must be a tensor, got {type(x).__name__}")
        if x.dim() not in (2, 3) or x.shape[-1] != self.d_model:
            order = "[B, S, D]" if self.batch_first else "[S, B, D]"
            raise error(
                ValueError,
                _OP,
                f"x must have shape {order} or [S, D] with D = d_model = {self.d_model}, got "
                f"{list(x.shape)}",
            )
        if (tokens is None) != (self.padding_idx is None):
            rule = "be given with padding_idx" if tokens is None else "be None without padding_idx"
            raise error(ValueError, _OP, f"tokens must {rule}, got {_name(tokens)}")
        check_dtype(_OP, x.dtype, "x")
        if tokens is None:
            return
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int32, torch.int64):
            raise error(TypeError, _OP, f"tokens must be int32 or int64, got {_name(tokens)}")
        if tokens.shape != x.shape[:-1]:
            raise error(
                ValueError,
                _OP,
                f"tokens must have shape {list(x.shape[:-1])}, got {list(tokens.shape)}",
            )

    def _checked_offset(self, offset: Any, tokens: Tensor) -> int | Tensor:
        """What add_sinusoidal would accept, so that both ways of counting accept the same."""
        if not isinstance(offset, Tensor):
            return integer(_OP, "offset", offset)
        if offset.dtype not in (torch.int32, torch.int64):
            raise error(TypeError, _OP, f"offset must be int32 or int64, got {offset.dtype}")
        batch = tokens.shape[0] if tokens.dim() == 2 else 1
        if offset.dim() and list(offset.shape) != [batch]:
            raise error(
                ValueError,
                _OP,
                f"offset must be an int or have shape [B] = [{batch}], got {list(offset.shape)}",
            )
        return offset if tokens.dim() == 2 else offset.reshape(())

    def _check_length(self, offset: int | Tensor, length: int, first: int = 0) -> None:
        if self.max_len is None or length == 0:
            return
        low = high = offset
        if isinstance(offset, Tensor):
            whole = offset.dtype in (torch.int32, torch.int64) and offset.layout is torch.strided
            if (
                not readable(offset) or not whole or offset.numel() == 0
            ):  # add_sinusoidal refuses the others
                return
            low, high = int(offset.min()), int(offset.max())
        low, high = integer(_OP, "offset", low), integer(_OP, "offset", high)
        if low < 0:
            raise error(IndexError, _OP, f"offset must not be negative with max_len, got {low}")
        end = high + first + length
        if end > self.max_len:
            raise error(
                IndexError,
                _OP,
                f"x must end within max_len = {self.max_len} positions, got {end}: "
                f"{length} tokens from position {high + first}",
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        unexpected = args[3]
        unexpected[:] = [k for k in unexpected if k not in {prefix + old for old in _OLD_KEYS}]

    def extra_repr(self) -> str:
        parts = [str(self.d_model), f"convention={self.convention!r}"]
        if self.max_len is not None:
            parts.insert(1, f"max_len={self.max_len}")
        if self.padding_idx is not None:
            parts.append(f"padding_idx={self.padding_idx}")
        return ", ".join(parts)


def _size(name: str, value: Any) -> int:
    value = integer(_OP, name, value)
    if value < 0:
        raise error(ValueError, _OP, f"{name} must not be negative, got {value}")
    return value


def _name(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
