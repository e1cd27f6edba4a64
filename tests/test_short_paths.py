"""Eager calls on plain tensors that do not enter the Python of the longer way, and equal it."""

import pytest
import torch
from rope_cases import assert_bits, table, uniform

import posenc_ext
from posenc_ext.nn import rotary_positions
from posenc_ext.ops import rope as rope_module

COS, SIN = table(4)
Q, K = uniform((2, 5, 3, 8)), uniform((2, 5, 1, 8), seed=1)


def never(*_, **__):
    raise AssertionError("the longer way")


def gradients(of, call):
    inputs = [t.clone().requires_grad_() for t in of]
    results = call(*inputs)
    results = [results] if isinstance(results, torch.Tensor) else results
    return torch.autograd.grad(results, inputs, [torch.ones_like(t) for t in results])


@pytest.mark.parametrize(
    "options", [{}, {"offset": 2}, {"positions": torch.tensor([4, 1, 0, 2, 3])}]
)
@pytest.mark.parametrize("inverse", [False, True])
def test_a_gradient_in_what_is_rotated_alone(options, inverse, monkeypatch):
    def both(q, k):
        return posenc_ext.apply_rope(q, k, COS, SIN, inverse=inverse, **options)

    def one(x):
        return posenc_ext.rope(x, COS, SIN, inverse=inverse, interleaved=True, **options)

    with monkeypatch.context() as patch:  # the longer way, for comparison
        patch.setattr(rope_module._C, "apply_rope", lambda *_: None)
        patch.setattr(rope_module._C, "rope", lambda *_: None)
        right = gradients((Q, K), both) + gradients((Q,), one)
    for name in ("rope_options", "rotate", "rotate_pair"):
        monkeypatch.setattr(rope_module, name, never)
    for mine, wanted in zip(gradients((Q, K), both) + gradients((Q,), one), right, strict=True):
        assert_bits(mine, wanted)
    assert not posenc_ext.apply_rope(Q.clone().requires_grad_(), K, COS, SIN)[1].requires_grad
    with pytest.raises(AssertionError, match="the longer way"):
        posenc_ext.apply_rope(Q, K, COS.clone().requires_grad_(), SIN)


def test_a_module_with_its_table_at_hand(monkeypatch):
    module = posenc_ext.RotaryPositionalEmbedding(8)
    right = module(Q, K, offset=3), module(Q, offset=1)
    monkeypatch.setattr(rotary_positions, "check_inputs", never)
    for mine, wanted in zip(module(Q, K, offset=3), right[0], strict=True):
        assert_bits(mine, wanted)
    assert_bits(module(Q, offset=1), right[1])
    with pytest.raises(AssertionError, match="the longer way"):
        module(Q, K, offset=30)
