"""Sinusoidal position encodings: tables, and their sum with embeddings.

Source: Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762, section 3.5.

Every convention gives sin and cos of ``position * frequency[i]`` for n frequencies
``base ** (-i / denominator)``:

    name             columns         denominator  odd D                   used by
    "interleaved"    sin, cos, ...   D/2          one sin more than cos   the article, DistilBERT
    "concatenated"   [sin | cos]     D/2          one sin more than cos   Marian, Pegasus, RoFormer,
                                                                          Transformer-XL, XLNet
    "tensor2tensor"  [sin | cos]     D//2 - 1     zero in the last        tensor2tensor, Whisper
    "fairseq"        the same                                             fairseq, M2M-100
    "musicgen"       [cos | sin]     D//2 - 1     zero in the last        MusicGen
    "diffusion"      [cos | sin]     D/2 (D//2)   zero in the last        GLIDE, ADM, DiT, Stable
                                                                          Diffusion

A single frequency is 1, whatever the denominator: D = 2 with ``D//2 - 1`` is no division by zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._native import _C
from ..arguments import error, integer, number
from ..distributed import beside, is_dtensor, is_sharded, token_positions, varying
from ..types import SinusoidConvention
from .position_ids import sizes_of_ids
from .rope_options import check_tensors
from .sinusoidal_autograd import add
from .sinusoidal_options import (
    Convention,
    base_of,
    convention_of,
    dim_of,
    frequencies_of,
    positions_of,
    table_of,
)


def sinusoidal_table(
    positions: int | Tensor,
    dim: int,
    *,
    base: float = 10000.0,
    convention: SinusoidConvention = "interleaved",
    padding_idx: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """The sinusoidal encoding of each position.

    >>> import posenc_ext
    >>> posenc_ext.sinusoidal_table(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    >>> posenc_ext.sinusoidal_table(2, 4, convention="tensor2tensor")
    tensor([[0.0000e+00, 0.0000e+00, 1.0000e+00, 1.0000e+00],
            [8.4147e-01, 1.0000e-04, 5.4030e-01, 1.0000e+00]])

    Each value is computed in double from an exactly reduced angle and rounded once to `dtype`, as
    in :func:`rope_table`: its error does not grow with the position, and its bits depend on the
    position, `dim`, `base` and the convention alone. Angles beyond 2^53 radians, infinite and NaN
    positions give NaN.

    Args:
        positions: an int n for ``0 .. n-1``, or an int32, int64 or floating tensor ``[...]``, which
            may be negative or fractional, in any order and with any strides.
        dim: D, the width of a row; odd ones too.
        base: the frequencies run from 1 down to about 1 / base.
        convention: "interleaved", "concatenated", "tensor2tensor", "fairseq", "musicgen" or
            "diffusion"; :mod:`posenc_ext.ops.sinusoidal` says what they are and who uses them.
        padding_idx: the row of this position is zero (fairseq).
        dtype: float32, float64, bfloat16 or float16.
        device: where to build the table; default: where the positions are (for an int, as torch).

    Returns:
        The table, contiguous ``[..., D]`` of `dtype`.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: an unknown convention, a negative size, a base that is not positive.

    Differentiable in floating positions, to any order, forward and backward. Autocast does not
    change the result.
    """
    op = "sinusoidal_table"
    how = convention_of(op, convention)
    positions = positions_of(op, "positions", positions, device)
    dim, base = dim_of(op, dim), base_of(op, "base", base)
    result = table_of(op, positions, dim, base, how, dtype)
    if padding_idx is None:
        return result
    padding = positions == integer(op, "padding_idx", padding_idx)
    return result.masked_fill(padding.unsqueeze(-1), 0)


def add_sinusoidal(
    x: Tensor,
    *,
    offset: int | Tensor = 0,
    positions: Tensor | None = None,
    scale: float = 1.0,
    base: float = 10000.0,
    convention: SinusoidConvention = "interleaved",
) -> Tensor:
    """``scale * x`` plus the sinusoidal table of its positions, in one pass and without the table.

    >>> import torch, posenc_ext
    >>> posenc_ext.add_sinusoidal(torch.ones(1, 2, 4), offset=1)
    tensor([[[1.8415, 1.5403, 1.0100, 1.9999],
             [1.9093, 0.5839, 1.0200, 1.9998]]])

    Equal bit for bit to ``x * scale + sinusoidal_table(...)`` in float32 (float64 for float64
    inputs), rounded once to the dtype of x.

    Args:
        x: float32, float64, bfloat16 or float16, ``[B, S, D]`` or ``[S, D]``, any strides.
        offset: the position of the first token: an int, or an int32 or int64 tensor ``[]`` or
            ``[B]``; negative ones too.
        positions: int32, int64 or floating ``[S]`` or ``[B, S]``, instead of `offset`. Their table
            is built in memory.
        scale: multiplies x, such as ``sqrt(D)`` in "Attention Is All You Need", section 3.4.
        base, convention: as for :func:`sinusoidal_table`.

    Returns:
        The sum, with the shape and dtype of x and, if x is dense, its strides.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape or value.

    Differentiable in x and floating positions, to any order, forward and backward: the gradient of
    x is `scale` times the incoming one. Autocast does not change the result.
    """
    op = "add_sinusoidal"
    how = convention_of(op, convention)
    if positions is None and not torch.compiler.is_compiling():
        result = _C.add_sinusoidal(x, offset, scale, base, *how)
        if result is not None:
            return result
    check_tensors(op, x=x)
    scale, base = number(op, "scale", scale), base_of(op, "base", base)
    offsets: Tensor | None = None
    if isinstance(offset, Tensor):
        check_tensors(op, offset=offset)
        offsets, offset = offset, 0
    else:
        offset = integer(op, "offset", offset, "an int or a tensor")
        if not isinstance(offset, torch.SymInt) and not -(2**62) <= offset <= 2**62:
            raise error(ValueError, op, f"offset must be between -2^62 and 2^62, got {offset}")
    dim = x.shape[-1] if x.dim() else 0
    frequencies = frequencies_of(x, dim, base, how)
    if positions is not None:
        check_positions(op, x, positions, offset if offsets is None else offsets)
        return _add_table(x, frequencies, None, positions, scale, base, how)
    if is_dtensor(x):
        offsets, offset = varying(x, offsets, offset)
        if is_sharded(x, x.dim() - 2):
            positions = token_positions(x, x.dim() - 2, offsets)
            positions = positions if x.dim() == 3 else positions[0]
            return _add_table(x, frequencies, offsets, positions, scale, base, how)
        offsets, frequencies = beside(x, offsets, frequencies)
    return add(x, frequencies, offsets, offset, scale, how.interleaved, how.cos_first)


def check_positions(op: str, x: Tensor, positions: Any, offset: Any) -> None:
    check_tensors(op, positions=positions)
    positions_of(op, "positions", positions, None)
    if list(positions.shape) not in sizes_of_ids(list(x.shape[:-1])):
        text = f"positions must have shape [S] or [B, S] of x {list(x.shape)}, got "
        raise error(ValueError, op, text + f"{list(positions.shape)}")
    if isinstance(offset, Tensor) or offset != 0:
        text = f"positions must be None with offset, got {list(positions.shape)}"
        raise error(ValueError, op, text)


def _add_table(
    x: Tensor,
    frequencies: Tensor,
    offsets: Tensor | None,
    positions: Tensor,
    scale: float,
    base: float,
    how: Convention,
) -> Tensor:
    """The same sum by a table: of any positions, or of a rank's part of the tokens."""
    tensors = (x, frequencies, offsets)
    meta = [t if t is None else torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
    torch.ops.posenc_ext.add_sinusoidal(*meta, 0, scale, False, False)  # for its checks
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    positions = positions_of("add_sinusoidal", "positions", positions, x.device)
    (table,) = beside(x, table_of("add_sinusoidal", positions, x.shape[-1], base, how, dtype))
    return (x.to(dtype) * scale + table).to(x.dtype)
