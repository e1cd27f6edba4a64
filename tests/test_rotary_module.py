"""RotaryPositionalEmbedding: what it computes, and how its table grows."""

import math

import pytest
import torch
from rope_cases import DTYPES, assert_bits, name, shape, uniform

from posenc_ext import RotaryPositionalEmbedding, apply_rope, rope, rope_frequencies, rope_table
from posenc_ext.scaling import DynamicNTK, LongRoPE

INV_FREQ = rope_frequencies(32).inv_freq


def make(**options):
    return RotaryPositionalEmbedding(32, **options)


def kept(module):
    """Rows of each table that is kept."""
    return sorted(len(entry.cos) for entry in module._tables._kept.values())


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sbhd", "thd", "hsd", "sd"])
def test_equals_apply_rope(layout, dtype, interleaved):
    q, k = uniform(shape(layout), dtype), uniform(shape(layout), dtype, seed=1)
    module = make(layout=layout, interleaved=interleaved)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = rope_table(100, INV_FREQ, dtype=wide)
    options = {"layout": layout, "interleaved": interleaved}
    for extra in ({}, {"offset": 7}, {"offset": 3, "inverse": True}):
        right = apply_rope(q, k, cos, sin, **options, **extra)
        for mine, wanted in zip(module(q, k, **extra), right, strict=True):
            assert_bits(mine, wanted)
        assert_bits(module(q, **extra), right[0])
    mine = q.clone()
    assert module(mine, inplace=True) is mine
    assert_bits(mine, module(q))


@pytest.mark.parametrize("seq_len", [None, 64])
def test_tensors_of_positions(seq_len):
    x = uniform((2, 5, 3, 40))
    module = make()
    cos, sin = rope_table(64, INV_FREQ)
    one, many = torch.tensor([9, 0, 3, 3, 63]), torch.randint(0, 64, (2, 5))
    for options in (
        {"positions": one},
        {"positions": many.int()},
        {"offset": torch.tensor(4)},
        {"offset": torch.tensor([4, 9], dtype=torch.int32)},
    ):
        assert_bits(module(x, seq_len=seq_len, **options), rope(x, cos, sin, **options))
    packed = make(layout="thd")
    x = uniform((9, 3, 40))
    bounds = torch.tensor([0, 4, 4, 9])
    for options in (
        {"cu_seqlens": bounds},
        {"cu_seqlens": bounds, "offset": 2},
        {"cu_seqlens": bounds.int(), "offset": torch.tensor([5, 6, 7])},
        {"cu_seqlens": bounds, "offset": torch.tensor(3)},
        {"positions": torch.arange(9)},
    ):
        right = rope(x, cos, sin, layout="thd", **options)
        assert_bits(packed(x, seq_len=seq_len, **options), right)


def test_positions_that_no_table_holds():
    x = uniform((1, 4, 2, 32), torch.float64)
    module = make()
    back = module(module(x, offset=3), positions=torch.tensor([-3, -4, -5, -6]))
    torch.testing.assert_close(back, x, rtol=0, atol=1e-14)
    half = torch.full((4,), 0.5)
    torch.testing.assert_close(
        module(module(x, positions=half), positions=half),
        module(x, positions=torch.ones(4)),
        rtol=0,
        atol=1e-14,
    )
    far = 2**31 - 5
    assert_bits(module(x, offset=far), module(x, positions=torch.arange(far, far + 4)))
    assert kept(module) == [7]
    with pytest.raises(IndexError):
        module(x, positions=torch.tensor([0, 1, 2, 8]), seq_len=8)


def test_table_for_many_layers():
    module = make()
    x = uniform((2, 5, 3, 32))
    positions = torch.randint(0, 50, (2, 5))
    cos, sin = module.table(positions)
    assert cos.shape == (2, 5, 16)
    assert_bits(rope(x, cos, sin), module(x, positions=positions))
    for dtype in DTYPES:
        for n in (7, torch.arange(7)):
            for mine, right in zip(
                module.table(n, dtype=dtype), rope_table(7, INV_FREQ, dtype=dtype), strict=True
            ):
                assert_bits(mine, right)


def test_growth():
    module = make()
    for length, rows in ((10, 10), (5, 10), (10, 10), (11, 20), (4096, 4096), (1, 4096)):
        module(torch.zeros(1, length, 1, 32))
        assert kept(module) == [rows]
    before = next(iter(module._tables._kept.values())).cos
    module(torch.zeros(1, 2, 1, 32), offset=4000)
    assert next(iter(module._tables._kept.values())).cos is before
    module.max_cached_rows = 5000
    module(torch.zeros(1, 1, 1, 32), offset=4096)
    assert kept(module) == [5000]
    module(torch.zeros(1, 1, 1, 32), offset=5000)
    assert kept(module) == [5000]
    module.reserve(6000)
    assert kept(module) == [6000]


