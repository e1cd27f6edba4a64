"""Buckets of distances, as T5 and DeBERTa have them.

Buckets on a logarithmic scale come from whole numbers where they begin or end, found with exact
integer powers, so no rounding of a logarithm moves one.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ..arguments import at_least, error
from ..kept import constant, of_integers
from .rope_options import check_flags, check_tensors

Rule = TypeVar("Rule", bound=Callable[..., Any])
FAR = 2**63 - 1  # no distance is farther
MOST_BUCKETS = 2048  # models have 32 to 512; the ends of many more would take minutes to find


def _constant(rule: Rule) -> Rule:
    """Computed once for its arguments; torch.compile takes the result as it is."""
    computed = functools.cache(rule)

    def result(*args: int) -> Any:
        return computed(*args)

    # What torch.compiler.assume_constant_result does, without its import of the compiler.
    result._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return cast(Rule, result)


def t5_relative_position_bucket(
    relative_position: Tensor,
    bidirectional: bool = True,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Tensor:
    """The bucket of each distance, key minus query, as T5 has them.

    >>> import torch, posenc_ext
    >>> posenc_ext.t5_relative_position_bucket(torch.tensor([-200, -20, -3, 0, 3, 20]))
    tensor([15, 10,  3,  0, 19, 26])

    Half of the buckets hold one distance each, from 0 on; the others grow on a logarithmic scale up
    to `max_distance`, and the last holds whatever is farther.

    Args:
        relative_position: int32 or int64, any shape: position of the key minus that of the query.
        bidirectional: half of the buckets for keys to the right. Otherwise those share bucket 0.
        num_buckets: from 2 to 2048, and at least 4 if bidirectional.
        max_distance: above the distances that have a bucket each.

    Returns:
        int64 of the same shape, from 0 to ``num_buckets - 1``.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: `num_buckets` out of range, `max_distance` too small.

    Source: Raffel et al., https://arxiv.org/abs/1910.10683.
    """
    op = "t5_relative_position_bucket"
    distances = _distances(op, relative_position)
    half, starts = t5_rule(op, bidirectional, num_buckets, max_distance)
    return t5_bucket(distances, half, starts)


def deberta_relative_position_bucket(
    relative_position: Tensor, bucket_size: int = 256, max_position: int = 512
) -> Tensor:
    """The log bucket of each distance, query minus key, as DeBERTa v2 and v3 have them.

    >>> import torch, posenc_ext
    >>> posenc_ext.deberta_relative_position_bucket(torch.tensor([-300, -128, 0, 128, 129, 300]))
    tensor([-207, -128,    0,  128,  129,  207])

    Distances up to ``mid = bucket_size // 2`` stand for themselves; beyond, those up to
    ``max_position - 1`` share ``mid - 1`` buckets on a logarithmic scale, which goes on to
    ``2 * bucket_size``, where the result stays. (An index keeps those below `bucket_size`.)

    Args:
        relative_position: int32 or int64, any shape: position of the query minus that of the key.
        bucket_size: from 4 to 2048 (``position_buckets`` of a Hugging Face config).
        max_position: above ``bucket_size // 2 + 1`` (``max_relative_positions``).

    Returns:
        int64 of the same shape, with the sign of the distance.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: `bucket_size` out of range, `max_position` too small.

    Source: He et al., https://arxiv.org/abs/2006.03654, as in https://github.com/microsoft/DeBERTa.
    """
    op = "deberta_relative_position_bucket"
    distances = _distances(op, relative_position)
    size = at_least(op, "bucket_size", bucket_size, 4, MOST_BUCKETS)
    limit = at_least(op, "max_position", max_position, size // 2 + 2)
    return deberta_bucket(distances, size, limit, 2 * size)


def t5_rule(
    op: str, bidirectional: Any, num_buckets: Any, max_distance: Any
) -> tuple[int | None, tuple[int, ...]]:
    """How many buckets keys to the right have to themselves, and where buckets 1, 2 ... begin."""
    check_flags(op, bidirectional=bidirectional)
    buckets = at_least(op, "num_buckets", num_buckets, 4 if bidirectional else 2, MOST_BUCKETS)
    half = buckets // 2 if bidirectional else None
    exact = (buckets if half is None else half) // 2
    max_distance = at_least(op, "max_distance", max_distance, exact + 1)
    return half, _t5_starts(buckets if half is None else half, max_distance)


def t5_bucket(relative: Tensor, half: int | None, starts: tuple[int, ...]) -> Tensor:
    left = (-relative).clamp(min=0) if half is None else relative.abs()
    bucket = torch.bucketize(left, constant(of_integers, relative.device, *starts), right=True)
    return bucket if half is None else bucket + half * (relative > 0)


def deberta_bucket(delta: Tensor, size: int, max_position: int, last: int) -> Tensor:
    """Buckets in magnitude up to `last`."""
    mid, far = size // 2, delta.abs()
    ends = _deberta_ends(mid, max_position, last)
    bucket = torch.bucketize(far, constant(of_integers, delta.device, *ends)) + mid
    return torch.where(far <= mid, delta, delta.sign() * bucket)


@_constant
def _t5_starts(buckets: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance in bucket 1, 2 ... With e = buckets // 2 and n = buckets - e, bucket
    e + m begins where log(k / e) / log(max_distance / e) * n >= m, or k^n >= e^(n-m) max^m."""
    exact = buckets // 2
    n = buckets - exact
    logs = (_root(exact ** (n - m) * max_distance**m - 1, n) + 1 for m in range(1, n))
    return (*range(1, exact + 1), *logs)


@_constant
def _deberta_ends(mid: int, max_position: int, last: int) -> tuple[int, ...]:
    """The largest distance in bucket mid, mid + 1 ... last - 1. With n = mid - 1, bucket mid + m
    ends where log(k / mid) / log((max - 1) / mid) * n <= m, or k^n mid^m <= mid^n (max - 1)^m."""
    n = mid - 1
    return tuple(_root(mid**n * (max_position - 1) ** m // mid**m, n) for m in range(last - mid))


@_constant
def deberta_buckets_stay_near(size: int, max_position: int) -> bool:
    """Is no bucket of an index larger than its distances? Not where few distances, up to
    `max_position`, have as many buckets."""
    mid = size // 2
    ends = _deberta_ends(mid, max_position, size)
    return all(end >= mid + m for m, end in enumerate(ends))


def _root(value: int, n: int) -> int:
    """The largest k with k^n <= value, or FAR if that is less, for value >= 1."""
    guess = int(2 ** min(math.log2(value) / n, 63.0))
    margin = (guess >> 40) + 2  # the logarithm is exact to more than 40 bits
    low, high = max(guess - margin, 1), min(guess + margin, FAR)
    return low - 1 + bisect.bisect_right(range(low, high + 1), value, key=lambda k: k**n)


def _distances(op: str, relative_position: Any) -> Tensor:
    """As int64 whose negative is one too."""
    check_tensors(op, relative_position=relative_position)
    if relative_position.dtype not in (torch.int32, torch.int64):
        text = f"relative_position must be int32 or int64, got {relative_position.dtype}"
        raise error(TypeError, op, text)
    return relative_position.long().clamp(min=-FAR)
