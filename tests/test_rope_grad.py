"""Gradients of rope and apply_rope: to x, cos and sin, once, twice and forward."""

import numpy as np
import pytest
import torch
from oracle import TOLERANCE_SUM
from rope_cases import (
    DTYPES,
    VIEWS,
    assert_bits,
    assert_close,
    double,
    expected,
    name,
    odd_offset,
    reversed_axes,
    shape,
    table,
    uniform,
)

import posenc_ext

A, I64 = torch.tensor, torch.float64

# Every way to call rope, each as small as it can be: (layout, shape of x, shape of cos, options).
CALLS = {
    "plain": ("bshd", (2, 3, 2, 6), (5, 3), {}),
    "interleaved": ("bshd", (2, 3, 2, 6), (5, 3), {"interleaved": True}),
    "partial": ("bshd", (1, 2, 2, 7), (4, 2), {}),
    "partial_interleaved": ("bshd", (1, 2, 2, 7), (4, 2), {"interleaved": True}),
    "inverse": ("bshd", (1, 3, 2, 4), (5, 2), {"inverse": True}),
    "bhsd": ("bhsd", (2, 2, 3, 4), (5, 2), {}),
    "sbhd": ("sbhd", (3, 2, 2, 4), (5, 2), {}),
    "shd": ("shd", (3, 2, 4), (5, 2), {}),
    "hsd": ("hsd", (2, 3, 4), (5, 2), {}),
    "bsd": ("bsd", (2, 3, 4), (5, 2), {}),
    "sbd": ("sbd", (3, 2, 4), (5, 2), {}),
    "sd": ("sd", (3, 4), (5, 2), {}),
    "offset": ("bshd", (2, 2, 1, 4), (6, 2), {"offset": 3}),
    "offsets": ("bshd", (2, 2, 1, 4), (6, 2), {"offset": A([4, 1])}),
    "positions": ("bshd", (2, 4, 1, 4), (6, 2), {"positions": A([3, 1, 3, 0])}),
    "positions_per_batch": ("bhsd", (2, 1, 3, 4), (6, 2), {"positions": A([[3, 1, 3], [5, 5, 5]])}),
    "cu_seqlens": ("thd", (5, 2, 4), (4, 2), {"cu_seqlens": A([0, 3, 3, 5])}),
    "cu_seqlens_offset": (
        "thd",
        (5, 2, 4),
        (6, 2),
        {"cu_seqlens": A([0, 3, 5]), "offset": A([1, 2])},
    ),
    "per_token": ("bshd", (2, 3, 2, 4), (2, 3, 2), {}),
    "per_token_inverse_interleaved": (
        "bhsd",
        (2, 2, 3, 4),
        (2, 3, 2),
        {"inverse": True, "interleaved": True},
    ),
    "per_token_broadcast": ("bshd", (2, 3, 2, 4), (1, 3, 2), {}),
    "interleaved_to_half": (
        "bshd",
        (1, 3, 2, 7),
        (5, 3),
        {"interleaved": True, "interleaved_out": False},
    ),
    "half_to_interleaved_inplace": (
        "bshd",
        (1, 3, 2, 6),
        (5, 3),
        {"interleaved_out": True, "inverse": True, "inplace": True},
    ),
    "inplace": ("bshd", (2, 3, 2, 4), (5, 2), {"inplace": True}),
    "inplace_interleaved_partial": (
        "bshd",
        (1, 3, 2, 6),
        (5, 2),
        {"inplace": True, "interleaved": True},
    ),
}
every_call = pytest.mark.parametrize("call", CALLS)


def inputs(call, device, dtype=I64, grad=True):
    layout, size, rows, options = CALLS[call]
    options = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    tensors = [
        uniform(s, dtype, i, device).requires_grad_(grad) for i, s in enumerate((size, rows, rows))
    ]
    return tensors, {"layout": layout, **options}


def function(options):
    """rope of a copy of x when in place, since gradcheck gives leaves."""
    if options.get("inplace"):
        return lambda x, cos, sin=None: posenc_ext.rope(x.clone(), cos, sin, **options)
    return lambda x, cos, sin=None: posenc_ext.rope(x, cos, sin, **options)


@every_call
def test_gradcheck(call, device):
    tensors, options = inputs(call, device)
    assert torch.autograd.gradcheck(function(options), tensors, check_forward_ad=True)


@every_call
def test_gradgradcheck(call, device):
    tensors, options = inputs(call, device)
    assert torch.autograd.gradgradcheck(function(options), tensors)


