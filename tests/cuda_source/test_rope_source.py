"""The rotation kernel against the CPU op, bit for bit."""

import pytest
import torch
from guarded import far_apart, guarded
from rope_cases import DTYPES, LAYOUTS, VIEWS, assert_bits, name, shape, table, uniform
from source_calls import both_pairings, call, check, each_dtype, each_pairing, source

ROTARY_DIMS = (2, 6, 16, 24, 30, 42, 48, 64, 66, 72, 80, 96, 112, 128, 160, 256)
BEYOND_INT32 = 2**31 + 16


@each_pairing
@each_dtype
@pytest.mark.parametrize("rotary", ROTARY_DIMS)
def test_every_rotary_dim_and_tail(rotary, dtype, pairing):
    cos, sin = table(rotary // 2)
    for tail in (0, 3, 16):
        x = uniform(shape("bshd", d=rotary + tail), dtype)
        for inverse in (False, True):
            check("rope", x, cos, sin, **pairing, inverse=inverse, offset=1)
    own = table(rotary // 2, dtype)
    check("apply_rope", x, x[:, :, :1], *own, **pairing)


@both_pairings
@each_dtype
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_view(layout, view, dtype, interleaved):
    for rotary in (32, 30):
        x = VIEWS[view](uniform(shape(layout), dtype))
        check("rope", x, *table(rotary // 2), layout=layout, interleaved=interleaved)


@pytest.mark.parametrize("kind", ["float32", "own", "strided", "per_token", "shared_per_token"])
@each_dtype
def test_tables(dtype, kind):
    cos, sin = table(16, dtype if kind == "own" else torch.float32)
    if kind == "strided":
        cos, sin = (torch.stack([t, t + 1], -1)[..., 0] for t in (cos, sin))
        assert cos.stride(-1) == 2
    if "per_token" in kind:
        batch = 1 if "shared" in kind else 2
        cos, sin = (uniform((batch, 5, 16), seed=i) for i in (1, 2))
    check("rope", uniform(shape("bshd"), dtype), cos, sin, inverse=True)


@both_pairings
@pytest.mark.parametrize(
    ("q", "k"),
    [
        ((2, 5, 4, 40), (2, 5, 1, 40)),
        ((2, 1, 4, 32), (2, 9, 2, 32)),
        ((2, 9, 4, 32), (2, 3, 2, 32)),
        ((2, 9, 4, 32), (2, 0, 2, 32)),
        ((2, 9, 0, 40), (2, 9, 3, 40)),
        ((2, 3, 4100, 8), (2, 3, 5, 8)),
        ((1, 2, 3, 4100), (1, 2, 1, 4100)),
    ],
    ids=str,
)
def test_q_and_k_in_one_launch(q, k, interleaved):
    q, k = uniform(q), uniform(k, seed=1)
    for pairs in (2, q.shape[-1] // 2):
        offsets = torch.tensor([3, 40])[: q.shape[0]]
        check("apply_rope", q, k, *table(pairs), interleaved=interleaved, offsets=offsets)
        check("apply_rope", q.half(), k.half(), *table(pairs), interleaved=interleaved)


@each_pairing
@each_dtype
@pytest.mark.parametrize("width", [32, 40, 35])
def test_in_place_and_out(width, dtype, pairing):
    x, (cos, sin) = uniform(shape("bshd", d=width), dtype), table(16)
    options = {**pairing, "offset": 2}
    right = call(torch.ops.posenc_ext, "rope", x, cos, sin, **options)
    y, out = x.clone(), torch.empty_like(x)
    version = y._version
    source("rope_", y, cos, sin, **options)
    source("rope_out", x, cos, sin, **options, out=out)
    assert_bits(y, right)
    assert_bits(out, right)
    assert y._version > version
    same = x.clone()
    source("rope_out", same, cos, sin, **options, out=same)
    assert_bits(same, right)
    q, k = x.clone(), x[:, :, :1].clone()
    source("apply_rope_", q, k, cos, sin, **options)
    assert_bits(q, right)
    assert_bits(k, right[:, :, :1])


@each_dtype
def test_only_out_is_not_aligned(dtype):
    """Sixteen bytes at a time may be read, but not written: at a place that a GPU would refuse."""
    x, (cos, sin) = uniform(shape("bshd", d=32), dtype), table(16)
    right = torch.ops.posenc_ext.rope(x, cos, sin, None, None, None, 0, "bshd", False, False, False)
    out = torch.zeros(x.numel() + 1, dtype=dtype)[1:].view(x.shape)
    assert x.data_ptr() % 16 == 0 != out.data_ptr() % 16
    source("rope_out", x, cos, sin, out=out)
    assert_bits(out, right)


@pytest.mark.parametrize(
    ("size", "pairs"),
    [
        ((70_000, 1, 1, 8), 4),
        ((1, 70_000, 1, 8), 3),
        ((1, 1, 70_000, 8), 4),
        ((1, 1, 1, 140_002), 70_001),
        ((1, 1, 2, 70_008), 4),
        ((2, 66_000, 2, 2), 1),
    ],
    ids=str,
)
def test_more_than_65535_in_an_axis(size, pairs):
    x = uniform(size)
    check("rope", x, *table(pairs, length=size[1]))
    if size[-1] < 10:
        check("apply_rope", x.bfloat16(), x.bfloat16(), *table(pairs, length=size[1]))


@both_pairings
@pytest.mark.parametrize("gap", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_offsets_beyond_int32(axis, gap, interleaved):
    x, options = uniform((2, 2, 2, 48), torch.bfloat16), {"interleaved": interleaved}
    far = far_apart(x, axis, BEYOND_INT32 + gap)
    right = check("rope", x, *table(16), **options)
    assert_bits(source("rope", far, *table(16), **options), right)
    source("rope_", far, *table(16), **options)
    assert_bits(far.clone(), right)


def test_offsets_beyond_int32_within_a_head_and_in_the_tables():
    x, (cos, sin) = uniform((1, 3, 1, 5), torch.float16), table(2, torch.float16, length=3)
    right = check("rope", x, cos, sin)
    assert_bits(source("rope", far_apart(x, 3, 2**30 + 3), cos, sin), right)
    for axis, stride in ((0, 2**30 + 3), (1, BEYOND_INT32)):
        far = (far_apart(t, axis, stride) for t in (cos, sin))
        assert_bits(source("rope", x, *far), right)
    positions = far_apart(torch.tensor([[0, 1, 2]], dtype=torch.int32), 1, 2**30 + 1)
    assert_bits(source("rope", x, cos, sin, positions=positions), right)


@pytest.mark.parametrize(
    "size", [(0, 5, 4, 8), (2, 0, 4, 8), (2, 5, 0, 8), (2, 5, 4, 0), (2, 5, 4, 3)], ids=str
)
def test_empty_tensors_and_no_pairs(size):
    x = uniform(size)
    for length in (5, 0) if size[1] == 0 else (5,):
        tables = table(min(size[-1] // 2, 4), length=length)
        check("rope", x, *tables)
        check("apply_rope", x, x, *tables)
        source("rope_", x.clone(), *tables)


@each_pairing
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("rotary", [16, 14, 6])
@pytest.mark.parametrize("tail", [0, 3])
@each_dtype
def test_nothing_outside_the_tensors_is_touched(dtype, tail, rotary, at_end, pairing):
    tensors = [uniform((2, 3, 2, rotary + tail), dtype), *table(rotary // 2, length=3)]
    x, cos, sin = (guarded(t, at_end) for t in tensors)
    positions = guarded(torch.tensor([2, 0, 1]), at_end)
    options = {**pairing, "positions": positions}
    right = check("rope", x, cos, sin, **options)
    out = guarded(torch.zeros_like(right), at_end)
    source("rope_out", x, cos, sin, out=out, **options)
    assert_bits(out, right)
    source("rope_", x, cos, sin, **options)
    assert_bits(x, right)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("positions", [False, True])
def test_bytes_moved_are_the_fewest_possible(dtype, positions):
    q, k = uniform((2, 40, 8, 80), dtype), uniform((2, 40, 2, 80), dtype)
    cos, sin = table(32)
    index = torch.arange(40) if positions else None
    torch.ops.posenc_cuda_source.traffic()
    source("apply_rope", q, k, cos, sin, positions=index)
    # Two threads share the ten heads of some pairs: each reads their part of the table row.
    threads = 32 // (16 // q.itemsize)
    rows = 2 * 40 * (2 * cos[0].nbytes + (8 * threads if positions else 0))
    assert torch.ops.posenc_cuda_source.traffic() == (
        q.nbytes + k.nbytes + 2 * rows,
        q.nbytes + k.nbytes,
    )
