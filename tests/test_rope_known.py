"""RoPE faults reported elsewhere that no other test holds: docs/known_failures.md has them all."""

import math

import numpy as np
import pytest
import torch
from rope_cases import assert_bits, double, full_width, table, uniform

import posenc_ext
from posenc_ext import RotaryPositionalEmbedding, rope, rope_frequencies, rope_table

F64 = torch.float64
X = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=F64)
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])


# Pair layouts, negative positions, widths.


@pytest.mark.parametrize(
    ("interleaved", "position", "right"),
    [
        (False, 1, [-1.98411065, 1.95990067, 2.4623779, 4.01979967]),
        (True, 1, [-1.14263966, 1.9220756, 2.95985067, 4.0297995]),
        (False, -1, [3.0647153, 2.0398993, 0.7794359, 3.9798003]),
    ],
    ids=["half", "interleaved", "half_before_zero"],
)
def test_pairs_and_signs(interleaved, position, right):
    cos, sin = rope_table(torch.tensor([position]), rope_frequencies(4).inv_freq, dtype=F64)
    y = rope(X, cos, sin, layout="sd", interleaved=interleaved)
    np.testing.assert_allclose(double(y)[0], right, rtol=0, atol=1e-7)
    cos, sin = rope_table(torch.tensor([-position]), rope_frequencies(4).inv_freq, dtype=F64)
    y = rope(X, cos, sin, layout="sd", interleaved=interleaved, inverse=True)
    np.testing.assert_allclose(double(y)[0], right, rtol=0, atol=1e-7)


@both_pairings
def test_a_table_of_full_width_is_refused_and_its_first_half_is_the_table(interleaved):
    x, (cos, sin) = uniform((2, 5, 3, 16)), table(8)
    wide = [full_width(t, interleaved) for t in (cos, sin)]
    with pytest.raises(ValueError, match=r"cos must have shape \[L, R/2\].*\[64, 16\]"):
        rope(x, *wide, interleaved=interleaved)
    halves = [t[..., ::2] if interleaved else t[..., :8] for t in wide]
    right = rope(x, cos, sin, interleaved=interleaved)
    assert_bits(rope(x, *halves, interleaved=interleaved), right)


@both_pairings
@pytest.mark.parametrize("inplace", [False, True])
def test_partial_rotation_has_its_own_exponent_and_pairs(inplace, interleaved):
    """256 channels, 64 of them rotated: neither the exponent nor the pairs know of the 256."""
    inv_freq = rope_frequencies(64, 1e7).inv_freq
    assert inv_freq[1].item() == pytest.approx(0.60429639, abs=1e-8)  # 0.88168307 is that of 256
    positions = torch.tensor([700, 1024, 2355])
    x = uniform((1, 3, 2, 256), F64)
    before = x.clone().requires_grad_()
    cos, sin = rope_table(positions, inv_freq, dtype=F64)
    tables = cos[None], sin[None]
    y = rope(before.clone(), *tables, interleaved=interleaved, inplace=inplace)
    u, v = (x[..., 0:64:2], x[..., 1:64:2]) if interleaved else (x[..., :32], x[..., 32:64])
    angle = (positions[:, None, None] * 1e7 ** (-torch.arange(32, dtype=F64) / 32)).expand(3, 2, 32)
    turned = torch.polar(torch.ones_like(angle), angle) * torch.complex(u, v)
    got = (y[..., 0:64:2], y[..., 1:64:2]) if interleaved else (y[..., :32], y[..., 32:64])
    torch.testing.assert_close(torch.complex(*got), turned, rtol=0, atol=1e-11)
    assert_bits(y[..., 64:], x[..., 64:])
    g = uniform(x.shape, F64, 1)
    (grad,) = torch.autograd.grad(y, before, g)
    assert_bits(grad[..., 64:], g[..., 64:])


# Positions.


