"""Norms that wait for the rotation, in an attention of one's own that does other things as well."""

import pytest
import torch
from rope_cases import uniform
from waiting_cases import TABLES, X, fused, own_attention, results

import posenc_ext
from posenc_ext.compat.hf_pending import PendingNorm
from posenc_ext.compat.transformers import patch


@pytest.fixture
def attention(monkeypatch):
    yield from own_attention(monkeypatch)


def in_place(inputs, q, k):
    view = q.transpose(0, 1)
    with torch.no_grad():
        q.mul_(2)
    assert torch.equal(view, q.transpose(0, 1))
    return q, k


BETWEEN = {
    "nothing": lambda inputs, q, k: (q, k),
    "arithmetic": lambda inputs, q, k: (2 * q, k + 1),
    "one of them": lambda inputs, q, k: (q.relu(), k),
    "a part": lambda inputs, q, k: (q[:, :, 1:], k),
    "both in one": lambda inputs, q, k: torch.cat([q, k], 2).split([4, 2], 2),
    "in place": in_place,
    "views": lambda inputs, q, k: (q.view(2, 5, 32).view(q.shape), k.reshape(k.shape)),
    "channels moved": lambda inputs, q, k: (q.transpose(2, 3).reshape(q.shape), k),
    "heads swapped": lambda inputs, q, k: (q.view(2, 5, 8, 4).transpose(2, 3), k),
    "another reader": lambda inputs, q, k: (q, k + q.sum()),
    "without gradient": lambda inputs, q, k: (q.detach(), k),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_whatever_else_reads_them_gets_the_result(case, attention):
    attention.between = BETWEEN[case]
    right = results(attention)
    attention.between = None
    fused(attention).between = BETWEEN[case]
    for mine, wanted in zip(results(attention), right, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def turned(x):
    return posenc_ext.rope(x, *(t[0, :, :4] for t in TABLES))


@pytest.mark.parametrize("function", [Double.apply, turned], ids=["Python", "C++"])
def test_a_function_that_would_lose_the_gradient(function, attention):
    attention.between = lambda inputs, q, k: (function(q), k)
    right = results(attention)
    attention.between, between = None, attention.between
    fused(attention).between = between
    with pytest.raises(NotImplementedError, match="fuse_norm must be False where a torch autograd"):
        results(attention)
    with torch.no_grad():
        for mine, wanted in zip(attention(X, TABLES), right, strict=False):
            torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


def test_an_input_that_is_written_to(attention):
    def write(inputs, q, k):
        with torch.no_grad():
            inputs[0].mul_(2)
        return q, k

    fused(attention).between = write
    with pytest.raises(RuntimeError, match="fuse_norm must be False where the input of a norm"):
        attention(X, TABLES)


def test_a_weight_that_is_written_to(attention):
    norm = fused(attention).q_norm
    waiting = norm(uniform((2, 5, 4, 8)))
    with torch.no_grad():
        norm.weight.mul_(2)
    with pytest.raises(RuntimeError, match="fuse_norm must be False where the input of a norm"):
        waiting.sum()


def test_the_mode_of_gradients_is_that_of_the_call(attention):
    norm = fused(attention).q_norm
    with torch.no_grad():
        waiting = norm(uniform((2, 5, 4, 8)))
    assert not (2 * waiting).requires_grad
    waiting = norm(uniform((2, 5, 4, 8)))
    with torch.no_grad():
        waiting.resolve()
    assert type(waiting) is PendingNorm
    assert (2 * waiting).requires_grad


class Centred(torch.nn.Module):
    """Nearly an RMS norm."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.eps, self.weight = kind, 1e-5, torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        if self.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        axis = -2 if self.kind == "axis" else -1
        mean = x.pow(2).mean(axis, keepdim=True)
        y = x / (mean.sqrt() + self.eps if self.kind == "eps" else (mean + self.eps).sqrt())
        return y * self.weight.clamp(0) if self.kind == "weight" else y * self.weight


@pytest.mark.parametrize("kind", ["layer", "axis", "eps", "weight"])
def test_what_is_no_such_norm_is_refused(kind, attention):
    attention.q_norm, attention.k_norm = Centred(kind), Centred(kind)
    with pytest.raises(ValueError, match=r"got Attention: Attention\.k_norm is no RMS norm"):
        patch(attention, fuse_norm=True)
    attention.q_norm, attention.k_norm = Centred(""), Centred("")
    fused(attention)


def test_norms_of_two_kinds_are_done_one_after_the_other(attention):
    attention.k_norm.eps = 1e-3
    right = results(attention)
    with pytest.raises(ValueError, match="no norm of Attention came to the rotation"):
        patch(attention, fuse_norm=True)
    patch(attention)
    for mine, wanted in zip(results(attention), right, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "text", "given", "options"),
    [
        (TypeError, "fuse_norm must be a bool, got int", "model", {"fuse_norm": 1}),
        (ValueError, "fuse_norm must be False unless a model is given, got type", "class", {}),
        (ValueError, "fuse_norm must be False with rounding 'transformers'", "model",
         {"rounding": "transformers"}),
    ],
)  # fmt: skip
def test_errors(kind, text, given, options, attention):
    with pytest.raises(kind, match=rf"^posenc_ext\.patch: {text}"):
        patch(attention if given == "model" else type(attention), **{"fuse_norm": True, **options})