@pytest.mark.parametrize("inplace", [False, True])
def test_gradcheck_complex_table(inplace, device):
    x = uniform((2, 3, 2, 6), I64, 0, device).requires_grad_()
    for rows in ((4, 2), (1, 3, 2)):
        parts = [uniform(rows, I64, i, device) for i in (1, 2)]
        freqs_cis = torch.complex(*parts).requires_grad_()
        call = function({"inplace": inplace})
        assert torch.autograd.gradcheck(call, (x, freqs_cis), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, (x, freqs_cis))


def test_gradcheck_large_positions(device):
    cos, sin = (t.requires_grad_() for t in table(2, I64, length=5001, device=device))
    x = uniform((1, 2, 1, 4), I64, 0, device).requires_grad_()
    positions = A([5000, 4097], device=device)
    assert torch.autograd.gradcheck(
        lambda x: posenc_ext.rope(x, cos, sin, positions=positions), (x,)
    )


@pytest.mark.parametrize(
    "options", [{}, {"interleaved": True, "inverse": True}, {"inplace": True}], ids=str
)
@pytest.mark.parametrize("lengths", [(3, 3), (1, 4)], ids=str)
def test_gradcheck_apply_rope(lengths, options, device):
    q, k = (
        uniform((2, s, h, 6), I64, s, device).requires_grad_()
        for s, h in zip(lengths, (3, 1), strict=True)
    )
    cos, sin = (uniform((6, 2), I64, i, device).requires_grad_() for i in (3, 4))

    def call(q, k, cos, sin):
        q, k = (q.clone(), k.clone()) if options.get("inplace") else (q, k)
        return posenc_ext.apply_rope(q, k, cos, sin, offset=1, **options)

    assert torch.autograd.gradcheck(call, (q, k, cos, sin), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (q, k, cos, sin))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("wants", ["q", "k", "neither", "cos"])
def test_only_what_needs_a_graph_has_one(wants, inplace, device):
    tensors = {n: uniform((2, 3, 2, 4), I64, 1, device) for n in "qk"}
    tensors |= {n: uniform((5, 2), I64, 2, device) for n in ("cos", "sin")}
    if wants != "neither":
        tensors[wants].requires_grad_()
    q, k = (tensors[n].clone() if inplace else tensors[n] for n in "qk")
    outs = dict(
        zip(
            "qk",
            posenc_ext.apply_rope(q, k, tensors["cos"], tensors["sin"], inplace=inplace),
            strict=True,
        )
    )
    for n, y in outs.items():
        assert y.requires_grad == (wants in (n, "cos"))
        assert (y.grad_fn is not None) == y.requires_grad
    if wants == "neither":
        return
    sum(y.sum() for y in outs.values()).backward()
    assert {n for n, t in tensors.items() if t.grad is not None} == {wants}
    if wants in outs:
        right = expected("rope", torch.ones_like(q), tensors["cos"], tensors["sin"], inverse=True)
        assert_close(tensors[wants].grad, right)


def test_no_grad_keeps_no_graph(device):
    x, cos, sin = inputs("plain", device)[0]
    with torch.no_grad():
        assert posenc_ext.rope(x, cos, sin).grad_fn is None
    with torch.inference_mode():
        assert posenc_ext.rope(x, cos, sin).grad_fn is None


INCOMING = {
    "expanded": lambda g: torch.ones((), dtype=g.dtype, device=g.device).expand_as(g),
    "expanded_head": lambda g: g[:, :, :1].expand_as(g),
    "expanded_batch": lambda g: g[:1].expand_as(g),
    "transposed": lambda g: g.transpose(1, 2).contiguous().transpose(1, 2),
    "reversed": reversed_axes,
    "odd_offset": odd_offset,
    "last_stride_2": VIEWS["last_stride_2"],
}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("incoming", INCOMING)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_incoming_gradients_of_any_strides(dtype, incoming, interleaved, device):
    grad = INCOMING[incoming](uniform(shape("bshd"), dtype, 5, device))
    grads = []
    for g in (grad, grad.contiguous()):
        cos, sin = (t.requires_grad_() for t in table(16, device=device))
        x = uniform(shape("bshd"), dtype, 0, device).requires_grad_()
        y = posenc_ext.rope(x, cos, sin, interleaved=interleaved)
        grads.append(torch.autograd.grad(y, (x, cos, sin), g))
    for strided, dense in zip(*grads, strict=True):
        assert_bits(strided, dense)
    assert_close(
        grads[0][0], expected("rope", grad, cos, sin, interleaved=interleaved, inverse=True)
    )


