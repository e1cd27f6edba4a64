"""Gradients of the ALiBi functions: to scores and slopes, once, twice and forward."""

import numpy as np
import pytest
import torch
from alibi_cases import (
    assert_close,
    causal_mask,
    expected,
    mask_of,
    scores_of,
    slopes_of,
    softmax_by_bias,
)
from oracle_alibi import TOLERANCE_GRAD
from rope_cases import DTYPES, VIEWS, assert_bits, name, uniform

import posenc_ext

F64 = torch.float64
OPS = torch.ops.posenc_ext
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)

POSITIONS = torch.tensor([[0, 0, 1, 2], [3, 0, 7, 1]])

# Every way to call: (function of scores and slopes, lengths, batch of the slopes).
CALLS = {
    "softmax": (lambda s, m: posenc_ext.alibi_softmax(s, m, scale=0.7), (3, 4), None),
    "softmax_causal": (
        lambda s, m: posenc_ext.alibi_softmax(s, m, scale=-1.3, causal=True), (3, 4), None),
    "softmax_long_q": (
        lambda s, m: posenc_ext.alibi_softmax(s, m, causal=True), (4, 2), None),
    "softmax_batched": (lambda s, m: posenc_ext.alibi_softmax(s, m, scale=2), (2, 3), 2),
    "softmax_padded": (
        lambda s, m: posenc_ext.alibi_softmax(
            s, m, key_padding_mask=mask_of(2, 4), causal=True), (3, 4), None),
    "add": (lambda s, m: posenc_ext.add_alibi(s, m), (3, 4), None),
    "add_batched": (lambda s, m: posenc_ext.add_alibi(s, m), (3, 2), 2),
    # -inf has no finite difference: sent through exp, as a softmax does
    "add_causal": (lambda s, m: posenc_ext.add_alibi(s, m, causal=True).exp(), (3, 4), None),
    "add_inplace": (
        lambda s, m: posenc_ext.add_alibi(s * 1.5, m, inplace=True).exp(), (3, 4), None),
    "add_inplace_causal": (
        lambda s, m: posenc_ext.add_alibi(s.clone(), m, inplace=True, causal=True).exp(),
        (3, 4), 2),
    "bias": (lambda s, m: s * posenc_ext.alibi_bias(m, 3, 4, dtype=F64), (3, 4), None),
    "bias_causal": (
        lambda s, m: (s + posenc_ext.alibi_bias(m, 3, 4, causal=True, dtype=F64)).exp(),
        (3, 4), 2),
    "bias_positions": (
        lambda s, m: s * posenc_ext.alibi_bias(m, 3, dtype=F64, key_positions=POSITIONS),
        (3, 4), None),
    "row_bias": (
        lambda s, m: torch.softmax(s + posenc_ext.alibi_row_bias(m, 4, dtype=F64), -1),
        (3, 4), None),
}  # fmt: skip
every_call = pytest.mark.parametrize("call", CALLS)


def inputs(call, device="cpu", heads=2):
    function, lengths, batch = CALLS[call]
    scores = scores_of(lengths, F64, heads=heads, device=device).requires_grad_()
    return function, (scores, slopes_of(heads, F64, batch, device).requires_grad_())


@every_call
def test_gradcheck(call):
    function, tensors = inputs(call)
    assert torch.autograd.gradcheck(function, tensors, check_forward_ad=True)


@every_call
def test_gradgradcheck(call):
    function, tensors = inputs(call, heads=1)
    if call in ("softmax", "softmax_causal", "bias_positions"):
        assert torch.autograd.gradgradcheck(function, tensors, check_fwd_over_rev=True)
    else:
        assert torch.autograd.gradgradcheck(function, tensors)


@every_call
def test_third_order(call):
    """A gradient penalty of a gradient penalty runs, and differs from none."""
    function, (scores, slopes) = inputs(call)

    def norm(of, value):
        grads = torch.autograd.grad(value, of, create_graph=True, allow_unused=True)
        return sum((g**2).sum() for g in grads if g is not None)

    second = norm((scores, slopes), (function(scores, slopes) ** 3).sum())
    third = norm((scores, slopes), second)
    third.backward()
    assert scores.grad.isfinite().all()
    assert slopes.grad.isfinite().all()
    assert slopes.grad.abs().sum() > 0


def test_golden(golden):
    inputs, right = golden["alibi/grad_slope"]["inputs"], golden["alibi/grad_slope"]["expected"]
    scores = torch.tensor([[inputs["scores"]]], dtype=F64)
    v = torch.tensor(inputs["v"], dtype=F64)
    i, j = torch.arange(3)[:, None], torch.arange(3)
    mask = causal_mask(3, 3, F64)

    def relative(m):
        return softmax_by_bias(scores, m[:, None, None] * (j - i) + mask)

    def index(m):
        return softmax_by_bias(scores, m[:, None, None] * j + mask)

    def row(m):
        return softmax_by_bias(scores, posenc_ext.alibi_row_bias(m, 3, dtype=F64) + mask)

    def bias(m):
        return softmax_by_bias(scores, posenc_ext.alibi_bias(m, 3, causal=True, dtype=F64))

    def added(m):
        return torch.softmax(posenc_ext.add_alibi(scores, m, causal=True), -1)

    def fused(m):
        return posenc_ext.alibi_softmax(scores, m, causal=True)

    for form in (relative, index, row, bias, added, fused):
        slope = torch.tensor([inputs["slope"]], dtype=F64, requires_grad=True)
        out = form(slope)[0, 0] @ v
        out.sum().backward()
        np.testing.assert_allclose(out.detach().numpy(), right["out"], rtol=1e-14)
        np.testing.assert_allclose(slope.grad.item(), right["dslope"], rtol=1e-13)


