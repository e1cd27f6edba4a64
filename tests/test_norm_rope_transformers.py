"""qk_norm_rope against the norms and rotations of transformers' own attention, on random weights.

Sums of squares have another order there, so bits may differ. In units of 2**-23 of the length of a
pair (u, v), which rotation keeps, ours are within 3 of the exact value and within 4 of theirs.
"""

import numpy as np
import pytest
import torch
from rope_cases import full_width, rotate_half, table, uniform

import posenc_ext

pytest.importorskip("transformers", reason="transformers is not installed")
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.olmo2 import modeling_olmo2 as olmo2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

B, S, H, K, D = 2, 33, 8, 2, 64
COS, SIN = table(D // 2, length=S)


def heads(dtype=torch.float32):
    return uniform((B, S, H, D), dtype), uniform((B, S, K, D), dtype, 1)


def randomised(norm, dtype=torch.float32, seed=2):
    with torch.no_grad():
        norm.weight.copy_(uniform(norm.weight.shape, torch.float32, seed))
    return norm.to(dtype)


def rotated(module, q, k):
    """Their rotation, which takes heads first."""
    tables = (full_width(t, False)[None].to(q.dtype) for t in (COS, SIN))
    q, k = module.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *tables)
    return q.transpose(1, 2), k.transpose(1, 2)


def assert_units(actual, right, interleaved=False):
    if interleaved:
        u, v = right[..., ::2], right[..., 1::2]
    else:
        u, v = right.chunk(2, -1)
    length = full_width(torch.hypot(u, v), interleaved).numpy()
    error = np.abs(actual.detach().numpy() - right.detach().numpy())
    assert (error / length).max() <= 4 * np.finfo(np.float32).eps


def check(given, right, interleaved=False):
    for a, b in zip(given, right, strict=True):
        assert_units(a, b, interleaved)


@torch.no_grad()
@pytest.mark.parametrize(
    ("module", "norm", "offset"),
    [(qwen3, "Qwen3RMSNorm", 0.0), (gemma3, "Gemma3RMSNorm", 1.0)],
    ids=["qwen3", "gemma3"],
)
def test_each_head(module, norm, offset):
    q, k = heads()
    norms = [randomised(getattr(module, norm)(D, eps=1e-6), seed=i) for i in (2, 3)]
    weights = [n.weight for n in norms]
    given = posenc_ext.qk_norm_rope(q, k, *weights, COS, SIN, weight_offset=offset)
    exact = (x.double() * (x.double().square().mean(-1, True) + 1e-6).rsqrt() for x in (q, k))
    scaled = [x * (w.double() + offset) for x, w in zip(exact, weights, strict=True)]
    for ours, x in zip(given, scaled, strict=True):
        right = posenc_ext.rope(x, COS, SIN)
        length = torch.hypot(*right.chunk(2, -1)).repeat(1, 1, 1, 2)
        assert ((ours - right).abs() / length).max() <= 3 * 2**-23
    check(given, rotated(module, norms[0](q), norms[1](k)))


@torch.no_grad()
def test_all_heads_of_olmo2():
    q, k = heads()
    norms = [randomised(olmo2.Olmo2RMSNorm(n * D, eps=1e-6), seed=n) for n in (H, K)]
    given = posenc_ext.qk_norm_rope(q, k, *(n.weight for n in norms), COS, SIN, norm_dims="all")
    normed = [n(x.flatten(2)).view(x.shape) for n, x in zip(norms, (q, k), strict=True)]
    check(given, rotated(olmo2, *normed))


@torch.no_grad()
def test_llama4_normalises_what_is_rotated():
    q, k = heads()
    norm = llama4.Llama4TextL2Norm(1e-5)
    turned = llama4.apply_rotary_emb(q, k, torch.complex(COS, SIN)[None])
    given = posenc_ext.qk_norm_rope(
        q, k, None, None, torch.complex(COS, SIN), eps=1e-5, order="rope_first"
    )
    check(given, map(norm, turned), interleaved=True)


@torch.no_grad()
def test_interleaved_as_in_diffusers():
    """Flux: RMSNorm with a weight for each head, heads first, then neighbouring channels."""
    q, k = (x.transpose(1, 2) for x in heads())
    norms = [randomised(torch.nn.RMSNorm(D, eps=1e-6), seed=i) for i in (4, 5)]
    cos, sin = (full_width(t, True) for t in (COS, SIN))
    right = [n(x) * cos + rotate_half(n(x), True) * sin for n, x in zip(norms, (q, k), strict=True)]
    weights = [n.weight for n in norms]
    options = {"layout": "bhsd", "interleaved": True}
    check(posenc_ext.qk_norm_rope(q, k, *weights, COS, SIN, **options), right, interleaved=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("norm", "options"),
    [
        (qwen3.Qwen3RMSNorm, {"rounding": "transformers"}),
        (gemma3.Gemma3RMSNorm, {"rounding": "norm", "weight_offset": 1.0}),
    ],
    ids=["qwen3", "gemma3"],
)
def test_roundings_in_bfloat16(norm, options):
    """Their norm has our bits, but where another order of a sum decides how a value is rounded."""
    q, _ = heads(torch.bfloat16)
    norm = randomised(norm(D, eps=1e-6), torch.bfloat16)
    still = torch.ones(S, D // 2), torch.zeros(S, D // 2)
    same = []
    for rounding in ("once", options["rounding"]):
        given = posenc_ext.norm_rope(q, norm.weight, *still, **{**options, "rounding": rounding})
        same.append((given == norm(q)).float().mean().item())
    assert same[1] > 0.999
    assert options["rounding"] == "norm" or same[1] > same[0]
