"""Inputs for the tests of the relative ops (seeded, small), and how to compare with the oracle."""

import numpy as np
import oracle_relative
import torch
from rope_cases import double, name, uniform

import posenc_ext

# (Q, K): square, one row, one key, more keys, more rows, around the 16 parts of a sum.
LENGTHS = [(5, 5), (1, 1), (1, 33), (4, 1), (3, 17), (7, 15), (2, 16), (9, 4), (20, 70)]


def index_of(kind, q_len, k_len, dtype=torch.int64):
    """(index, T) of one kind, for each distance j - i from 1 - Q to K - 1."""
    count = max(q_len + k_len - 1, 0)
    distance = np.arange(count) - (q_len - 1)
    rng = np.random.default_rng(3)
    index, size = {
        "shifted": (distance + q_len, count + 2),
        "reversed": (count - 1 - np.arange(count), max(count, 1)),
        "clipped": (np.clip(distance, -2, 3) + 2, 6),
        "buckets": (np.abs(distance) // 5, count // 5 + 1),
        "one": (np.full(count, 2), 4),
        "none": (np.full(count, -1), 3),
        "random": (rng.integers(-1, 9, count), 9),
        "cut": (np.where((distance > -3) & (distance < 6), distance + 2, -1), 8),
        "waves": (np.abs((np.arange(count) + 4) % 12 - 6), 7),
    }[kind]
    return torch.from_numpy(np.asarray(index)).to(dtype), int(size)


def pieced_index(rng, count, size):
    """Pieces of every kind of run, of lengths around those that the kernel treats apart."""
    pieces = [np.zeros(0, np.int64)]
    while sum(map(len, pieces)) < count:
        length, first = int(rng.integers(1, 9)), int(rng.integers(-1, size))
        step = int(rng.integers(-1, 3))
        piece = first + step * np.arange(length)
        if step == 2:
            piece = rng.integers(-1, size, length)
        pieces.append(np.where((piece >= 0) & (piece < size), piece, -1))
    return torch.from_numpy(np.concatenate(pieces)[:count])


KINDS = ("shifted", "reversed", "clipped", "buckets", "one", "none", "random", "cut", "waves")


def expected(op, *args, **options):
    return getattr(oracle_relative, op)(*map(double, args), **options)


def assert_close(actual, right):
    assert tuple(actual.shape) == right.shape
    assert actual.is_contiguous()
    rtol, atol = oracle_relative.TOLERANCE_SUM[name(actual.dtype)]
    np.testing.assert_allclose(double(actual), right, rtol=rtol, atol=atol)


def in_parts(y, index, size):
    """relative_scatter as csrc/relative.h defines it: every rounding of every sum, in its order."""
    q_len, k_len = y.shape[-2:]
    wide = y.double() if y.dtype == torch.float64 else y.float()
    parts = torch.zeros(*y.shape[:-1], size, 16, dtype=wide.dtype)
    rows = torch.arange(q_len)
    for j in range(k_len):
        t = index[j - rows + q_len - 1].long()
        i, t = rows[t >= 0], t[t >= 0]
        parts[..., i, t, j % 16] += wide[..., i, j]
    for half in (8, 4, 2, 1):
        parts = parts[..., :half] + parts[..., half:]
    return parts[..., 0].to(y.dtype)


def large(dtype):
    """Results of calls large enough to be shared out among threads."""
    found = []
    for kind in ("shifted", "buckets", "waves"):
        index, size = index_of(kind, 150, 250)
        x = uniform((3, 2, 150, size), dtype, 1)
        y = uniform((3, 2, 150, 250), dtype, 2)
        found.append(posenc_ext.relative_gather(x, index))
        found.append(posenc_ext.relative_scatter(y, index, size))
    return found
