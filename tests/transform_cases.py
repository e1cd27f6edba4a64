"""What torch.func.vmap means: a call for each sample."""

import torch
from rope_cases import assert_bits, uniform
from torch.func import vmap

V = 3


def per_sample(function, dims, tensors):
    """What vmap means: a call for each sample, stacked."""
    samples = []
    for i in range(V):
        picked = [t if d is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True)]
        result = function(*picked)
        samples.append(result if isinstance(result, tuple) else (result,))
    return [torch.stack(each) for each in zip(*samples, strict=True)]


def batched(t, dim, seed):
    """V tensors like t, along this axis."""
    if dim is None:
        return t
    each = [t] + [uniform(t.shape, t.dtype, seed + i) for i in range(1, V)]
    return torch.stack(each, dim)


def assert_vmap(function, tensors, dims):
    result = vmap(function, in_dims=dims)(*tensors)
    result = result if isinstance(result, tuple) else (result,)
    for a, b in zip(result, per_sample(function, dims, tensors), strict=True):
        assert_bits(a, b)
