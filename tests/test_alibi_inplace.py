"""add_alibi in place: what is written, what autograd makes of it, and what is refused."""

import pytest
import torch
from alibi_cases import scores_of, slopes_of
from rope_cases import DTYPES, VIEWS, assert_bits, name, uniform
from torch.autograd import forward_ad

import posenc_ext

F64 = torch.float64
WRITABLE = [view for view in VIEWS if view != "expanded"]
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


@both_masks
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("view", WRITABLE)
def test_inplace_writes_scores_and_returns_them(view, dtype, causal):
    scores, slopes = VIEWS[view](scores_of((9, 21), dtype)), slopes_of()
    right = posenc_ext.add_alibi(scores, slopes, causal=causal)
    version = scores._version
    assert posenc_ext.add_alibi(scores, slopes, causal=causal, inplace=True) is scores
    assert scores._version > version
    assert_bits(scores, right)


@both_masks
def test_nothing_around_is_written(causal):
    buffer = torch.full((1 + 2 * 3 * 5 * 11 + 9,), 7.0)
    scores = buffer[1:-9].view(2, 3, 5, 11)[..., 1:9]
    scores.copy_(scores_of((5, 8)))
    posenc_ext.add_alibi(scores, slopes_of(), causal=causal, inplace=True)
    scores.fill_(7.0)
    assert bool((buffer == 7.0).all())


@both_masks
def test_gradients_equal_out_of_place_ones(causal):
    def grads(inplace):
        scores, slopes = scores_of((4, 5), F64), slopes_of(dtype=F64)
        tensors = (scores.requires_grad_(), slopes.requires_grad_())
        y = posenc_ext.add_alibi(scores * 1.5, slopes, causal=causal, inplace=inplace)
        return torch.autograd.grad(y.exp().sum() + y.sigmoid().sum(), tensors)

    for a, b in zip(grads(True), grads(False), strict=True):
        assert_bits(a, b)


def test_a_view_reaches_its_base():
    base, slopes = scores_of((4, 6), F64).requires_grad_(), slopes_of(dtype=F64).requires_grad_()
    whole = base * 1.0
    posenc_ext.add_alibi(whole[..., 1:], slopes, inplace=True)
    whole.exp().sum().backward()
    other = base.detach().clone().requires_grad_()
    part = posenc_ext.add_alibi(other[..., 1:], slopes.detach())
    (other[..., :1].exp().sum() + part.exp().sum()).backward()
    torch.testing.assert_close(base.grad, other.grad)
    assert slopes.grad.abs().sum() > 0


def test_a_value_saved_before_is_not_used_after():
    scores = scores_of((4, 5)).requires_grad_() * 1.0
    y = (scores**2).sum()
    posenc_ext.add_alibi(scores, slopes_of(), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_scores_without_gradient_take_the_graph_of_the_slopes():
    scores, slopes = scores_of((4, 5)), slopes_of().requires_grad_()
    assert posenc_ext.add_alibi(scores, slopes, inplace=True) is scores
    scores.sum().backward()
    assert slopes.grad.abs().sum() > 0


@both_masks
def test_forward_mode(causal):
    scores, slopes = scores_of((4, 5), F64), slopes_of(dtype=F64)
    tangents = uniform(scores.shape, F64, 3), uniform(slopes.shape, F64, 4)
    results = []
    for inplace in (False, True):
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(t.clone(), d.clone())
                for t, d in zip((scores, slopes), tangents, strict=True)
            ]
            y = posenc_ext.add_alibi(*duals, causal=causal, inplace=inplace)
            results.append(forward_ad.unpack_dual(y))
    for a, b in zip(*results, strict=True):
        assert_bits(a, b)


def test_a_leaf_may_be_written_without_grad_mode():
    scores = scores_of((4, 5)).requires_grad_()
    with torch.no_grad():
        right = posenc_ext.add_alibi(scores, slopes_of())
        assert_bits(posenc_ext.add_alibi(scores, slopes_of(), inplace=True), right)
    assert scores.is_leaf


def test_what_autograd_would_refuse_is_refused_before_the_write():
    with torch.inference_mode():
        slopes = slopes_of()
    scores = scores_of((4, 5)).requires_grad_() * 1.0
    before = scores.detach().clone()
    with pytest.raises(ValueError, match=r"posenc_ext.add_alibi: slopes must not be an inference"):
        posenc_ext.add_alibi(scores, slopes, inplace=True)
    assert_bits(scores.detach(), before)


def test_inference_tensors():
    with torch.inference_mode():
        scores = scores_of((4, 5))
        right = posenc_ext.add_alibi(scores, slopes_of())
        assert_bits(posenc_ext.add_alibi(scores, slopes_of(), inplace=True), right)
