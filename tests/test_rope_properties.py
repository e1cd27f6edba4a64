"""What rotary embedding promises: it rotates, scores see distances, and they decay."""

import math

import numpy as np
import pytest
import torch
from rope_cases import assert_bits, double, uniform

from posenc_ext import apply_rope, rope, rope_frequencies, rope_table
from posenc_ext.scaling import Linear, YaRN

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
D = 64
INV_FREQ = rope_frequencies(D).inv_freq


def rotate(x, positions, interleaved=False, inv_freq=INV_FREQ, **options):
    """x [S, D] in float64, rotated to these positions."""
    cos, sin = rope_table(torch.as_tensor(positions), inv_freq, dtype=torch.float64, **options)
    return rope(x, cos, sin, layout="sd", interleaved=interleaved)


def vectors(count, seed=0):
    return uniform((count, D), torch.float64, seed)


@both_pairings
def test_scores_depend_on_distance_alone(interleaved):
    q, k = vectors(1), vectors(1, 1)
    starts = torch.tensor([0, 1, 100, 4096, 131072, 2**30])
    for distance in (0, 1, 33, 5000):
        m = starts + distance
        scores = (
            rotate(q.expand(6, D), m, interleaved) * rotate(k.expand(6, D), starts, interleaved)
        ).sum(-1)
        at_query = (rotate(q, [distance], interleaved) * k).sum()
        at_key = (q * rotate(k, [-distance], interleaved)).sum()
        torch.testing.assert_close(scores, at_query.expand(6), rtol=0, atol=1e-12)
        torch.testing.assert_close(at_key, at_query, rtol=0, atol=1e-12)


def test_golden_scores(golden):
    case = golden["apply/relative_scores"]
    inv_freq = rope_frequencies(8, case["inputs"]["rope_theta"]).inv_freq
    q, k = (torch.tensor([case["inputs"][x]], dtype=torch.float64) for x in "qk")
    for name, right in case["expected"].items():
        kind, m, n = name.split("_")
        kind = kind == "interleaved"
        m, n = (rotate(x, [int(p[1:])], kind, inv_freq) for x, p in ((q, m), (k, n)))
        assert (m * n).sum().item() == pytest.approx(right, rel=1e-12, abs=1e-14)