def test_no_rotation_passes_the_gradient_through(device):
    x = uniform((1, 2, 1, 3), device=device).requires_grad_()
    cos, sin = (torch.empty(2, 0, device=device, requires_grad=True) for _ in range(2))
    g = uniform(x.shape, seed=1, device=device)
    grads = torch.autograd.grad(posenc_ext.rope(x, cos, sin), (x, cos, sin), g)
    assert_bits(grads[0], g)
    assert grads[1].shape == grads[2].shape == (2, 0)


def test_sum_backward(device):
    cos, sin = table(4, device=device)
    grads = []
    for use_sum in (True, False):
        x = uniform((2, 3, 4, 8), device=device).requires_grad_()
        y = posenc_ext.rope(x, cos, sin)
        y.sum().backward() if use_sum else y.backward(torch.ones_like(y))
        grads.append(x.grad)
    assert_bits(*grads)


@pytest.mark.parametrize("table_dtype", ["float32", "own"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    "call", ["plain", "interleaved", "inverse", "positions", "cu_seqlens", "per_token"]
)
def test_against_the_adjoint(call, dtype, table_dtype, device):
    """What gradcheck cannot see: float32 and half types, with dtypes of gradients."""
    (x, cos, sin), options = inputs(call, device, dtype, grad=False)
    cos, sin = (
        (t / 2).to(torch.float32 if table_dtype == "float32" else dtype) for t in (cos, sin)
    )
    for t in (x, cos, sin):
        t.requires_grad_()
    y = posenc_ext.rope(x, cos, sin, **options)
    g = uniform(y.shape, dtype, 7, device)
    dx, dcos, dsin = torch.autograd.grad(y, (x, cos, sin), g)
    assert (dx.dtype, dcos.dtype, dsin.dtype) == (x.dtype, cos.dtype, sin.dtype)
    right = options | {"inverse": not options.get("inverse", False)}
    assert_close(dx, expected("rope", g, cos, sin, **right))
    for actual, sums in zip(
        (dcos, dsin), expected("rope_table_grad", g, x, cos, sin, **options), strict=True
    ):
        assert_close(actual, sums, TOLERANCE_SUM)


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradient_penalty(interleaved, device):
    (x, cos, sin), options = inputs("partial_interleaved" if interleaved else "partial", device)

    def penalty(x, cos, sin):
        y = posenc_ext.rope(x, cos, sin, **options)
        (grad,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        return grad.pow(2).sum()

    assert torch.autograd.gradcheck(penalty, (x, cos, sin))
    penalty(x, cos, sin).backward()
    assert all(t.grad.abs().sum() > 0 for t in (x, cos, sin))


@pytest.mark.parametrize("inplace", [False, True])
def test_forward_mode_is_the_rotation_of_the_tangent(inplace, device):
    forward = torch.autograd.forward_ad
    (x, cos, sin), _ = inputs("plain", device, grad=False)
    tangents = [uniform(t.shape, I64, i + 5, device) for i, t in enumerate((x, cos, sin))]
    rotated = posenc_ext.rope(tangents[0], cos, sin)
    tables = posenc_ext.rope(x, tangents[1], tangents[2])
    with forward.dual_level():
        dual = forward.make_dual(x.clone(), tangents[0].clone())
        y = forward.unpack_dual(posenc_ext.rope(dual, cos, sin, inplace=inplace))
        assert_bits(y.tangent, rotated)
        dual = [
            forward.make_dual(t.clone(), d) for t, d in zip((x, cos, sin), tangents, strict=True)
        ]
        y = forward.unpack_dual(posenc_ext.rope(*dual, inplace=inplace))
        torch.testing.assert_close(y.tangent, rotated + tables, rtol=0, atol=1e-14)
        assert_bits(y.primal, posenc_ext.rope(x, cos, sin))


def test_golden(golden, device):
    inputs, right = golden["grad/half"]["inputs"], golden["grad/half"]["expected"]
    angle = A([[inputs["pos"] * 10000.0 ** (-i / 4) for i in range(4)]], dtype=I64, device=device)
    cos, sin = (t.requires_grad_() for t in (angle.cos(), angle.sin()))
    x, g = (A([inputs[n]], dtype=I64, device=device) for n in ("x", "grad_out"))
    y = posenc_ext.rope(x.requires_grad_(), cos, sin, layout="sd")
    grads = torch.autograd.grad(y, (x, cos, sin), g)
    for actual, key in zip(grads, ("dx", "dcos", "dsin"), strict=True):
        np.testing.assert_allclose(double(actual)[0], right[key], rtol=0, atol=4e-15)
