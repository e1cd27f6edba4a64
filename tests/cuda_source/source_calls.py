"""Calls of one op in both libraries: the CPU kernels, and the CUDA source on the CPU."""

import pytest
import torch
from rope_cases import DTYPES, assert_bits, name

each_pairing = pytest.mark.parametrize(
    "pairing",
    [{"interleaved": x, "interleaved_out": out} for x in (False, True) for out in (False, True)],
    ids=["half", "half_to_interleaved", "interleaved_to_half", "interleaved"],
)
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def call(
    library,
    op,
    *tensors,
    positions=None,
    offsets=None,
    cu_seqlens=None,
    offset=0,
    layout="bshd",
    interleaved=False,
    interleaved_out=None,
    inverse=False,
    **more,
):
    if interleaved_out is None:
        interleaved_out = interleaved
    options = (positions, offsets, cu_seqlens, offset, layout, interleaved, inverse)
    return getattr(library, op)(*tensors, *options, interleaved_out, **more)


def source(op, *tensors, **options):
    """A rope op of the CUDA source."""
    return call(torch.ops.posenc_cuda_source, op, *tensors, **options)


def check(op, *tensors, **options):
    """Hold a rope op of the CUDA source to the CPU op, in bits and strides; return the result."""
    right = call(torch.ops.posenc_ext, op, *tensors, **options)
    actual = source(op, *tensors, **options)
    single = isinstance(right, torch.Tensor)
    for a, r in zip([actual] if single else actual, [right] if single else right, strict=True):
        assert a.stride() == r.stride()
        assert_bits(a, r)
    return right