@pytest.mark.parametrize("fill", [-1, 1])
@both_pairings
def test_left_padding(interleaved, fill):
    """cumsum(mask) - 1 gives -1 at pads; Hugging Face fills in 1. Real tokens must not notice."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, fill)
    x = uniform((2, 5, 3, 16))
    module = RotaryPositionalEmbedding(16, interleaved=interleaved)
    y = module(x, positions=positions)
    assert_bits(y[:1, 2:], module(x[:1, 2:]))
    assert_bits(y[1:], module(x[1:]))
    assert y.isfinite().all()
    cos, sin = rope_table(5, rope_frequencies(16).inv_freq)
    if fill < 0:  # a table has no row before its first
        with pytest.raises(IndexError, match=r"positions must be rows of the table.* got -1"):
            rope(x, cos, sin, positions=positions, interleaved=interleaved)
    else:
        assert_bits(rope(x, cos, sin, positions=positions, interleaved=interleaved), y)


@both_pairings
def test_empty_sequences_among_packed_ones(interleaved):
    cos, sin = table(4)
    x = uniform((3, 4, 8)).requires_grad_()
    right = rope(x, cos, sin, layout="thd", interleaved=interleaved)
    for bounds in ([0, 3], [0, 0, 3], [0, 3, 3], [0, 0, 0, 3, 3]):
        options = {"layout": "thd", "cu_seqlens": torch.tensor(bounds), "interleaved": interleaved}
        y = rope(x, cos, sin, **options)
        assert_bits(y, right)
        assert_bits(*(torch.autograd.grad(t.sum(), x, retain_graph=True)[0] for t in (y, right)))


# Precision.

FAR = (40, 2000, 16000, 131071, 262143, 1048575)


def test_tables_do_not_drift_with_the_position():
    """Angles rounded to float32 are off by up to 0.025 at the last of these; fast sines by more."""
    inv_freq = rope_frequencies(128).inv_freq
    angle = np.array(FAR)[:, None] * double(inv_freq)  # off by 1e6 * 2^-53
    cos, sin = rope_table(torch.tensor(FAR), inv_freq)
    for got, right in ((cos, np.cos(angle)), (sin, np.sin(angle))):
        np.testing.assert_allclose(double(got), right, rtol=0, atol=6e-8)
    for row, c, s in ((3, -0.81798350, -0.57524168), (5, 0.78804224, -0.61562117)):
        assert cos[row, 0].item() == pytest.approx(c, abs=6e-8)
        assert sin[row, 0].item() == pytest.approx(s, abs=6e-8)


@pytest.mark.parametrize("position", [131071, 262143, 1048575])
def test_float32_angles_are_off_by_no_more_than_their_rounding(position):
    """What parity with Hugging Face costs: float32 frequencies times a float32 position."""
    positions = torch.tensor([position])
    right = rope_table(positions, rope_frequencies(128).inv_freq)
    inv_freq = rope_frequencies(128, precision="float32").inv_freq
    parity = rope_table(positions, inv_freq, precision="float32")
    error = max((a - b).abs().max().item() for a, b in zip(parity, right, strict=True))
    assert 1e-3 < error < position * 2**-23


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16], ids=str)
def test_no_two_positions_share_their_angles(cast):
    """A bfloat16 counter knows 769 of these 4096 positions, and 2 of the 512 after 65536."""
    module = RotaryPositionalEmbedding(128).to(cast)
    for positions in (torch.arange(4096), 65536 + torch.arange(512)):
        right = module.table(positions)
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(cast)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                tables = RotaryPositionalEmbedding(128).table(positions, dtype=torch.float32)
        finally:
            torch.set_default_dtype(before)
        for mine, other in zip(right, tables, strict=True):
            assert mine.dtype == torch.float32
            assert_bits(mine, other)
        assert len(torch.cat(right, -1).unique(dim=0)) == len(positions)
    assert module.table(torch.tensor([15962]))[0][0, 0].item() == pytest.approx(
        -0.9080159, abs=1e-7
    )


# Frequencies.

YARN = {"rope_type": "yarn", "original_max_position_embeddings": 4096, "factor": 32.0}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048}
PUBLISHED = {
    "default": (64, 1e4, None, {1: 0.74989421, 2: 0.56234133}),
    "llama3_factor_32": (64, 5e5, LLAMA3 | {"factor": 32.0}, {
        14: 0.003211446, 15: 0.00129054793, 16: 0.00042955680, 17: 0.0000970828780,
        18: 1.94616382e-5, 31: 9.41830673e-8}),
    "yarn_truncated": (64, 15e4, YARN, {9: 0.0316207523, 10: 0.0194509675, 17: 0.000227947796}),
    "yarn_not_truncated": (64, 15e4, YARN | {"truncate": False}, {
        9: 0.0317056962, 10: 0.0193350011, 17: 0.000129318701}),
    "yarn_base_1e6": (128, 1e6, YARN | {"factor": 4.0, "original_max_position_embeddings": 32768}, {
        24: 0.00537532149, 30: 0.00106436098}),
    "dynamic": (64, 1e4, DYNAMIC, {1: 0.72378402, 31: 4.44507e-5}),
}  # fmt: skip


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_frequencies(case):
    dim, base, scaling, right = PUBLISHED[case]
    found = rope_frequencies(dim, base, scaling, seq_len=4096).inv_freq
    for index, value in right.items():
        assert found[index].item() == pytest.approx(value, rel=2e-6), index


def test_llama3_bands():
    plain = rope_frequencies(128, 5e5).inv_freq
    found = rope_frequencies(128, 5e5, LLAMA3 | {"factor": 8.0}).inv_freq
    kept, divided = found == plain, found == plain / 8
    assert kept.nonzero().flatten().tolist() == list(range(29))
    assert divided.nonzero().flatten().tolist() == list(range(35, 64))


@pytest.mark.parametrize("factor", [4.0, 32.0, 128.0])
@both_pairings
def test_the_attention_factor_scales_rotated_channels_once(interleaved, factor):
    keys = YARN | {"factor": factor}
    for more, right in (({}, 0.1 * math.log(factor) + 1), ({"attention_factor": 1.2079}, 1.2079)):
        module = RotaryPositionalEmbedding(32, scaling=keys | more, interleaved=interleaved)
        assert module.attention_factor == pytest.approx(right, rel=1e-15)
        x = uniform((1, 7, 2, 40), F64)
        y = module(x)
        norm, before = (t[..., :32].norm(dim=-1) for t in (y, x))
        torch.testing.assert_close(norm, right * before, rtol=1e-14, atol=0)
        assert_bits(y[..., 32:], x[..., 32:])


# Devices.


@pytest.mark.parametrize("argument", ["cos", "sin", "positions", "offset", "k"])
def test_tensors_of_two_devices_are_refused_by_both_names(argument):
    cos, sin = table(8)
    call = {"q": uniform((2, 5, 3, 16)), "k": uniform((2, 5, 1, 16)), "cos": cos, "sin": sin}
    if argument in ("positions", "offset"):
        call[argument] = torch.zeros((2, 5) if argument == "positions" else 2, dtype=torch.int64)
    call[argument] = call[argument].to("meta")
    with pytest.raises(ValueError, match=rf"posenc_ext\.apply_rope: {argument} must .*cpu.*meta"):
        posenc_ext.apply_rope(**call)