@both_masks
@every_dtype
@pytest.mark.parametrize("batch", [None, 2], ids=["H", "BH"])
@pytest.mark.parametrize("padding", [False, True], ids=["real", "padded"])
def test_softmax_against_the_oracle(padding, batch, dtype, causal):
    """What gradcheck cannot see: float32 and half types, with dtypes of gradients."""
    options = {"scale": 0.5, "causal": causal}
    if padding:
        options["key_padding_mask"] = mask_of(2, 23)
    scores, slopes = scores_of((13, 23), dtype), slopes_of(batch=batch)
    scores.requires_grad_()
    slopes.requires_grad_()
    y = posenc_ext.alibi_softmax(scores, slopes, **options)
    g = uniform(y.shape, dtype, 7)
    grads = torch.autograd.grad(y, (scores, slopes), g)
    right = expected("alibi_softmax_grads", g, scores, slopes, **options)
    rtol, atol = TOLERANCE_GRAD[name(dtype)]
    assert (grads[0].dtype, grads[1].dtype) == (dtype, torch.float32)
    assert_close(grads[0], right[0], TOLERANCE_GRAD)
    # 13 * 23 cells and distances up to 22
    assert_close(grads[1], right[1], {"float32": (rtol, max(atol, 1e-6) * 100)})


@both_masks
@every_dtype
def test_slope_gradients_against_the_oracle(dtype, causal):
    g = uniform((2, 3, 9, 21), dtype, 7)
    visible = g.tril(12) if causal else g
    for slopes in (slopes_of(), slopes_of(batch=2)):
        slopes.requires_grad_()
        right = expected("slope_grads", visible, slopes)
        outs = [posenc_ext.add_alibi(torch.zeros_like(g), slopes, causal=causal)]
        if slopes.dim() == 2:
            outs.append(posenc_ext.alibi_bias(slopes, 9, 21, causal=causal, dtype=dtype))
        for y in outs:
            (actual,) = torch.autograd.grad(y, slopes, g)
            assert_close(actual, right, {"float32": (1e-6, 1e-5)})


@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_any_stride(view):
    scores, slopes = scores_of((9, 37)).requires_grad_(), slopes_of().requires_grad_()
    g = VIEWS[view](uniform(scores.shape, seed=3))
    for call in (
        lambda: posenc_ext.alibi_softmax(scores, slopes, causal=True),
        lambda: posenc_ext.add_alibi(scores, slopes, causal=True),
    ):
        grads = torch.autograd.grad(call(), (scores, slopes), g)
        for a, b in zip(
            grads, torch.autograd.grad(call(), (scores, slopes), g.contiguous()), strict=True
        ):
            assert_bits(a, b)


@both_masks
def test_only_what_is_asked_for_is_computed(causal):
    for wanted in (0, 1):
        tensors = [scores_of((5, 6)), slopes_of()]
        tensors[wanted].requires_grad_()
        for op in (posenc_ext.alibi_softmax, posenc_ext.add_alibi):
            y = op(*tensors, causal=causal)
            assert y.requires_grad
            (grad,) = torch.autograd.grad(y, tensors[wanted], torch.ones_like(y))
            assert grad.shape == tensors[wanted].shape
    assert not posenc_ext.alibi_softmax(scores_of((5, 6)), slopes_of()).requires_grad


def test_blind_rows_have_zero_gradients():
    scores, slopes = scores_of((6, 3), F64).requires_grad_(), slopes_of(dtype=F64).requires_grad_()
    keep = torch.tensor([[True] * 3, [False] * 3])
    y = posenc_ext.alibi_softmax(scores, slopes, causal=True, key_padding_mask=keep)
    y.backward(uniform(y.shape, F64, 2))
    assert not scores.grad[:, :, :3].any()
    assert not scores.grad[1].any()
    assert scores.grad[0, :, 4:].abs().sum() > 0
    assert slopes.grad.isfinite().all()


@both_masks
def test_forms_give_the_same_gradients(causal):
    """On causal rows all forms agree; without a mask only the symmetric one is ALiBi."""
    results = []
    mask = causal_mask(11, 11, F64) if causal else torch.zeros(11, 11, dtype=F64)
    upstream = uniform((2, 3, 11, 11), F64, 4)
    forms = [
        lambda s, m: posenc_ext.alibi_softmax(s, m, causal=causal),
        lambda s, m: torch.softmax(posenc_ext.add_alibi(s, m, causal=causal), -1),
        lambda s, m: softmax_by_bias(s, posenc_ext.alibi_bias(m, 11, dtype=F64) + mask),
    ]
    if causal:
        forms.append(lambda s, m: softmax_by_bias(
            s, posenc_ext.alibi_row_bias(m, 11, dtype=F64) + mask))  # fmt: skip
    for form in forms:
        scores, slopes = scores_of((11, 11), F64), slopes_of(dtype=F64)
        tensors = (scores.requires_grad_(), slopes.requires_grad_())
        results.append(torch.autograd.grad(form(*tensors), tensors, upstream))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-11, atol=1e-12)
