"""Attention with linear biases (ALiBi): a penalty on the distance of query and key.

Source: Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input
Length Extrapolation", https://arxiv.org/abs/2108.12409.

The bias of query i and key j is ``-slope * |p - j|``, where ``p = i + K - Q`` is the key that query
i stands at: queries are the last of the keys (bottom-right alignment, as in decoding with a cache).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import DTYPES, check_dtype, error, integer, known, number, power
from ..distributed import beside
from ..types import ScoreMod
from . import alibi_autograd, alibi_softmax_autograd
from .rope_options import check_flags, check_tensors


def alibi_slopes(
    num_heads: int,
    *,
    max_bias: float = 8.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """The slopes of the heads, ``[num_heads]``.

    >>> import posenc_ext
    >>> posenc_ext.alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])

    For a power of two H, ``2^(-max_bias * k / H)``, k = 1 .. H. Otherwise the even k of the next
    power of two H', then its odd k, up to H slopes: the rule of MPT, which for `max_bias` 8 is that
    of the paper's code. Computed in double on the host and rounded once; on a GPU a call waits for
    the copy, so make them once, outside a CUDA graph.

    Raises:
        TypeError: `num_heads` is not an int, `max_bias` not a number, `dtype` not a real one.
        ValueError: a negative `num_heads`, or `max_bias` not above 0.
    """
    op = "alibi_slopes"
    num_heads = integer(op, "num_heads", num_heads)
    max_bias = number(op, "max_bias", max_bias)
    check_dtype(op, dtype)
    if num_heads < 0:
        raise error(ValueError, op, f"num_heads must be at least 0, got {num_heads}")
    if num_heads > 2**20:  # they are made one by one
        raise error(ValueError, op, f"num_heads must not exceed {2**20}, got {num_heads}")
    if not max_bias > 0:
        raise error(ValueError, op, f"max_bias must be above 0, got {max_bias}")
    size = 1 << (num_heads - 1).bit_length() if num_heads else 1
    steps: list[int] = [*range(1, size + 1)]
    if size != num_heads:
        steps = [*range(2, size + 1, 2), *range(1, size + 1, 2)][:num_heads]
    slopes = [power(2.0, -max_bias * k / size) for k in steps]
    return torch.tensor(slopes, dtype=torch.float64, device=device).to(dtype)


def alibi_bias(
    slopes: Tensor,
    q_len: int,
    k_len: int | None = None,
    *,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
    key_positions: Tensor | None = None,
) -> Tensor:
    """The bias as a tensor, ``[H, q_len, k_len]``, to add to scores that are scaled already.

    >>> import torch, posenc_ext
    >>> posenc_ext.alibi_bias(torch.tensor([0.5]), 2, 4, causal=True)
    tensor([[[-1.0000, -0.5000, -0.0000,    -inf],
             [-1.5000, -1.0000, -0.5000, -0.0000]]])

    Where it can be avoided, do without this tensor: :func:`add_alibi`, :func:`alibi_softmax`, and
    :func:`alibi_row_bias` are the same attention.

    Args:
        slopes: ``[H]`` or ``[B, H]`` (then the result is ``[B, H, q_len, k_len]``); float32,
            bfloat16 or float16, or float64 if `dtype` is. May require grad.
        q_len, k_len: below 2^30. `k_len` defaults to that of `key_positions`, else to `q_len`.
            Query i stands at key ``i + k_len - q_len``.
        causal: put -inf beyond the key that the query stands at.
        dtype: of the result. Products are taken in float32 (float64 for float64), rounded once.
        key_positions: int32 or int64 ``[B, k_len]``, the position of each key where it is not its
            index: with left padding BLOOM counts from the first real token. Distances are then
            those of these positions, and the result is ``[B, H, q_len, k_len]``. Padding is not
            masked by this. Needs ``q_len <= k_len``.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape or a negative length.

    Differentiable in `slopes`, to any order, forward and backward.
    """
    op = "alibi_bias"
    check_tensors(op, slopes=slopes)
    check_flags(op, causal=causal)
    keys = q_len = _length(op, "q_len", q_len)
    if key_positions is not None:
        check_tensors(op, key_positions=key_positions)
        keys = key_positions.shape[-1] if key_positions.dim() else 0
    k_len = _length(op, "k_len", keys if k_len is None else k_len)
    check_dtype(op, dtype)
    (key_positions,) = beside(slopes, key_positions)
    return alibi_autograd.bias(slopes, q_len, k_len, bool(causal), dtype, key_positions)


def alibi_row_bias(slopes: Tensor, k_len: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The bias of the last query alone, ``[H, 1, k_len]`` (or ``[B, H, 1, k_len]``).

    >>> import torch, posenc_ext
    >>> posenc_ext.alibi_row_bias(torch.tensor([0.5]), 3)
    tensor([[[-1.0000, -0.5000, -0.0000]]])

    Under a causal mask it serves every query: its rows differ from those of :func:`alibi_bias` by a
    constant each, which softmax does not see. Outputs and all gradients are the same, that of the
    slopes too. Without a causal mask it is not ALiBi. In half precision it serves short inputs
    only: far from the last key its values are large and coarse.

    `slopes` and `dtype` as in :func:`alibi_bias`; errors and derivatives too.
    """
    op = "alibi_row_bias"
    check_dtype(op, dtype)
    _check_slopes(op, slopes, dtype)
    k_len = _length(op, "k_len", k_len)
    return alibi_autograd.bias(slopes, 1, k_len, False, dtype)