@both_pairings
def test_score_is_a_sum_of_turned_pairs(interleaved):
    """The real part of sum_i q_i conj(k_i) e^(i (m - n) theta_i), and so the matrix is block
    diagonal and its complex form the same."""
    q, k = vectors(1), vectors(1, 1)
    axes = (-1, 2) if interleaved else (2, -1)

    def pairs(x):
        x = x[0].unflatten(0, axes)
        return torch.complex(*(x.unbind(-1) if interleaved else x.unbind(0)))

    right = (
        pairs(q) * pairs(k).conj() * torch.polar(torch.ones(D // 2).double(), 7 * INV_FREQ)
    ).sum()
    score = (rotate(q, [12], interleaved) * rotate(k, [5], interleaved)).sum()
    torch.testing.assert_close(score, right.real, rtol=0, atol=1e-12)


@both_pairings
def test_rotations_are_a_group(interleaved):
    x = vectors(5)
    a, b = torch.tensor([0, 1, 7, 4096, 10**6]), torch.tensor([5, -1, 100, 999, -(10**6)])
    both = rotate(rotate(x, a, interleaved), b, interleaved)
    torch.testing.assert_close(both, rotate(x, a + b, interleaved), rtol=0, atol=1e-13)
    assert_bits(rotate(x, torch.zeros(5), interleaved), x)
    cos, sin = rope_table(a, INV_FREQ, dtype=torch.float64)
    inverse = rope(x, cos, sin, layout="sd", interleaved=interleaved, inverse=True)
    torch.testing.assert_close(inverse, rotate(x, -a, interleaved), rtol=0, atol=4e-15)


@both_pairings
def test_each_pair_keeps_its_norm_times_the_attention_factor(interleaved):
    x = vectors(4)
    positions = torch.tensor([0, 3, 4097, 2**31 - 1])
    inv_freq, factor = rope_frequencies(D, scaling=YaRN(4.0, 2048))
    y = rotate(x, positions, interleaved, inv_freq, attention_factor=factor)
    axes = ((-1, 2), -1) if interleaved else ((2, -1), -2)
    norm = [t.unflatten(-1, axes[0]).norm(dim=axes[1]) for t in (x, y)]
    torch.testing.assert_close(norm[1], norm[0] * factor, rtol=1e-14, atol=0)


def test_matrix_is_orthogonal_and_block_diagonal():
    matrix = rotate(torch.eye(D, dtype=torch.float64), torch.full((D,), 11))
    torch.testing.assert_close(
        matrix @ matrix.T, torch.eye(D, dtype=torch.float64), rtol=0, atol=1e-15
    )
    assert torch.linalg.det(matrix).item() == pytest.approx(1, rel=1e-13)
    i, j = matrix.nonzero().T
    assert ((i - j) % (D // 2)).eq(0).all()
    # Its transpose rotates back.
    torch.testing.assert_close(
        matrix.T,
        rotate(torch.eye(D, dtype=torch.float64), torch.full((D,), -11)),
        rtol=0,
        atol=1e-15,
    )


def roformer_curve(turns):
    """(1/n) sum_j |S_j| with S_j the sum of the first j turned units, [distances, n] complex."""
    return np.abs(np.cumsum(turns, -1)).mean(-1)


@pytest.mark.parametrize("base", [10000, 500000])
def test_decay_with_distance(base, golden):
    case = golden[f"decay/d128_b{base}"]
    distance = torch.tensor(case["inputs"]["distance"])
    cos, sin = rope_table(distance, rope_frequencies(128, base).inv_freq, dtype=torch.float64)
    one = torch.ones(1, 128, dtype=torch.float64)
    score = (rope(one.expand(len(distance), 128), cos, sin, layout="sd") * one).sum(-1) / 128
    np.testing.assert_allclose(score, case["expected"]["mean_cos"], rtol=0, atol=1e-13)
    curve = roformer_curve(double(cos) + 1j * double(sin))
    np.testing.assert_allclose(curve, case["expected"]["roformer_bound"], rtol=1e-12)


def test_a_larger_base_decays_more_slowly():
    distance = torch.arange(1, 2049)
    means = []
    for base in (1e4, 5e5):
        cos, _ = rope_table(distance, rope_frequencies(128, base).inv_freq, dtype=torch.float64)
        means.append(cos.mean(-1))
        assert cos.mean(-1)[:128].mean() > cos.mean(-1)[-128:].mean()
        assert (cos.mean(-1).diff() > 0).any()  # it oscillates on the way
    assert (means[1] > means[0]).double().mean() > 0.95


def test_scores_are_bounded_by_the_curve():
    q, k = vectors(1), vectors(1, 1)
    u, v = (torch.complex(*x[0].chunk(2)) for x in (q, k))
    h = double(u * v.conj())
    steps = np.abs(np.diff(np.append(h, 0))).max()
    for distance in (0, 1, 50, 3000):
        turns = np.exp(1j * distance * double(INV_FREQ))
        score = (rotate(q, [distance]) * k).sum().item()
        assert abs(score) <= steps * roformer_curve(turns) * len(turns)


def test_granularity(golden):
    """A larger base keeps neighbours apart that interpolation draws together."""
    right = golden["granularity/d128"]["expected"]
    rules = {
        "rope_1e4": (1e4, None),
        "pi_quarter": (1e4, Linear(4)),
        "pi_eighth": (1e4, Linear(8)),
        "abf_5e5": (5e5, None),
    }
    for name, (base, rule) in rules.items():
        inv_freq = rope_frequencies(128, base, rule).inv_freq
        one = torch.full((2, 128), math.sqrt(0.5), dtype=torch.float64)
        here, there = rotate(one, [0, 1], inv_freq=inv_freq)
        assert ((here - there) ** 2).sum().item() == pytest.approx(right[name], rel=1e-13)
    assert right["abf_5e5"] > right["pi_quarter"] > right["pi_eighth"]


def test_attention_without_positions_ignores_order_and_with_them_does_not():
    q, k = uniform((1, 6, 2, D), torch.float64), uniform((1, 6, 2, D), torch.float64, 1)
    order = torch.tensor([3, 1, 5, 0, 2, 4])

    def scores(q, k):
        return torch.einsum("bqhd,bkhd->bhqk", q, k).sort(-1).values

    torch.testing.assert_close(scores(q, k[:, order]), scores(q, k), rtol=0, atol=1e-12)
    cos, sin = rope_table(6, INV_FREQ, dtype=torch.float64)
    turned = scores(*apply_rope(q, k, cos, sin))
    assert (scores(*apply_rope(q, k[:, order], cos, sin)) - turned).abs().max() > 0.1
