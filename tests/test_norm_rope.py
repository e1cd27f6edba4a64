"""norm_rope and qk_norm_rope against the oracle: the defaults with one thing changed at a time."""

import oracle_norm
import pytest
import torch
from norm_cases import RULES, channels, check_norm_rope, parameter, rule
from rope_cases import (
    DTYPES,
    LAYOUTS,
    VIEWS,
    assert_bits,
    assert_close,
    double,
    name,
    shape,
    table,
    uniform,
)

import posenc_ext

every_rule = pytest.mark.parametrize("kind", RULES, ids="-".join)
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
ROUNDINGS = ("once", "norm", "transformers")


@both_pairings
@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_rules(dtype, kind, interleaved, device):
    cos, sin = table(16, device=device)
    for d in (32, 40, 70):  # none, a whole and a broken register of channels beyond R
        x = uniform(shape("bshd", d=d), dtype, device=device)
        weight = parameter(channels(x, "bshd", kind[1]), dtype, device=device)
        bias = parameter(channels(x, "bshd", kind[1]), dtype, 6, device) / 4
        options = {"interleaved": interleaved, "eps": 1e-5, **rule(*kind)}
        check_norm_rope(x, weight, cos, sin, **options)
        check_norm_rope(x, None, cos, sin, **options, weight_offset=3.0)
        check_norm_rope(x, weight / 2, cos, sin, bias=bias, weight_offset=0.5, **options)


@pytest.mark.parametrize("rotary", [0, 2, 4, 6, 14, 16, 18, 30, 34, 62, 64, 66, 128, 130, 256])
def test_rotary_dims(rotary, device):
    cos, sin = table(rotary // 2, device=device)
    for d in {rotary, rotary + 1, rotary + 8} - {0}:
        x, weight = uniform(shape("bshd", d=d), device=device), parameter(d, device=device)
        check_norm_rope(x, weight, cos, sin)
        check_norm_rope(x, weight, cos, sin, order="rope_first", interleaved=True)


@every_rule
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, kind, device):
    cos, sin = table(16, device=device)
    x = uniform(shape(layout), device=device)
    weight = parameter(channels(x, layout, kind[1]), device=device)
    y = check_norm_rope(x, weight, cos, sin, layout=layout, offset=2, inverse=True, **rule(*kind))
    for view in VIEWS.values():  # the same bits for any strides
        given = view(x)
        assert_bits(
            posenc_ext.norm_rope(given, weight, cos, sin, layout=layout, **rule(*kind)),
            posenc_ext.norm_rope(
                given.contiguous(), weight, cos, sin, layout=layout, **rule(*kind)
            ),
        )
    assert y.stride() == torch.empty_like(x).stride()


def test_rows(device):
    cos, sin = table(16, device=device)
    x, weight = uniform(shape("bshd"), device=device), parameter(40, device=device)
    positions = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], device=device)
    for rows in (
        {"positions": positions}, {"positions": positions[0].int()},
        {"offset": torch.tensor([7, 2], device=device)},
    ):  # fmt: skip
        check_norm_rope(x, weight, cos, sin, **rows)
    bounds = torch.tensor([0, 2, 2, 5], device=device)
    check_norm_rope(x[0], weight, cos, sin, layout="thd", cu_seqlens=bounds)
    per_token = (uniform((2, 5, 16), seed=i, device=device) / 2 for i in (1, 2))
    check_norm_rope(x, weight, *per_token)
    check_norm_rope(x, weight, torch.complex(cos, sin))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name)
