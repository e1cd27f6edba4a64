"""The functions of LLaMA's own code, against that code's formula in torch."""

import pytest
import torch
from rope_cases import assert_bits, assert_close, expected, uniform

from posenc_ext import rope_frequencies, rope_table
from posenc_ext.compat.llama import apply_rotary_emb, precompute_freqs_cis


def their_angles(dim, end, theta):
    freqs = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    return torch.outer(torch.arange(end).float(), freqs)


def their_rotation(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs_cis[None, :, None]).flatten(3).type_as(x)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_precompute_freqs_cis(theta):
    ours = precompute_freqs_cis(128, 5000, theta)
    angles = their_angles(128, 5000, theta)
    right = torch.polar(torch.ones_like(angles), angles)
    assert ours.dtype == torch.complex64
    torch.testing.assert_close(ours, right, rtol=0, atol=1e-7)
    assert_bits(ours.real, angles.cos())
    assert_bits(ours.imag, angles.sin())


def test_scaled_and_exact():
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    ours = precompute_freqs_cis(128, 300, 500000.0, True, precision="exact")
    cos, sin = rope_table(300, rope_frequencies(128, 500000.0, scaling).inv_freq)
    assert_bits(ours.real, cos)
    assert_bits(ours.imag, sin)
    assert not torch.equal(ours, precompute_freqs_cis(128, 300, 500000.0, precision="exact"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_apply_rotary_emb(dtype):
    q, k = uniform((2, 5, 4, 16), dtype), uniform((2, 5, 2, 16), dtype, 1)
    freqs_cis = precompute_freqs_cis(16, 40)[7:12]
    ours = apply_rotary_emb(q, k, freqs_cis)
    for mine, x in zip(ours, (q, k), strict=True):
        assert mine.dtype == dtype
        assert_close(mine, expected("rope", x, freqs_cis))
        tolerance = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
        torch.testing.assert_close(mine, their_rotation(x, freqs_cis), rtol=0, atol=tolerance)


X = uniform((2, 5, 4, 16))


@pytest.mark.parametrize(
    ("kind", "text", "table"),
    [
        (ValueError, "[S, D/2] = [5, 8], got [6, 8]", precompute_freqs_cis(16, 6)),
        (ValueError, "[S, D/2] = [5, 8], got [5, 4]", precompute_freqs_cis(8, 5)),
        (ValueError, "[S, D/2] = [5, 8], got [1, 5, 8]", precompute_freqs_cis(16, 5)[None]),
        (TypeError, "must be complex, got torch.float32", torch.zeros(5, 8)),
    ],
)
def test_errors(kind, text, table):
    with pytest.raises(kind, match=r"^posenc_ext\.apply_rotary_emb: freqs_cis ") as raised:
        apply_rotary_emb(X, X, table)
    assert text in str(raised.value)
