"""Offsets beyond 32 bits in every op, for a few elements in memory that is never touched."""

import pytest
import torch
from rope_cases import assert_bits, table, uniform

import posenc_ext

FAR = 2**31 + 16


def far(x):
    """x [2, ...] with FAR elements between its two entries."""
    memory = torch.empty(FAR + x[0].numel(), dtype=x.dtype)
    return memory.as_strided(x.shape, (FAR, *x[0].stride())).copy_(x)


X, (COS, SIN) = uniform((2, 3, 2, 8), torch.bfloat16), table(4, torch.bfloat16, length=2)
ROWS = torch.tensor([1, 0, 1])
SCORES, SLOPES = uniform((2, 3, 4, 5), torch.float16), posenc_ext.alibi_slopes(3)
CALLS = {
    "rope": (X, lambda x: posenc_ext.rope(x, COS, SIN, positions=ROWS)),
    "rope_q_and_k": (X, lambda x: posenc_ext.apply_rope(x, x, COS, SIN, positions=ROWS)[1]),
    "rope_inplace": (X, lambda x: posenc_ext.rope(x, COS, SIN, positions=ROWS, inplace=True)),
    "rope_out": (X, lambda x: posenc_ext.rope(X, COS, SIN, positions=ROWS, out=x)),
    "norm_rope": (X, lambda x: posenc_ext.norm_rope(x, None, COS, SIN, positions=ROWS)),
    "norm_rope_backward": (X, lambda g: torch.autograd.grad(normed(), LEAVES[0], g)[0]),
    "rope_cos": (COS, lambda c: posenc_ext.rope(X, c, SIN, positions=ROWS)),
    "rope_positions": (
        ROWS[:2].int(),
        lambda p: posenc_ext.rope(X[:, :2], COS, SIN, positions=p),
    ),
    "rope_backward": (X, lambda g: torch.autograd.grad(rotated(), LEAVES, g)[1]),
    "rope_table": (torch.tensor([7, 900], dtype=torch.int32), lambda p: rope_table(p)[0]),
    "sinusoidal_table": (
        torch.tensor([7, 900], dtype=torch.int32),
        lambda p: posenc_ext.sinusoidal_table(p, 8),
    ),
    "add_sinusoidal": (X[:, :, 0].contiguous(), lambda x: posenc_ext.add_sinusoidal(x, offset=3)),
    "add_alibi": (SCORES, lambda s: posenc_ext.add_alibi(s, SLOPES)),
    "add_alibi_inplace": (SCORES, lambda s: posenc_ext.add_alibi(s, SLOPES, inplace=True)),
    "alibi_softmax": (SCORES, lambda s: posenc_ext.alibi_softmax(s, SLOPES, causal=True)),
    "relative_gather": (SCORES, lambda s: posenc_ext.relative_gather(s, torch.arange(7) % 5)),
}
LEAVES = [t.clone().requires_grad_() for t in (X, COS, SIN)]


def rotated():
    return posenc_ext.rope(*LEAVES, positions=ROWS)


def normed():
    return posenc_ext.norm_rope(LEAVES[0], None, COS, SIN, positions=ROWS)


def rope_table(positions):
    return posenc_ext.rope_table(positions, posenc_ext.rope_frequencies(8).inv_freq)


@pytest.mark.parametrize("call", CALLS)
def test_offsets_beyond_int32(call):
    x, function = CALLS[call]
    right = function(x.clone())
    assert_bits(function(far(x)), right)
    assert not torch.equal(right, torch.zeros_like(right))
