"""Inputs for the tests of norm_rope, and how to compare it with its oracle."""

import itertools

import oracle_norm
import torch
from rope_cases import assert_close, double, uniform

import posenc_ext

NORMS, DIMS, ORDERS = ("rms", "layer", "l2"), ("head", "all"), ("norm_first", "rope_first")
RULES = list(itertools.product(NORMS, DIMS, ORDERS))


def rule(norm, norm_dims, order):
    return {"norm": norm, "norm_dims": norm_dims, "order": order}


def channels(x, layout, norm_dims):
    """How many channels the weights of x have."""
    return x.shape[-1] * (x.shape[layout.find("h")] if norm_dims == "all" and "h" in layout else 1)


def parameter(size, dtype=torch.float32, seed=5, device="cpu"):
    return uniform((size,), dtype, seed, device)


def check_norm_rope(x, weight, cos, sin=None, tolerance=oracle_norm.TOLERANCE, **options):
    """norm_rope(x) against the oracle; returns it. x must not change."""
    version = x._version
    y = posenc_ext.norm_rope(x, weight, cos, sin, **options)
    given = {k: double(v) for k, v in options.items()}
    right = oracle_norm.norm_rope(*map(double, (x, weight, cos, sin)), **given)
    assert y.dtype == x.dtype
    assert y.device == x.device
    assert x._version == version
    assert_close(y, right, tolerance)
    return y
