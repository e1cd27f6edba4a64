"""Gradients of norm_rope: the native first one against the oracle, and the orders beyond it."""

import itertools

import oracle_norm
import pytest
import torch
from norm_cases import RULES, channels, parameter, rule
from rope_cases import DTYPES, VIEWS, assert_bits, assert_close, double, name, shape, table, uniform
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import posenc_ext

F64 = torch.float64
every_rule = pytest.mark.parametrize("kind", RULES, ids="-".join)


class Calls(TorchDispatchMode):
    """The native ops called."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "posenc_ext":
            self.made.append(op.name().partition("::")[2])
        return op(*args, **(kwargs or {}))


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_against_the_oracle(dtype, kind, device):
    cos, sin = table(16, device=device)
    for d, interleaved in ((32, False), (44, True)):
        x = uniform(shape("bshd", d=d), dtype, device=device)
        grad = uniform(x.shape, dtype, 9, device)
        size = channels(x, "bshd", kind[1])
        weight, bias = (parameter(size, torch.float32, i, device) for i in (1, 2))
        options = {"interleaved": interleaved, "weight_offset": 0.5, "inverse": True, **rule(*kind)}
        tensors = [t.requires_grad_() for t in (x, weight, bias)]
        with Calls() as calls:
            y = posenc_ext.norm_rope(x, weight, cos, sin, bias=bias, **options)
            grads = torch.autograd.grad(y, tensors, grad)
        assert calls.made == ["norm_rope", "norm_rope_grad"]
        given = map(double, (grad, x, weight, cos, sin))
        right = oracle_norm.norm_rope_grad(*given, bias=double(bias), **options)
        for got, wanted, of in zip(grads, right, tensors, strict=True):
            assert got.dtype == of.dtype
            assert_close(got, wanted, oracle_norm.TOLERANCE_GRAD)


@every_rule
def test_views_are_bit_equal(kind):
    cos, sin = table(16)
    grad, x = uniform(shape("bshd"), seed=3), uniform(shape("bshd"))
    weight = parameter(channels(x, "bshd", kind[1])).requires_grad_()

    def grads(x, grad):
        x = x.detach().requires_grad_()
        y = posenc_ext.norm_rope(x, weight, cos, sin, **rule(*kind))
        return torch.autograd.grad(y, (x, weight), grad)

    for view in VIEWS.values():
        a, b = view(x), view(grad)
        for got, right in zip(grads(a, b), grads(a.contiguous(), b.contiguous()), strict=True):
            assert_bits(got, right)


@every_rule
def test_every_order(kind):
    cos, sin = (t[:3].clone().requires_grad_() for t in table(2, F64))
    x = uniform((1, 3, 2, 5), F64).requires_grad_()
    weight, bias = (
        parameter(channels(x, "bshd", kind[1]), F64, i).requires_grad_() for i in (1, 2)
    )
    tensors = x, weight, bias, cos, sin

    def one(x, weight, bias, cos, sin):
        return posenc_ext.norm_rope(x, weight, cos, sin, bias=bias, **rule(*kind))

    def pair(x, weight, bias, cos, sin):
        options = {"q_bias": bias, "eps": 1e-3, **rule(*kind)}
        return posenc_ext.qk_norm_rope(x, x * 2 + 1, weight, None, cos, sin, **options)

    def in_place(x, weight, bias, cos, sin):
        options = {"bias": bias, "inplace": True, **rule(*kind)}
        return posenc_ext.norm_rope(x * 1, weight, cos, sin, **options)

    for function in (one, pair):
        assert gradcheck(function, tensors, check_forward_ad=True)
        assert gradgradcheck(function, tensors)
    assert gradcheck(in_place, tensors)
    # The composed formula of a gradient that is differentiated equals the native one.
    y, g = one(*tensors), uniform(x.shape, F64, 4)
    for native, composed in zip(
        torch.autograd.grad(y, tensors[:3], g, retain_graph=True),
        torch.autograd.grad(y, tensors[:3], g, create_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(composed, native, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_what_needs_no_gradient_gets_none(dtype):
    cos, sin = table(16)
    q, k = uniform((1, 3, 2, 32), dtype).requires_grad_(), uniform((1, 3, 1, 32), dtype)
    weight = parameter(32).requires_grad_()
    for frozen in (False, True):
        given = weight.detach() if frozen else weight
        y, z = posenc_ext.qk_norm_rope(q, k, given, None, cos, sin)
        assert y.requires_grad
        assert not z.requires_grad
        y.sum().backward()
    assert weight.grad.dtype == torch.float32
    (only,) = torch.autograd.grad(
        posenc_ext.norm_rope(q, weight, cos, sin).sum(), (weight,), retain_graph=True
    )
    assert_bits(only, weight.grad)


def test_only_the_inputs_are_kept():
    """q and k as they came; no normalised copy, and no statistic of their size."""
    cos, sin = table(16)
    q, k = (uniform((2, 5, h, 32), torch.bfloat16).requires_grad_() for h in (4, 2))
    weight = parameter(32).requires_grad_()
    kept = []

    def pack(t):
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        posenc_ext.qk_norm_rope(q, k, weight, weight, cos, sin)
    assert {t.data_ptr() for t in kept} <= {t.data_ptr() for t in (q, k, weight, cos, sin)}


def test_gradients_of_tables_equal_two_steps():
    """In bfloat16 too: nothing is rounded between norm and rotation."""
    x, grad = uniform((1, 3, 2, 32), torch.bfloat16), uniform((1, 3, 2, 32), torch.bfloat16, 2)
    cos, sin = (t.requires_grad_() for t in table(16))
    for order, rotate in itertools.product(("norm_first", "rope_first"), (False, True)):
        options = {"order": order, "interleaved": rotate}
        tables = []
        for dtype in (torch.bfloat16, torch.float32):
            y = posenc_ext.norm_rope(x.to(dtype), None, cos, sin, **options)
            tables += torch.autograd.grad(y, (cos, sin), grad.to(dtype))
        assert_bits(tables[0], tables[2])
        assert_bits(tables[1], tables[3])