def add_alibi(
    scores: Tensor, slopes: Tensor, *, causal: bool = False, inplace: bool = False
) -> Tensor:
    """Scores plus bias, in one pass and without a tensor of the bias.

    >>> import torch, posenc_ext
    >>> posenc_ext.add_alibi(torch.zeros(1, 1, 2, 3), torch.tensor([0.5]), causal=True)
    tensor([[[[-0.5000,  0.0000,    -inf],
              [-1.0000, -0.5000,  0.0000]]]])

    Args:
        scores: ``[B, H, Q, K]``, float32, float64, bfloat16 or float16, scaled already. Any
            strides. Query i stands at key ``i + K - Q``.
        slopes: ``[H]`` or ``[B, H]``; float32, bfloat16 or float16, or float64 with float64 scores.
        causal: put -inf beyond the key that the query stands at.
        inplace: write into `scores` and return it.

    Returns:
        The shape and dtype of `scores`, and their strides if those are dense. Arithmetic in float32
        (float64 for float64), rounded once.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape; in place, memory that overlaps or a leaf that requires grad.

    Differentiable in `scores` and `slopes`, to any order, forward and backward.
    """
    check_tensors("add_alibi", scores=scores, slopes=slopes)
    check_flags("add_alibi", causal=causal, inplace=inplace)
    (slopes,) = beside(scores, slopes)
    if inplace:
        return alibi_autograd.add_inplace(scores, slopes, bool(causal))
    return alibi_autograd.add(scores, slopes, bool(causal))


def alibi_softmax(
    scores: Tensor,
    slopes: Tensor,
    *,
    scale: float = 1.0,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """``softmax(scale * scores + bias)`` over the keys, in one pass.

    >>> import torch, posenc_ext
    >>> posenc_ext.alibi_softmax(torch.zeros(1, 1, 2, 3), torch.tensor([1.0]), causal=True)
    tensor([[[[0.2689, 0.7311, 0.0000],
              [0.0900, 0.2447, 0.6652]]]])

    A row that sees no key, or only scores of -inf, becomes zeros, not NaN.

    Args:
        scores: ``[B, H, Q, K]``, float32, float64, bfloat16 or float16. Any strides. Query i stands
            at key ``i + K - Q``.
        slopes: ``[H]`` or ``[B, H]``; float32, bfloat16 or float16, or float64 with float64 scores.
        scale: multiplies the scores, not the bias: ``1 / sqrt(D)`` for ``q @ k^T``.
        causal: hide the keys beyond the one that the query stands at.
        key_padding_mask: bool ``[B, K]``, True for the keys to keep, as in the boolean masks of
            ``scaled_dot_product_attention`` (``nn.MultiheadAttention`` has it the other way round).

    Returns:
        The shape and dtype of `scores`, and their strides if those are dense. Arithmetic in float32
        (float64 for float64), rounded once; the same bits for any threads, instruction set and
        strides.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, or a scale that is not finite.

    Differentiable in `scores` and `slopes`, to any order, forward and backward.
    """
    op = "alibi_softmax"
    check_tensors(op, scores=scores, slopes=slopes)
    check_flags(op, causal=causal)
    scale = number(op, "scale", scale)
    if key_padding_mask is not None:
        check_tensors(op, key_padding_mask=key_padding_mask)
    slopes, key_padding_mask = beside(scores, slopes, key_padding_mask)
    return alibi_softmax_autograd.softmax(scores, slopes, scale, bool(causal), key_padding_mask)


def alibi_score_mod(
    slopes: Tensor, q_len: int, k_len: int | None = None, *, causal: bool = False
) -> ScoreMod:
    """The bias as a ``score_mod`` for ``torch.nn.attention.flex_attention``.

    >>> import torch, posenc_ext
    >>> mod = posenc_ext.alibi_score_mod(torch.tensor([0.5]), 2, 4)
    >>> b, h, q, k = torch.tensor([0, 0, 1, 0]).unbind()
    >>> mod(torch.tensor(1.0), b, h, q, k)
    tensor(-0.5000)

    `slopes` ``[H]`` or ``[B, H]``; `q_len`, `k_len` and `causal` as in :func:`alibi_bias`. With
    `causal` scores become -inf beyond the key that the query stands at; a block mask that skips
    those blocks is faster.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape or a negative length.
    """
    op = "alibi_score_mod"
    _check_slopes(op, slopes, torch.float64)
    check_flags(op, causal=causal)
    q_len = _length(op, "q_len", q_len)
    k_len = _length(op, "k_len", q_len if k_len is None else k_len)
    shift, batched = k_len - q_len, slopes.dim() == 2

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        slope = slopes[b, h] if batched else slopes[h]
        offset = kv_idx - q_idx - shift
        biased = score - slope * offset.abs()
        return torch.where(offset > 0, -float("inf"), biased) if causal else biased

    return score_mod


def _check_slopes(op: str, slopes: Any, dtype: torch.dtype) -> None:
    """As the native ops do, for functions that have none of their own."""
    check_tensors(op, slopes=slopes)
    precise = slopes.dtype == torch.float64
    if slopes.dtype not in DTYPES or (precise and dtype != torch.float64):
        names = "float32, bfloat16 or float16 (or float64 for a float64 result)"
        raise error(TypeError, op, f"slopes must be {names}, got {slopes.dtype}")
    if slopes.dim() not in (1, 2):
        raise error(
            ValueError, op, f"slopes must have shape [H] or [B, H], got {list(slopes.shape)}"
        )


def _length(op: str, name: str, value: Any) -> int:
    value = integer(op, name, value)
    if known(value) and not 0 <= value < 2**30:
        raise error(ValueError, op, f"{name} must be at least 0 and below 2^30, got {value}")
    return value
