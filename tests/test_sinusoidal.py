"""Sinusoidal tables: golden numbers, the oracle, exactness, and the properties of the encoding."""

import mpmath
import numpy as np
import oracle_sinusoidal as oracle
import pytest
import torch
from rope_cases import DTYPES, assert_bits, double, name

import posenc_ext
from posenc_ext import sinusoidal_table, sinusoidal_table_2d, timestep_embedding

DIMS = (0, 1, 2, 3, 5, 8, 29, 64, 127, 128)
POSITIONS = {
    "int": torch.tensor([0, 1, 2, 63, 64, 65, 1000, 5000]),
    "int32_negative": torch.tensor([-1, -64, -65, 7], dtype=torch.int32),
    "fractional": torch.tensor([0.5, -2.25, 999.5], dtype=torch.float64),
    "float16": torch.tensor([0.5, 3.0, -7.25], dtype=torch.float16),
    "strided": torch.arange(24).view(4, 6)[:, ::2].t(),
    "unsorted": torch.tensor([[9, 3], [3, 700]]),
    "none": torch.zeros(0, 3, dtype=torch.int64),
}
# Angles up to 5000 radians, rounded in the oracle's double: 5000 * 2^-53. Then one rounding.
ATOL = {"float64": 1e-12, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}
every_convention = pytest.mark.parametrize("convention", oracle.CONVENTIONS)

GOLDEN = {
    "sinusoidal/interleaved_d8": lambda t: sinusoidal_table(torch.tensor([0, 1, 2, 5000]), 8, **t),
    "sinusoidal/concat_t2t_d8": lambda t: sinusoidal_table(4, 8, convention="tensor2tensor", **t),
    "sinusoidal/concat_marian_d8": lambda t: sinusoidal_table(3, 8, convention="concatenated", **t),
    "sinusoidal/concat_marian_d7": lambda t: sinusoidal_table(
        torch.tensor([1]), 7, convention="concatenated", **t
    ),
    "timestep/d8_flip0_shift1": lambda t: timestep_embedding(torch.tensor([0, 1, 999.5]), 8, **t),
    "timestep/d8_flip1_shift0": lambda t: timestep_embedding(
        torch.tensor([1, 999.5]), 8, flip_sin_to_cos=True, downscale_freq_shift=0, **t
    ),
    "timestep/d7_flip0_shift1": lambda t: timestep_embedding(torch.tensor([1]), 7, **t),
    "timestep/d8_flip1_shift0_scale1000": lambda t: timestep_embedding(
        torch.tensor([0.25]), 8, flip_sin_to_cos=True, downscale_freq_shift=0, scale=1000, **t
    ),
    "sincos2d/mae_w_first_2x3_d8": lambda t: sinusoidal_table_2d(2, 3, 8, **t),
    "sincos2d/h_first_2x3_d8": lambda t: sinusoidal_table_2d(2, 3, 8, first="height", **t),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, golden):
    right = np.array(golden[case]["expected"])
    exact = GOLDEN[case]({"dtype": torch.float64})
    np.testing.assert_allclose(double(exact), right, rtol=1e-13, atol=1e-13)
    single = GOLDEN[case]({"dtype": torch.float32})
    assert_bits(single, torch.from_numpy(right.astype(np.float32)))


def test_every_golden_case_is_here(golden):
    ours = ("sinusoidal/", "timestep/", "sincos2d/")
    assert set(GOLDEN) == {case for case in golden if case.startswith(ours)}


@every_convention
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_oracle(dtype, dim, convention):
    for positions in POSITIONS.values():
        table = sinusoidal_table(positions, dim, convention=convention, base=500.0, dtype=dtype)
        assert table.dtype == dtype
        assert table.is_contiguous()
        right = oracle.sinusoidal_table(double(positions), dim, convention=convention, base=500.0)
        assert tuple(table.shape) == right.shape
        np.testing.assert_allclose(double(table), right, rtol=0, atol=ATOL[name(dtype)])


def test_an_int_counts_from_zero():
    assert_bits(sinusoidal_table(70, 6), sinusoidal_table(torch.arange(70), 6))
    assert sinusoidal_table(0, 6).shape == (0, 6)
    assert sinusoidal_table(3, 6, device="meta").device.type == "meta"


def test_known_odd_width():
    right = [0.84147098, 0.54030231, 0.02511622, 0.99968454, 0.00063096]
    np.testing.assert_allclose(double(sinusoidal_table(2, 5))[1], right, atol=1e-7)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("convention", ["tensor2tensor", "fairseq", "musicgen"])
def test_one_frequency_is_no_division_by_zero(convention, dim):
    row = double(sinusoidal_table(torch.tensor([2]), dim, convention=convention))[0]
    pair = [np.sin(2), np.cos(2)] if convention != "musicgen" else [np.cos(2), np.sin(2)]
    np.testing.assert_allclose(row, [*pair, 0.0][:dim], atol=1e-7)
    if convention == "fairseq":
        assert_bits(timestep_embedding(torch.tensor([2]), dim)[0], torch.tensor(row).float())


@pytest.mark.parametrize("dim", [5, 8, 128])
@every_convention
def test_power_and_exponential_form_agree_to_rounding(convention, dim):
    power, exponential = (
        oracle.frequencies(dim, convention=convention, exponential=e) for e in (False, True)
    )
    np.testing.assert_allclose(power, exponential, rtol=4e-15)  # ln(1e4) * a few 2^-53
    n = len(power)
    like = torch.zeros(0)
    denominator = (dim // 2 if n == dim // 2 and dim % 2 else dim / 2) - (
        oracle.CONVENTIONS[convention][2]
    )
    ours = torch.ops.posenc_ext.sinusoidal_frequencies(like, n, 10000.0, float(denominator))
    np.testing.assert_allclose(double(ours), power, rtol=4e-16)


