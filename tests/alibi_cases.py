"""Inputs for the ALiBi tests (seeded, small), and how to compare with the oracle."""

import numpy as np
import oracle_alibi
import torch
from rope_cases import double, name, uniform

import posenc_ext

# (Q, K): square, short, long, one row, one key, around the 16 partial sums, more rows than keys.
LENGTHS = [
    (5, 5), (1, 1), (1, 33), (4, 1), (3, 17), (7, 15), (2, 16), (16, 32), (9, 4), (40, 70),
    (2, 300),
]  # fmt: skip
EMPTY = [(0, 5), (5, 0), (0, 0)]


def slopes_of(heads=3, dtype=torch.float32, batch=None, device="cpu"):
    """Slopes in (0, 0.25], so that biases stay below 64 for the lengths above."""
    size = (heads,) if batch is None else (batch, heads)
    values = np.random.default_rng(7).uniform(0.01, 0.2, size)
    return torch.from_numpy(values).to(dtype).to(device)


def scores_of(lengths, dtype=torch.float32, seed=0, batch=2, heads=3, device="cpu"):
    return uniform((batch, heads, *lengths), dtype, seed, device)


def nan_of_ones(dtype):
    """The NaN that a GPU's arithmetic makes: all bits but the sign are set."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return torch.tensor(torch.iinfo(whole).max, dtype=whole).view(dtype)


def mask_of(batch, keys):
    """Some keys dropped; the last entry of the batch keeps none."""
    keep = torch.from_numpy(np.random.default_rng(5).random((batch, keys)) < 0.7)
    keep[-1] = False
    return keep


def expected(op, *tensors, **options):
    options = {key: double(value) for key, value in options.items()}
    return getattr(oracle_alibi, op)(*map(double, tensors), **options)


def assert_close(actual, right, tolerance):
    right = np.asarray(right)
    assert tuple(actual.shape) == right.shape
    rtol, atol = tolerance[name(actual.dtype)]
    np.testing.assert_allclose(double(actual), right, rtol=rtol, atol=atol)


def softmax_by_bias(scores, bias, scale=1.0):
    """The same attention as torch alone writes it."""
    return torch.softmax(scores * scale + bias, -1)


def causal_mask(q_len, k_len, dtype=torch.float32):
    return torch.full((q_len, k_len), -float("inf"), dtype=dtype).triu(k_len - q_len + 1)


def large(dtype, causal, grad):
    """Results, and gradients if asked, of calls large enough to be shared out among threads."""
    scores, slopes = scores_of((300, 250), dtype, 1), slopes_of()
    scores.requires_grad_(grad)
    slopes.requires_grad_(grad)
    outs = [
        posenc_ext.alibi_softmax(scores, slopes, scale=0.7, causal=causal),
        posenc_ext.add_alibi(scores, slopes, causal=causal),
        posenc_ext.alibi_bias(slopes, 300, 250, causal=causal, dtype=dtype),
    ]
    if grad:
        upstream = [uniform(y.shape, dtype, 3) for y in outs]
        outs += torch.autograd.grad(outs, (scores, slopes), upstream)
    return [y.detach() for y in outs]
