"""Terms that depend on query i and key j through ``j - i`` alone: biases, shifts, relative tables.

An index of ``Q + K - 1`` entries, one for each distance, says which column of a table belongs to
which cell: ``index[j - i + Q - 1]`` for query i and key j, -1 for none.
:mod:`posenc_ext.ops.relative_index` builds the indexes of the schemes in use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import LARGEST, at_least, check_dtype, error, integer
from ..distributed import beside
from . import relative_autograd
from .rope_options import check_tensors

FAR = 2**62


def relative_gather(x: Tensor, index: Tensor, k_len: int | None = None) -> Tensor:
    """``out[..., i, j] = x[..., i, index[j - i + Q - 1]]``, and 0 where the index is -1.

    >>> import torch, posenc_ext
    >>> x = torch.tensor([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
    >>> index = torch.tensor([0, 1, 2, -1])  # distances -1, 0, 1, 2
    >>> posenc_ext.relative_gather(x, index)
    tensor([[11., 12.,  0.],
            [20., 21., 22.]])

    With scores of every query against a table, ``x = q @ table.T``, this is the relative term of
    attention in memory O(Q * (T + K)), without a row of the table for each pair.

    Args:
        x: ``[..., Q, T]``, float32, float64, bfloat16 or float16. Any strides; a table that all
            queries share may be expanded over Q.
        index: int32 or int64 ``[Q + K - 1]``, from -1 to ``T - 1``.
        k_len: K; by default what `index` is long enough for.

    Returns:
        ``[..., Q, K]``, contiguous, of the dtype of `x`. Values are copied, bit for bit.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape.
        IndexError: an entry of `index` that is no column of `x` and not -1 (on CUDA a device
            assert).

    Differentiable in `x`, to any order, forward and backward: the gradient is
    :func:`relative_scatter` of the gradient.
    """
    op = "relative_gather"
    check_tensors(op, x=x, index=index)
    if x.dim() < 2:
        raise error(ValueError, op, f"x must have shape [..., Q, T], got {list(x.shape)}")
    if k_len is None:
        k_len = index.numel() + 1 - x.shape[-2]
        if k_len < 0:
            text = f"index must have shape [Q + K - 1] with Q = {x.shape[-2]} and some K"
            raise error(ValueError, op, f"{text}, got {list(index.shape)}")
    (index,) = beside(x, index)
    return relative_autograd.gather(x, index, integer(op, "k_len", k_len))


def relative_scatter(y: Tensor, index: Tensor, size: int) -> Tensor:
    """``out[..., i, t] = sum of y[..., i, j]`` over the j with ``index[j - i + Q - 1] = t``.

    >>> import torch, posenc_ext
    >>> y = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> index = torch.tensor([0, 0, 1, 1])  # distances -1, 0, 1, 2
    >>> posenc_ext.relative_scatter(y, index, 2)
    tensor([[1., 5.],
            [9., 6.]])

    With attention weights y, ``relative_scatter(y, index, T) @ table`` is the relative term of the
    values.

    Args:
        y: ``[..., Q, K]``, float32, float64, bfloat16 or float16. Any strides.
        index: int32 or int64 ``[Q + K - 1]``, from -1 to ``size - 1``.
        size: T, the number of columns of the result.

    Returns:
        ``[..., Q, size]``, contiguous, of the dtype of `y`. Sums are in float32 (float64 for
        float64) and rounded once, in an order that the shape alone decides: the same bits for any
        threads, instruction set and strides.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape.
        IndexError: an entry of `index` that is no column and not -1 (on CUDA a device assert).

    Differentiable in `y`, to any order, forward and backward: the gradient is
    :func:`relative_gather` of the gradient.
    """
    op = "relative_scatter"
    check_tensors(op, y=y, index=index)
    (index,) = beside(y, index)
    return relative_autograd.scatter(y, index, integer(op, "size", size))


def rel_shift(x: Tensor, k_len: int | None = None, *, start: int | None = None) -> Tensor:
    """``out[..., i, j] = x[..., i, start + j - i]``, and 0 where x has no such column.

    >>> import torch, posenc_ext
    >>> x = torch.arange(1.0, 10.0).view(3, 3)
    >>> posenc_ext.rel_shift(x)
    tensor([[3., 0., 0.],
            [5., 6., 0.],
            [7., 8., 9.]])

    The columns of `x` are scores of a query with the distances in falling order (query minus key);
    the result has a column for each key. In use are, for Q queries and K keys,

        source          columns    call
        Transformer-XL  K          rel_shift(x)
        XLNet           Q + K      rel_shift(x, K, start=Q)
        Conformer       2 K - 1    rel_shift(x, K), with Q = K

    The pad-and-reshape code of Transformer-XL leaves values of the next row where this has 0, in
    cells that its causal mask hides.

    Args:
        x: ``[..., Q, T]``, float32, float64, bfloat16 or float16. Any strides.
        k_len: K; T by default.
        start: the column of distance 0 for the first query and the first key; Q - 1 by default.

    Returns:
        ``[..., Q, K]``, contiguous, of the dtype of `x`.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape or a negative `k_len`.

    Differentiable in `x`, to any order, forward and backward.
    """
    op = "rel_shift"
    check_tensors(op, x=x)
    check_dtype(op, x.dtype, "x")
    if x.dim() < 2:
        raise error(ValueError, op, f"x must have shape [..., Q, T], got {list(x.shape)}")
    q_len, size = x.shape[-2:]
    k_len = size if k_len is None else at_least(op, "k_len", k_len, 0, LARGEST)
    first = 0
    if start is not None:  # beyond the limits x has no column; within them nothing overflows
        first = max(-FAR, min(integer(op, "start", start), FAR)) - (q_len - 1)
    count = max(q_len + k_len - 1, 0)
    column = torch.arange(first, first + count, device=x.device)
    index = torch.where((column >= 0) & (column < size), column, -1)
    (index,) = beside(x, index)
    return relative_autograd.gather(x, index, k_len)
