"""rope and apply_rope against the oracle: the defaults with one thing changed at a time."""

import math

import numpy as np
import pytest
import torch
from rope_cases import (
    DTYPES,
    LAYOUTS,
    VIEWS,
    assert_bits,
    assert_close,
    check_rope,
    double,
    expected,
    name,
    shape,
    table,
    uniform,
)

import posenc_ext

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])


@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    "rotary", [0, 2, 4, 6, 14, 16, 18, 30, 32, 34, 48, 62, 64, 66, 96, 128, 130, 256]
)
def test_rotary_dims(rotary, dtype, interleaved, device):
    cos, sin = table(rotary // 2, device=device)
    for d in {rotary, rotary + 1, rotary + 8}:
        x = uniform(shape("bshd", d=d), dtype, device=device)
        y = check_rope(x, cos, sin, interleaved=interleaved)
        assert_bits(y[..., rotary:], x[..., rotary:])


@both_pairings
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, interleaved, inverse, device):
    cos, sin = table(16, device=device)
    x = uniform(shape(layout), device=device)
    check_rope(x, cos, sin, layout=layout, interleaved=interleaved, inverse=inverse, offset=2)


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sbhd"])
def test_layout_is_not_guessed(layout, device):
    cos, sin = table(4, device=device)
    check_rope(uniform((4, 4, 4, 8), device=device), cos, sin, layout=layout)


@both_pairings
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views(layout, view, interleaved, device):
    cos, sin = table(16, device=device)
    x = VIEWS[view](uniform(shape(layout), device=device))
    y = check_rope(x, cos, sin, layout=layout, interleaved=interleaved)
    assert_bits(
        y, posenc_ext.rope(x.contiguous(), cos, sin, layout=layout, interleaved=interleaved)
    )
    assert y.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize("view", VIEWS)
def test_table_views(view, device):
    cos, sin = (VIEWS[view](t) for t in table(16, device=device))
    check_rope(uniform(shape("bshd"), device=device), cos, sin)
    cos, sin = (VIEWS[view](uniform((2, 5, 16), seed=i, device=device) / 2) for i in (1, 2))
    check_rope(uniform(shape("bshd"), device=device), cos, sin)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_table_dtypes(dtype, device):
    allowed = {torch.float32, dtype}
    for table_dtype in allowed:
        cos, sin = table(16, table_dtype, device=device)
        check_rope(uniform(shape("bshd"), dtype, device=device), cos, sin)


def test_lazily_negated_tensors(device):
    """The imaginary part of a conjugate is a view whose negation torch has put off."""
    cos, sin = table(16, device=device)
    parts = (uniform(shape("bshd"), seed=i, device=device) for i in (1, 2))
    x = torch.complex(*parts).conj().imag
    assert x.is_neg()
    right = check_rope(x, cos, sin)
    assert_bits(check_rope(x, cos, torch.complex(cos, sin).conj().imag, inverse=True), right)


@pytest.mark.parametrize("argument", ["x", "cos", "sin", "positions"])
def test_sparse_tensors_are_refused(argument):
    cos, sin = table(16)
    call = {"x": uniform(shape("sd")), "cos": cos, "sin": sin, "positions": torch.arange(5)}
    call[argument] = call[argument].to_sparse()
    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        posenc_ext.rope(**call, layout="sd")


