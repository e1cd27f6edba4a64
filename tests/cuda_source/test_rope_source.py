"""The rotation kernel against the CPU op, bit for bit."""

import pytest
import torch
from rope_cases import DTYPES, LAYOUTS, VIEWS, assert_bits, name, shape, table, uniform

ROTARY_DIMS = (2, 6, 16, 24, 30, 42, 48, 64, 66, 72, 80, 96, 112, 128, 160, 256)
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def both(
    op,
    *tensors,
    positions=None,
    offsets=None,
    cu_seqlens=None,
    offset=0,
    layout="bshd",
    interleaved=False,
    inverse=False,
):
    """What the CPU op and the CUDA source give for the same arguments."""
    options = (positions, offsets, cu_seqlens, offset, layout, interleaved, inverse)
    return [
        getattr(library, op)(*tensors, *options)
        for library in (torch.ops.posenc_ext, torch.ops.posenc_cuda_source)
    ]


def check(op, *tensors, **options):
    right, actual = both(op, *tensors, **options)
    for a, r in zip(
        *((t,) if isinstance(t, torch.Tensor) else t for t in (actual, right)), strict=True
    ):
        assert a.stride() == r.stride()
        assert_bits(a, r)


@both_pairings
@each_dtype
@pytest.mark.parametrize("rotary", ROTARY_DIMS)
def test_every_rotary_dim_and_tail(rotary, dtype, interleaved):
    cos, sin = table(rotary // 2)
    for tail in (0, 3, 16):
        x = uniform(shape("bshd", d=rotary + tail), dtype)
        for inverse in (False, True):
            check("rope", x, cos, sin, interleaved=interleaved, inverse=inverse, offset=1)
    own = table(rotary // 2, dtype)
    check("apply_rope", x, x[:, :, :1], *own, interleaved=interleaved)


@both_pairings
@each_dtype
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_view(layout, view, dtype, interleaved):
    for rotary in (32, 30):
        x = VIEWS[view](uniform(shape(layout), dtype))
        check("rope", x, *table(rotary // 2), layout=layout, interleaved=interleaved)