def test_wide_weights_beside_16_bits(dtype, device):
    cos, sin = table(16, device=device)
    x = uniform(shape("bshd"), dtype, device=device)
    check_norm_rope(x, parameter(40, device=device), cos, sin)
    check_norm_rope(x, parameter(40, device=device), cos, sin, bias=parameter(40, dtype, 3, device))
    weight = parameter(80, device=device)[::2]
    assert_bits(
        posenc_ext.norm_rope(x, weight, cos, sin),
        posenc_ext.norm_rope(x, weight.clone(), cos, sin),
    )


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_roundings(dtype, kind):
    """Each step by itself, its result rounded to the dtype; nothing to round in float32."""
    cos, sin = table(16)
    x, still = uniform(shape("bshd"), dtype), torch.ones(64, 0)
    size = channels(x, "bshd", kind[1])
    weight, bias = parameter(size, dtype), parameter(size, dtype, 6) / 4
    options = {"bias": bias, "weight_offset": 0.25, **rule(*kind)}
    results = {
        r: posenc_ext.norm_rope(x, weight, cos, sin, rounding=r, **options) for r in ROUNDINGS
    }
    first = posenc_ext.rope(x, cos, sin) if kind[2] == "rope_first" else x
    alone = {"norm": kind[0], "norm_dims": kind[1]}
    normed = posenc_ext.norm_rope(first, weight, *(still,) * 2, **options)
    unit = posenc_ext.norm_rope(first, None, *(still,) * 2, **alone)
    shaped = (t.view(1, 1, -1, 40) for t in (weight, bias))
    wide = torch.promote_types(dtype, torch.float32)
    twice = unit.to(wide) * (next(shaped).to(wide) + 0.25) + next(shaped).to(wide)
    steps = {"norm": normed, "transformers": twice.to(dtype)}
    for r, y in steps.items():
        assert_bits(results[r], y if kind[2] == "rope_first" else posenc_ext.rope(y, cos, sin))
    if dtype in (torch.float32, torch.float64):
        assert_bits(results["norm"], results["once"])
        assert_bits(results["transformers"], results["once"])
    else:
        assert not torch.equal(results["norm"], results["once"])
        assert not torch.equal(results["transformers"], results["norm"])


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_pairs_are_two_calls(dtype, kind, device):
    """Other head counts and weights for k; in place too, into slices of one projection."""
    cos, sin = table(16, device=device)
    fused = uniform((2, 5, 7, 40), dtype, device=device)
    q, k = fused[:, :, :4], fused[:, :, 4:6]
    qw, kw, qb, kb = (
        parameter(channels(x, "bshd", kind[1]), dtype, i, device)
        for i, x in enumerate((q, k, q, k))
    )
    options = {"weight_offset": 1.0, **rule(*kind)}
    right = [
        posenc_ext.norm_rope(x, w, cos, sin, bias=b, **options)
        for x, w, b in ((q, qw, qb), (k, kw, kb))
    ]
    rest = fused[:, :, 6:].clone()
    pair = posenc_ext.qk_norm_rope(q, k, qw, kw, cos, sin, q_bias=qb, k_bias=kb, **options)
    for a, b in zip(pair, right, strict=True):
        assert_bits(a, b)
    again = torch.empty_like(q)
    posenc_ext.norm_rope(q, qw, cos, sin, bias=qb, out=again, **options)
    assert_bits(again, right[0])
    versions = q._version, k._version
    pair = posenc_ext.qk_norm_rope(
        q, k, qw, kw, cos, sin, q_bias=qb, k_bias=kb, inplace=True, **options
    )
    assert pair[0] is q
    assert pair[1] is k
    assert q._version > versions[0]
    assert k._version > versions[1]
    for a, b in zip(pair, right, strict=True):
        assert_bits(a, b)
    assert_bits(fused[:, :, 6:], rest)


def test_lengths_may_differ_and_k_may_be_none(device):
    cos, sin = table(16, device=device)
    q, k = uniform((2, 3, 4, 40), device=device), uniform((2, 5, 2, 40), device=device)
    weight = parameter(40, device=device)
    options = {"offset": 3, "eps": 1e-3}
    gots = posenc_ext.qk_norm_rope(q, k, weight, None, cos, sin, **options)
    rights = oracle_norm.qk_norm_rope(*map(double, (q, k, weight, None, cos, sin)), **options)
    for got, right in zip(gots, rights, strict=True):
        assert_close(got, right, oracle_norm.TOLERANCE)
    alone, none = posenc_ext.qk_norm_rope(q, None, weight, None, cos, sin, **options)
    assert none is None
    assert_bits(alone, gots[0])


@pytest.mark.parametrize("size", [(0, 5, 3, 40), (2, 0, 3, 40), (2, 5, 0, 40), (2, 5, 3, 0)])
def test_empty(size, device):
    n = 16 if size[-1] else 0
    cos, sin = table(n, device=device)
    x = uniform(size, device=device).requires_grad_()
    for dims in ("head", "all"):
        weight = torch.ones(channels(x, "bshd", dims), device=device, requires_grad=True)
        y = posenc_ext.norm_rope(x, weight, cos, sin, norm_dims=dims)
        assert y.shape == x.shape
        dx, dweight = torch.autograd.grad(y, (x, weight), y)
        assert dx.shape == x.shape
        assert torch.equal(dweight, torch.zeros_like(weight))
    posenc_ext.norm_rope(x.detach(), None, cos, sin, inplace=True)


def test_zero_and_large_rows(device):
    """eps keeps rows of zeros; squares beyond float32 make 0, as in torch; NaN stays in its row."""
    cos, sin = torch.ones(1, 16, device=device), torch.zeros(1, 16, device=device)
    x = torch.zeros(1, 1, 4, 32, device=device)
    x[0, 0, 1], x[0, 0, 2, 3], x[0, 0, 3] = 3e20, float("nan"), 1.0
    y = posenc_ext.norm_rope(x, None, cos, sin, eps=0.0)[0, 0]
    assert y[0].isnan().all()
    assert (y[1] == 0).all()
    assert y[2].isnan().all()
    assert (y[3] == 1).all()
    assert (posenc_ext.norm_rope(x, None, cos, sin)[0, 0, 0] == 0).all()
