"""Position ids: which row of a learned table each token of a batch takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import LARGEST, at_least, error, integer
from .functions import readable, unwrapped
from .rope_options import check_tensors

INTEGERS = (torch.int32, torch.int64)


def padding_aware_positions(
    input_ids: Tensor, padding_idx: int, *, past: int | Tensor = 0
) -> Tensor:
    """``(cumsum(m) + past) * m + padding_idx`` with ``m = input_ids != padding_idx``.

    >>> import torch, posenc_ext
    >>> posenc_ext.padding_aware_positions(torch.tensor([[5, 6, 7, 1, 1], [1, 1, 5, 6, 7]]), 1)
    tensor([[2, 3, 4, 1, 1],
            [1, 1, 2, 3, 4]])

    The ids of RoBERTa, XLM-R and fairseq: the first real token of a row has ``padding_idx + 1``,
    padding has `padding_idx`, wherever it stands. For inputs that are embeddings already,
    ``sequential_positions(S, first=padding_idx + 1)``.

    Args:
        input_ids: int32 or int64 ``[..., S]``.
        padding_idx: the id of padding, at least 0.
        past: real tokens before these, an int or an integer tensor ``[]`` or ``[B]``.

    Returns:
        int64 ``[..., S]``. A table needs ``past + S + padding_idx + 1`` rows.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, or a negative `padding_idx` or `past`.
    """
    op = "padding_aware_positions"
    check_ids(op, "input_ids", input_ids)
    padding_idx = at_least(op, "padding_idx", padding_idx, 0)
    before = _past(op, past, input_ids)
    real = input_ids != padding_idx
    return (real.cumsum(-1) + before) * real + padding_idx


def attention_mask_positions(
    attention_mask: Tensor, *, first: int = 0, fill: int | None = 1, past: int = 0
) -> Tensor:
    """The real tokens of each row counted from `first` on, and `fill` for padding.

    >>> import torch, posenc_ext
    >>> mask = torch.tensor([[0, 0, 1, 1, 1]])
    >>> posenc_ext.attention_mask_positions(mask)
    tensor([[1, 1, 0, 1, 2]])
    >>> posenc_ext.attention_mask_positions(mask, first=2)
    tensor([[1, 1, 2, 3, 4]])

        source                       arguments
        Hugging Face generate        first=0, fill=1
        OPT, BioGPT                  first=2, fill=1
        CLVP                         first=0, fill=None

    Args:
        attention_mask: bool, int32 or int64 ``[..., S]``, nonzero for real tokens; of all tokens,
            those in a cache too.
        fill: None lets padding keep the count of the real tokens before it, which is ``first - 1``
            before the first.
        past: how many columns to leave out at the start, after counting them.

    Returns:
        int64 ``[..., S - past]``.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, or a `past` that is negative or above S.
    """
    op = "attention_mask_positions"
    check_ids(op, "attention_mask", attention_mask, (torch.bool, *INTEGERS))
    first = at_least(op, "first", first, -LARGEST, LARGEST)
    past = at_least(op, "past", past, 0)
    length = attention_mask.shape[-1]
    if past > length:
        raise error(ValueError, op, f"past must be at most S = {length}, got {past}")
    real = attention_mask != 0
    positions = real.cumsum(-1) + (first - 1)
    if fill is not None:
        positions = torch.where(real, positions, integer(op, "fill", fill))
    return positions[..., past:]


def sequential_positions(
    length: int, *, first: int = 0, past: int = 0, device: torch.device | str | None = None
) -> Tensor:
    """``first + past + 0, 1, ... length - 1``, whatever the tokens are.

    >>> import posenc_ext
    >>> posenc_ext.sequential_positions(4, first=2)
    tensor([2, 3, 4, 5])

        source                          first
        GPT, GPT-2, BERT, ViT           0
        BART and its kin                2
        RoBERTa from embeddings         padding_idx + 1

    Args:
        length: S.
        first: the row of the first position.
        past: tokens before these.

    Returns:
        int64 ``[S]``.

    Raises:
        TypeError: an argument is not an int.
        ValueError: a negative `length` or `past`.
    """
    op = "sequential_positions"
    length, past = at_least(op, "length", length, 0), at_least(op, "past", past, 0)
    start = integer(op, "first", first) + past
    if not torch.compiler.is_compiling() and start + length > 2**63 - 1:
        text = f"first must leave all positions below 2^63, got {first} with past = {past}"
        raise error(ValueError, op, text)
    return torch.arange(start, start + length, device=device)


def check_ids(op: str, name: str, ids: Any, dtypes: tuple[torch.dtype, ...] = INTEGERS) -> None:
    check_tensors(op, **{name: ids})
    if ids.dtype not in dtypes:
        names = "bool, int32 or int64" if torch.bool in dtypes else "int32 or int64"
        raise error(TypeError, op, f"{name} must be {names}, got {ids.dtype}")
    if ids.dim() == 0:
        raise error(ValueError, op, f"{name} must have shape [..., S], got []")


def check_rows(op: str, name: str, ids: Tensor, rows: int, size: str, first: int = 0) -> None:
    """`ids` are rows of a table from `first` on, where they can be read at no cost; `size` is what
    `rows` is."""
    if not readable(ids) or not ids.numel():
        return
    low, high = (int(p) for p in unwrapped(ids).aminmax())
    if low < first or high >= rows:
        got = low if low < first else high
        text = f"{name} must be from {first} to {size} - 1 = {rows - 1}, got {got}"
        raise error(IndexError, op, text)


def sizes_of_ids(size: list[int]) -> tuple[list[int], ...]:
    """What ids for tokens ``[S]`` or ``[B, S]`` may be: those sizes, or one for all of B."""
    return (size,) if len(size) < 2 else (size[-1:], size, [1, *size[1:]])


def _past(op: str, past: Any, ids: Tensor) -> int | Tensor:
    """past as something to add to counts [..., S]."""
    if not isinstance(past, Tensor):
        return at_least(op, "past", past, 0)
    check_tensors(op, past=past)
    if past.dtype not in INTEGERS:
        raise error(TypeError, op, f"past must be int32 or int64, got {past.dtype}")
    if past.dim() and (ids.dim() != 2 or past.shape != ids.shape[:1]):
        text = f"past must be an int or have shape [B], got {list(past.shape)} for input_ids of "
        raise error(ValueError, op, text + f"shape {list(ids.shape)}")
    if readable(past) and past.numel() and (low := int(unwrapped(past).min())) < 0:
        raise error(ValueError, op, f"past must be at least 0, got {low}")
    return past.unsqueeze(-1) if past.dim() else past
