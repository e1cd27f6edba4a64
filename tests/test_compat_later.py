"""Norms that were fused by `patch` and changed afterwards, and norms that cannot be fused."""

import functools
import sys
import threading

import pytest
import torch
import torch.nn.utils.parametrize
import torch.nn.utils.prune
from patch_cases import llama
from waiting_cases import fused, own_attention, results

from posenc_ext.compat import hf_norms
from posenc_ext.compat.transformers import patch, unpatch


@pytest.fixture
def attention(monkeypatch):
    yield from own_attention(monkeypatch)


def same_unpatched(attention):
    """The results of the fused attention, then of itself."""
    fused_results = results(attention)
    unpatch(attention)
    for mine, right in zip(fused_results, results(attention), strict=True):
        torch.testing.assert_close(mine, right)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2


def plain(norm):
    weight = norm.weight.detach() * 2
    del norm.weight
    norm.weight = weight


# What happens to a norm after it was fused.
LATER = {
    "eps": lambda norm: setattr(norm, "eps", 0.5),
    "parametrized": lambda norm: torch.nn.utils.parametrize.register_parametrization(
        norm, "weight", Doubled()
    ),
    "pruned": lambda norm: torch.nn.utils.prune.l1_unstructured(norm, "weight", 0.5),
    "plain": plain,
    "wrapped": lambda norm: setattr(norm, "forward", functools.partial(norm.forward)),
    "class": lambda norm: setattr(
        norm, "__class__", type("Laid", (type("Mix", (), {}), type(norm)), {})
    ),
}


@pytest.mark.parametrize("case", LATER)
def test_a_norm_that_is_changed_later(case, attention):
    fused(attention)
    for norm in (attention.q_norm, attention.k_norm):
        LATER[case](norm)
    same_unpatched(attention)


def test_the_code_of_a_norm_that_is_replaced_later(attention):
    fused(attention)
    kind = type(attention.q_norm).__mro__[1]
    before = kind.forward
    kind.forward = lambda self, x: before(self, x) * 2
    same_unpatched(attention)


def test_a_statistic_without_gradients(attention):
    """Its views are read first where gradients are off, then rotated where they are on."""

    def between(inputs, q, k):
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        with torch.no_grad():
            attention.largest = q.abs().max(), k.abs().max()
        return q.transpose(1, 2), k.transpose(1, 2)

    fused(attention).between = between
    same_unpatched(attention)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_default_dtype(dtype, attention):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        fused(attention)
    finally:
        torch.set_default_dtype(before)
    same_unpatched(attention)


def in_training(norm):
    kind = type(norm)
    forward = kind.forward
    kind.forward = lambda self, x: forward(self, x) * (1 + self.training)


# What a norm is that cannot be fused, and the reason given.
UNFIT = {
    "training": (in_training, "computes something else in training"),
    "lock": (lambda norm: setattr(norm, "_lock", threading.Lock()), "cannot be copied: TypeError"),
    "config": (lambda norm: setattr(norm, "options", {"eps": 1e-5}), "keeps options, which may be"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_norms_are_refused_and_nothing_is_swapped(case, attention):
    change, text = UNFIT[case]
    family = sys.modules["modeling_family"]
    change(attention.eval().q_norm)
    if case != "training":
        change(attention.k_norm)
    with pytest.raises(ValueError, match=text):
        patch(attention, fuse_norm=True)
    assert family.apply_rotary_pos_emb is llama


def test_what_the_code_of_a_model_raises_undoes_the_patch(attention, monkeypatch):
    def broken(part):
        raise KeyboardInterrupt

    monkeypatch.setattr(hf_norms, "_fuse_in", broken)
    with pytest.raises(KeyboardInterrupt):
        patch(attention, fuse_norm=True)
    assert sys.modules["modeling_family"].apply_rotary_pos_emb is llama