NTK = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("scaling", [NTK, DynamicNTK(2.0, 16)])
def test_dynamic_ntk_leaves_no_trace(scaling):
    module = make(scaling=scaling)
    short, long = uniform((1, 12, 2, 32)), uniform((1, 40, 2, 32))
    plain = make()
    assert_bits(module(short), plain(short))
    for n in (40, 30, 40):
        inv_freq = rope_frequencies(32, scaling=scaling, seq_len=n).inv_freq
        assert not inv_freq.equal(INV_FREQ)
        assert_bits(module(long[:, :n]), rope(long[:, :n], *rope_table(n, inv_freq)))
        positions = torch.arange(n)
        assert_bits(module(long[:, :n], positions=positions), module(long[:, :n]))
        assert_bits(module(short), plain(short))
    # One token at position 29, as in a sequence of 30; and as in one of 40.
    assert_bits(module(long[:, 29:30], offset=29), module(long[:, :30])[:, 29:])
    pinned = module(long[:, 29:30], offset=29, seq_len=40)
    assert_bits(pinned, module(long)[:, 29:30])
    table = module.table(40)[0]
    assert_bits(
        table, rope_table(40, rope_frequencies(32, scaling=scaling, seq_len=40).inv_freq)[0]
    )
    packed = make(scaling=scaling, layout="thd")
    x = uniform((24, 2, 32))
    bounds = torch.tensor([0, 12, 24])  # two short sequences, not one long
    assert_bits(packed(x, cu_seqlens=bounds), make(layout="thd")(x, cu_seqlens=bounds))
    later = packed(x, cu_seqlens=bounds, offset=18)  # up to position 29
    assert_bits(later, packed(x, cu_seqlens=bounds, offset=18, seq_len=30))


def test_longrope_switches_and_can_be_pinned():
    short, long = [1.0] * 16, [4.0] * 16
    module = make(scaling=LongRoPE(short, long, 16, factor=4.0))
    x = uniform((1, 20, 2, 32))
    factor = module.attention_factor
    tables = {
        key: rope_table(20, INV_FREQ / divisor, attention_factor=factor)
        for key, divisor in (("short", 1), ("long", 4))
    }
    for n in (16, 17, 16, 20, 3):
        right = tables["long" if n > 16 else "short"]
        assert_bits(module(x[:, :n]), rope(x[:, :n], *right))
        assert_bits(module(x[:, :n], positions=torch.arange(n)), rope(x[:, :n], *right))
    assert_bits(module(x[:, :3], seq_len=20), rope(x[:, :3], *tables["long"]))
    pinned = make(scaling=LongRoPE(short, long, 16, factor=4.0, pin="long"))
    assert_bits(pinned(x[:, :3]), rope(x[:, :3], *tables["long"]))


def test_repr_shows_how_to_make_it():
    assert repr(make()) == "RotaryPositionalEmbedding(32, base=10000.0)"
    assert "interleaved=True, layout='thd'" in repr(make(interleaved=True, layout="thd"))


def test_multi_axis():
    module = RotaryPositionalEmbedding(16, sections=[2, 3, 3])
    x = uniform((2, 5, 3, 16))
    ids = torch.randint(0, 50, (3, 2, 5))
    right = rope(x, *rope_table(ids, rope_frequencies(16).inv_freq, sections=[2, 3, 3]))
    assert_bits(module(x, positions=ids), right)
    assert_bits(module(x, positions=ids, seq_len=50), right)
    text = torch.arange(5).expand(3, 5)
    assert_bits(module(x, positions=text), module(x))
    with pytest.raises(ValueError, match=r"positions must be a tensor \[3, ...\].*got \[2, 5\]"):
        module(x, positions=ids[0])


def test_refusals():
    x = torch.zeros(2, 5, 3, 40)
    module = make()
    where = "posenc_ext.RotaryPositionalEmbedding: "
    with pytest.raises(ValueError, match=where + "layout must be one of"):
        make(layout="bsd h")
    with pytest.raises(ValueError, match=where + "precision must be"):
        make(precision="double")
    with pytest.raises(ValueError, match="dim must be positive and even, got 31"):
        RotaryPositionalEmbedding(31)
    with pytest.raises(
        ValueError, match=where + r"positions must be \[S\] or \[B, S\] with B = 2 and S = 5, got"
    ):
        module(x, positions=torch.arange(4))
    with pytest.raises(TypeError, match=where + "positions must be a tensor, got list"):
        module(x, positions=[1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match=where + "offset must not be given with positions"):
        module(x, positions=torch.arange(5), offset=1)
    with pytest.raises(TypeError, match=where + "offset must be an int or a tensor, got float"):
        module(x, offset=1.5)
    with pytest.raises(ValueError, match=where + "seq_len must not be negative, got -1"):
        module.reserve(-1)
    with pytest.raises(ValueError, match=where + "positions must not be negative as an int"):
        module.table(-1)
    with pytest.raises(ValueError, match=where + r"offset must be between -2\^62 and 2\^62"):
        module(x, offset=2**62 + 1)
    for argument, call in (
        ("q", lambda: module([1.0])),
        ("k", lambda: module(x, "k")),
        ("seq_len", lambda: module(x, seq_len="5")),
        ("seq_len", lambda: module(x, positions=torch.arange(5), seq_len=5.0)),
        ("seq_len", lambda: module.frequencies("5")),
        ("seq_len", lambda: module.table(5, seq_len="5")),
    ):
        with pytest.raises(TypeError, match=where + argument + " must be .*, got "):
            call()
    with pytest.raises(ValueError, match=where + r"q must have 4 dimensions.*got \[40\]"):
        module(x[0, 0, 0])
    with pytest.raises(ValueError, match=where + "seq_len must not be negative, got -3"):
        module(x, seq_len=-3)
    dynamic = make(scaling=DynamicNTK(2.0, 4))
    with pytest.raises(ValueError, match=where + "positions must be finite .*, got nan"):
        dynamic(x, positions=torch.tensor([0.0, 1.0, math.nan, 2.0, 3.0]))
    with pytest.raises(ValueError, match=where + "q must have at least dim = 32 channels"):
        module(x[..., :16])