EMPTY = [(0, 5, 4, 8), (2, 0, 4, 8), (2, 5, 0, 8), (2, 5, 4, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("size", EMPTY, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_empty(size, dtype, device):
    x = torch.empty(size, dtype=dtype, device=device, requires_grad=True)
    cos, sin = table(min(size[-1], 8) // 2, device=device)
    y = posenc_ext.rope(x, cos, sin)
    assert y.shape == x.shape
    assert y.dtype == dtype
    assert y.device == x.device
    y.sum().backward()
    assert x.grad.shape == x.shape
    detached = x.detach()
    assert posenc_ext.rope(detached, cos, sin, inplace=True).shape == x.shape
    assert posenc_ext.rope(detached, cos, sin, out=torch.empty_like(detached)).shape == x.shape


def test_empty_packed_and_empty_table(device):
    cos, sin = table(4, device=device)
    x = torch.empty(0, 4, 8, device=device)
    for bounds in ([0], [0, 0], [0, 0, 0]):
        cu_seqlens = torch.tensor(bounds, device=device)
        assert posenc_ext.rope(x, cos, sin, layout="thd", cu_seqlens=cu_seqlens).shape == x.shape
    assert posenc_ext.rope(x, cos[:0], sin[:0], layout="thd").shape == x.shape
    q, k = uniform((2, 5, 4, 8), device=device), torch.empty(2, 5, 0, 8, device=device)
    q_out, k_out = posenc_ext.apply_rope(q, k, cos, sin)
    assert_close(q_out, expected("rope", q, cos, sin))
    assert k_out.shape == k.shape


@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_apply_rope(layout, dtype, interleaved, device):
    cos, sin = table(16, device=device)
    q = VIEWS["transposed"](uniform(shape(layout, h=6), dtype, device=device))
    k = VIEWS["fused_qkv"](uniform(shape(layout, h=2), dtype, 1, device))
    options = {"layout": layout, "interleaved": interleaved, "offset": 3}
    outs = posenc_ext.apply_rope(q, k, cos, sin, **options)
    for x, y, right in zip(
        (q, k), outs, expected("apply_rope", q, k, cos, sin, **options), strict=True
    ):
        assert_close(y, right)
        assert_bits(y, posenc_ext.rope(x, cos, sin, **options))
        assert y.stride() == torch.empty_like(x).stride()


def test_apply_rope_without_k(device):
    cos, sin = table(16, device=device)
    q = uniform(shape("bshd"), device=device)
    q_out, k_out = posenc_ext.apply_rope(q, None, cos, sin)
    assert k_out is None
    assert_bits(q_out, posenc_ext.rope(q, cos, sin))


GOLDEN = {
    "half": {},
    "half_inverse": {"inverse": True},
    "interleaved": {"interleaved": True},
    "partial_half_rot4": {},
    "partial_interleaved_rot4": {"interleaved": True},
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, golden, device):
    inputs, right = golden[f"apply/{case}"]["inputs"], golden[f"apply/{case}"]["expected"]
    n = inputs.get("rotary_dim", 8) // 2
    angle = [abs(inputs["pos"]) * 10000.0 ** (-i / n) for i in range(n)]
    cos, sin = (
        torch.tensor([[f(a) for a in angle]], dtype=torch.float64, device=device)
        for f in (math.cos, math.sin)
    )
    x = torch.tensor([inputs["x"]], dtype=torch.float64, device=device)
    y = posenc_ext.rope(x, cos, sin, layout="sd", **GOLDEN[case])
    np.testing.assert_allclose(double(y)[0], right, rtol=0, atol=4e-15)


@both_pairings
def test_properties(interleaved, device):
    cos, sin = table(32, torch.float64, device=device)
    x, other = (uniform(shape("bshd", d=64), torch.float64, i, device) for i in (0, 1))
    at = {p: posenc_ext.rope(x, cos, sin, interleaved=interleaved, offset=p) for p in (0, 9, 30)}
    back = posenc_ext.rope(at[9], cos, sin, interleaved=interleaved, offset=9, inverse=True)
    torch.testing.assert_close(back, x, rtol=0, atol=2e-15)
    torch.testing.assert_close(at[9].norm(dim=-1), x.norm(dim=-1), rtol=1e-14, atol=0)
    further = posenc_ext.rope(other, cos, sin, interleaved=interleaved, offset=9)
    closer = posenc_ext.rope(other, cos, sin, interleaved=interleaved, offset=0)
    later = posenc_ext.rope(other, cos, sin, interleaved=interleaved, offset=30)
    scores = (closer * at[9]).sum(-1)  # depends on the distance alone: (0, 9) and (9, 18), (21, 30)
    moved = posenc_ext.rope(x, cos, sin, interleaved=interleaved, offset=18)
    torch.testing.assert_close((further * moved).sum(-1), scores, rtol=0, atol=1e-12)
    assert not torch.allclose((later * moved).sum(-1), scores)
    assert_bits(at[0][:, :1], x[:, :1])


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_interleaved_is_permuted_half(dtype, device):
    cos, sin = table(16, device=device)
    x = uniform(shape("bshd", d=32), dtype, device=device)
    order = torch.cat([torch.arange(0, 32, 2), torch.arange(1, 32, 2)]).to(device)
    assert_bits(
        posenc_ext.rope(x[..., order], cos, sin),
        posenc_ext.rope(x, cos, sin, interleaved=True)[..., order],
    )
