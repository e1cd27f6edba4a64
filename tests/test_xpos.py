"""xPos against golden numbers, and its two properties: relative scores, and no overflow."""

import math

import pytest
import torch
from rope_cases import assert_bits

from posenc_ext import rope, rope_frequencies, rope_table, xpos_table, xpos_zeta

INV_FREQ = rope_frequencies(64).inv_freq


def rotate(x, cos, sin, interleaved=False):
    return rope(x, cos, sin, layout="sd", interleaved=interleaved)


def test_golden(golden):
    zeta = torch.tensor(golden["xpos/zeta_d8"]["expected"], dtype=torch.float64)
    torch.testing.assert_close(xpos_zeta(8), zeta, rtol=1e-15, atol=0)
    case = golden["xpos/apply_L4"]
    given, right = case["inputs"], case["expected"]
    q, k = (torch.tensor(given[x], dtype=torch.float64).expand(4, 8) for x in "qk")
    table = xpos_table(
        given["length"],
        rope_frequencies(8).inv_freq,
        scale_base=given["scale_base"],
        dtype=torch.float64,
    )
    q = rotate(q, table.cos_q, table.sin_q, True)
    k = rotate(k, table.cos_k, table.sin_k, True)
    for actual, name in ((q[3], "q_pos3"), (k[0], "k_pos0"), (q[3] @ k[0], "score_q3_k0")):
        wanted = torch.tensor(right[name], dtype=torch.float64)
        torch.testing.assert_close(actual, wanted, rtol=1e-13, atol=1e-15)


def scores(m, n, dtype=torch.float32):
    """[len(m)] scores of one fixed q and k at positions m and n, with the centre of m's block."""
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(64, generator=g, dtype=torch.float64).to(dtype) for _ in range(2))
    centre = m // 4096 * 4096
    query = xpos_table(m, INV_FREQ, centre=centre, dtype=dtype)
    key = xpos_table(n, INV_FREQ, centre=centre, dtype=dtype)
    q = rotate(q.expand(len(m), 64).contiguous(), query.cos_q, query.sin_q)
    k = rotate(k.expand(len(n), 64).contiguous(), key.cos_k, key.sin_k)
    return (q * k).double().sum(-1)


@pytest.mark.parametrize("distance", [0, 1, 17, 512, 5000, 100_000])
def test_scores_depend_on_distance_alone(distance):
    m = torch.tensor([0, 1, 3, 511, 4095, 4096, 50_001, 99_999, 100_000]) + distance
    right = scores(m[:1], m[:1] - distance, torch.float64)
    actual = scores(m, m - distance)
    assert actual.isfinite().all()
    # A query late in its block has scales up to 3.5 ** 8 and its inverse; both round to 24 bits.
    torch.testing.assert_close(actual, right.expand(len(m)), rtol=2e-4, atol=2e-5)


def test_decay():
    """Each frequency is weighed by zeta ** (distance / scale_base)."""
    m = torch.tensor([512])
    query = xpos_table(m, INV_FREQ, centre=0, dtype=torch.float64)
    key = xpos_table(m - 512, INV_FREQ, centre=0, dtype=torch.float64)
    cos, sin = rope_table(m, INV_FREQ, dtype=torch.float64)
    assert_bits(key.cos_k, torch.ones_like(cos))
    torch.testing.assert_close(query.cos_q, cos * xpos_zeta(64), rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(query.sin_q, sin * xpos_zeta(64), rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_no_overflow_at_any_position(dtype):
    positions = torch.tensor([0, 10_000, 1_000_000, 2**31 - 1])
    for centre in (0, 1_000_000, 2**31 - 1):
        table = xpos_table(positions, INV_FREQ, centre=centre, dtype=dtype)
        assert all(t.isfinite().all() for t in table)
        product = table.cos_q.double() * table.cos_k.double()
        assert product.abs().max() <= 1.01


def test_default_centre_and_its_limit():
    table = xpos_table(9, INV_FREQ)
    other = xpos_table(torch.arange(9), INV_FREQ, centre=4)
    for a, b in zip(table, other, strict=True):
        assert_bits(a, b)
    assert all(t.isfinite().all() for t in xpos_table(28_000, INV_FREQ))
    with pytest.raises(ValueError, match=r"at most 28\d\d\d for torch.float32.*got 30000"):
        xpos_table(30_000, INV_FREQ)
    with pytest.raises(ValueError, match=r"at most 4\d\d\d for torch.float16"):
        xpos_table(5000, INV_FREQ, dtype=torch.float16)


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_distances_from_the_centre_are_exact(default):
    far = 2**24  # where float32 misses the odd ones
    still = torch.zeros(4, dtype=torch.float64)
    near = xpos_table(torch.arange(1000), still, centre=0, dtype=torch.float64)
    torch.set_default_dtype(default)
    try:
        table = xpos_table(far + torch.arange(1000), still, centre=far, dtype=torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(table, near, strict=True):
        assert_bits(a, b)


def test_gradients():
    f = rope_frequencies(8).inv_freq.requires_grad_()
    zeta = xpos_zeta(8).requires_grad_()
    p = torch.tensor([-3.0, 0.5, 70.0], dtype=torch.float64, requires_grad=True)

    def build(p, f, zeta):
        return tuple(xpos_table(p, f, zeta=zeta, centre=1.0, scale_base=8, dtype=torch.float64))

    assert torch.autograd.gradcheck(build, (p, f, zeta))


def test_refusals():
    with pytest.raises(ValueError, match="centre must be given for a tensor of positions"):
        xpos_table(torch.arange(3), INV_FREQ)
    with pytest.raises(ValueError, match="scale_base must be positive, got 0"):
        xpos_table(3, INV_FREQ, scale_base=0)
    with pytest.raises(ValueError, match=r"zeta must have shape \[32\], got \[3\]"):
        xpos_table(3, INV_FREQ, zeta=torch.ones(3))
    with pytest.raises(ValueError, match="centre must be finite, got inf"):
        xpos_table(3, INV_FREQ, centre=math.inf)
    for name, size in (("zeta", 32), ("centre", 3)):
        for kind, value, text in (
            (TypeError, torch.ones(size).to_sparse(), "must be a dense tensor, got .*sparse"),
            (TypeError, torch.ones(size, dtype=torch.complex64), "must be real, got .*complex64"),
            (ValueError, torch.ones(size, device="meta"), "must be on the device of .*got meta"),
        ):
            with pytest.raises(kind, match=rf"^posenc_ext.xpos_table: {name} {text}"):
                xpos_table(torch.arange(3), INV_FREQ, **({"centre": 1.0} | {name: value}))
    with pytest.raises(ValueError, match="dim must be positive and even, got 7"):
        xpos_zeta(7)
    with pytest.raises(ValueError, match="gamma must be positive, got 0"):
        xpos_zeta(8, gamma=0)
