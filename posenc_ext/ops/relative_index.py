"""Indexes for :func:`posenc_ext.relative_gather`: which row of a table a distance belongs to.

Every index has ``Q + K - 1`` entries, one for each distance of a key from a query. Query i stands
at key ``i + offset``. By default queries are the last of the keys (bottom-right alignment, as in
decoding with a cache): `offset` is ``K - Q``. With a cache that is longer than what is in it, it is
the number of tokens before the first query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import LARGEST, at_least, error
from .relative_buckets import MOST_BUCKETS, deberta_bucket, t5_bucket, t5_rule

Device = torch.device | str | None


def t5_relative_index(
    q_len: int,
    k_len: int | None = None,
    *,
    bidirectional: bool = True,
    num_buckets: int = 32,
    max_distance: int = 128,
    offset: int | None = None,
    device: Device = None,
) -> Tensor:
    """:func:`posenc_ext.t5_relative_position_bucket` as an index, int64 ``[Q + K - 1]``.

    >>> import posenc_ext
    >>> posenc_ext.t5_relative_index(2, 3)
    tensor([ 2,  1,  0, 17])

    Raises TypeError and ValueError as there, and for a negative length.
    """
    op = "t5_relative_index"
    half, starts = t5_rule(op, bidirectional, num_buckets, max_distance)
    return t5_bucket(_distances(op, q_len, k_len, offset, device), half, starts)


def deberta_relative_index(
    q_len: int,
    k_len: int | None = None,
    *,
    max_relative_positions: int = 512,
    position_buckets: int | None = None,
    offset: int | None = None,
    device: Device = None,
) -> Tensor:
    """``clamp(bucket(i - j) + span, 0, 2 * span - 1)`` as an index, int64 ``[Q + K - 1]``.

    >>> import posenc_ext
    >>> posenc_ext.deberta_relative_index(2, 4, max_relative_positions=2)
    tensor([3, 3, 3, 2, 1])

    With `position_buckets` that is the span, and distances go through
    :func:`posenc_ext.deberta_relative_position_bucket`. Without, it is `max_relative_positions`.
    Released code uses this one index for both terms, content to position and position to content.

    Raises TypeError and ValueError for a length or a size that is none.
    """
    op = "deberta_relative_index"
    delta = -_distances(op, q_len, k_len, offset, device)
    if position_buckets is None:
        span = at_least(op, "max_relative_positions", max_relative_positions, 1)
    else:
        span = at_least(op, "position_buckets", position_buckets, 4, MOST_BUCKETS)
        limit = at_least(op, "max_relative_positions", max_relative_positions, span // 2 + 2)
        delta = deberta_bucket(delta, span, limit, span)
    return (delta + span).clamp(0, 2 * span - 1)


def clipped_relative_index(
    q_len: int,
    k_len: int | None = None,
    *,
    left: int,
    right: int | None = None,
    offset: int | None = None,
    device: Device = None,
) -> Tensor:
    """``clip(j - i, -left, right) + left`` as an index, int64 ``[Q + K - 1]``.

    >>> import posenc_ext
    >>> posenc_ext.clipped_relative_index(2, 4, left=2)
    tensor([0, 0, 1, 2, 3])

    Rows of a table ``[left + right + 1, D]``; `right` is `left` by default (Shaw et al.,
    https://arxiv.org/abs/1803.02155).

    Raises TypeError and ValueError for a length or a distance that is none.
    """
    op = "clipped_relative_index"
    left = at_least(op, "left", left, 0)
    right = left if right is None else at_least(op, "right", right, 0)
    return _distances(op, q_len, k_len, offset, device).clamp(-left, right) + left


def bert_relative_index(
    q_len: int,
    k_len: int | None = None,
    *,
    max_position_embeddings: int,
    offset: int | None = None,
    device: Device = None,
) -> Tensor:
    """``i - j + max_position_embeddings - 1`` as an index, int64 ``[Q + K - 1]``.

    >>> import posenc_ext
    >>> posenc_ext.bert_relative_index(2, 4, max_position_embeddings=4)
    tensor([6, 5, 4, 3, 2])

    Rows of the ``distance_embedding`` ``[2 * max_position_embeddings - 1, D]`` of BERT with
    ``relative_key`` or ``relative_key_query``. Query minus key, so in the opposite order of Shaw's.

    Raises TypeError and ValueError for a length that is none, or longer than the table allows.
    """
    op = "bert_relative_index"
    most = at_least(op, "max_position_embeddings", max_position_embeddings, 1)
    distances = _distances(op, q_len, k_len, offset, device)
    for name, length in (("q_len", q_len), ("k_len", k_len)):
        if length is not None and length > most:
            text = f"{name} must be at most max_position_embeddings = {most}, got {length}"
            raise error(ValueError, op, text)
    return most - 1 - distances


def _distances(
    op: str, q_len: int, k_len: int | None, offset: int | None, device: Device
) -> Tensor:
    """Key minus query, from the first key and last query to the last key and first query."""
    q_len = at_least(op, "q_len", q_len, 0)
    k_len = q_len if k_len is None else at_least(op, "k_len", k_len, 0)
    if not torch.compiler.is_compiling():
        at_least(op, "q_len and k_len together", q_len + k_len, 0, LARGEST)
    first = 1 - k_len
    if offset is not None:
        first = 1 - q_len - at_least(op, "offset", offset, -LARGEST, LARGEST)
    count = q_len + k_len - 1 if q_len + k_len else 0
    return torch.arange(first, first + count, device=device)