@pytest.mark.parametrize("position", [1, 77, 131071, 10**7, 2**31 - 1, -(2**30) - 1])
def test_large_positions_are_exact(position):
    """Within 0.51 ulp of sin and cos of the position times the float64 frequency."""
    omega = torch.ops.posenc_ext.sinusoidal_frequencies(torch.zeros(0), 8, 10000.0, 8.0)
    table = sinusoidal_table(torch.tensor([position]), 16)[0]
    with mpmath.workprec(200):
        for i, w in enumerate(omega.tolist()):
            angle = mpmath.mpf(position) * mpmath.mpf(w)
            for got, wave in ((table[2 * i], mpmath.sin), (table[2 * i + 1], mpmath.cos)):
                right = wave(angle)
                ulp = mpmath.mpf(2) ** (mpmath.floor(mpmath.log(abs(right), 2)) - 23)
                assert abs(mpmath.mpf(got.item()) - right) <= max(0.51 * ulp, 2.0**-50)


@pytest.mark.parametrize("k", [1, 5, -3, 100])
def test_a_shift_is_a_rotation(k):
    """PE(p + k) = M_k PE(p), with M_k = [[cos, sin], [-sin, cos]] of k times the frequency."""
    p = torch.arange(0, 2000, 37)
    here, there = (sinusoidal_table(q, 32, dtype=torch.float64) for q in (p, p + k))
    shift = sinusoidal_table(torch.tensor([k]), 32, dtype=torch.float64)[0]
    s, c = shift[0::2], shift[1::2]
    sin = here[:, 0::2] * c + here[:, 1::2] * s
    cos = here[:, 1::2] * c - here[:, 0::2] * s
    torch.testing.assert_close(torch.stack((sin, cos), -1).flatten(1), there, rtol=0, atol=1e-12)


def test_norm_and_products():
    table = sinusoidal_table(300, 64, dtype=torch.float64)
    torch.testing.assert_close((table**2).sum(-1), torch.full((300,), 32.0, dtype=torch.float64))
    products = table @ table.T
    torch.testing.assert_close(products[5:, 5:], products[:-5, :-5])  # p - q alone counts


def test_padding_row():
    table = sinusoidal_table(6, 8, convention="fairseq", padding_idx=1)
    assert not table[1].any()
    keep = [0, 2, 3, 4, 5]
    assert_bits(table[keep], sinusoidal_table(6, 8, convention="fairseq")[keep])
    positions = torch.tensor([[2, 3, 1], [2, 1, 1]])
    right = oracle.sinusoidal_table(positions.numpy(), 7, convention="fairseq", padding_idx=1)
    table = sinusoidal_table(positions, 7, convention="fairseq", padding_idx=1)
    np.testing.assert_allclose(double(table), right, atol=2**-24)


def test_timesteps_are_conventions():
    t = torch.tensor([0.0, 3.5, 999.0])
    for dim in (2, 7, 8):
        assert_bits(timestep_embedding(t, dim), sinusoidal_table(t, dim, convention="fairseq"))
        flipped = timestep_embedding(t, dim, flip_sin_to_cos=True, downscale_freq_shift=0)
        assert_bits(flipped, sinusoidal_table(t, dim, convention="diffusion"))
    half = timestep_embedding(t, 8, downscale_freq_shift=0.5, max_period=100.0, dtype=torch.float64)
    omega = np.array([100.0 ** (-i / 3.5) for i in range(4)])
    angle = double(t)[:, None] * omega
    np.testing.assert_allclose(double(half), np.hstack([np.sin(angle), np.cos(angle)]), atol=1e-12)


@pytest.mark.parametrize("first", ["width", "height"])
@pytest.mark.parametrize("size", [(2, 3, 8), (3, 2, 16), (1, 4, 4), (0, 3, 8), (2, 2, 0)])
def test_2d(size, first):
    right = oracle.sinusoidal_table_2d(*size, first=first)
    table = sinusoidal_table_2d(*size, first=first)
    np.testing.assert_allclose(double(table), right, atol=2**-24)
    tokens = sinusoidal_table_2d(*size, first=first, extra_tokens=2)
    assert not tokens[:2].any()
    assert_bits(tokens[2:], table)


def test_2d_coordinates():
    """Scaled coordinates, as diffusers has them."""
    y, x = torch.arange(4) / 2.0, torch.arange(6) / 3.0
    table = sinusoidal_table_2d(y, x, 8)
    one = sinusoidal_table(x[4:5], 4, convention="concatenated")
    other = sinusoidal_table(y[3:4], 4, convention="concatenated")
    assert_bits(table[3 * 6 + 4], torch.cat((one, other), -1)[0])


def test_autocast_changes_nothing():
    positions = torch.arange(65536, 65600)
    right = sinusoidal_table(positions, 64), timestep_embedding(positions, 64, scale=0.5)
    x = torch.randn(64, 64)
    summed = posenc_ext.add_sinusoidal(x, scale=8.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_bits(sinusoidal_table(positions, 64), right[0])
        assert_bits(timestep_embedding(positions, 64, scale=0.5), right[1])
        assert_bits(posenc_ext.add_sinusoidal(x, scale=8.0), summed)


@pytest.mark.parametrize("t", [7, 0, 0.5, 999.0])
def test_a_number_is_one_timestep(t):
    """As in a sampling loop; not 0 .. t - 1."""
    row = timestep_embedding(t, 8, scale=2.0)
    assert_bits(row, timestep_embedding(torch.tensor([t], dtype=torch.float64), 8, scale=2.0)[0])
