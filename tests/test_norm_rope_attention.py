"""RotaryAttention with a norm of queries and keys against NumPy, head by head."""

import numpy as np
import oracle_norm
import torch
from rope_cases import double, uniform

import posenc_ext

B, S, H, K, D = 2, 5, 4, 2, 6


@torch.no_grad()
def test_rms_norm_of_queries_and_keys():
    torch.manual_seed(0)
    attention = posenc_ext.RotaryAttention(H * D, H, K, qk_norm="rms", dtype=torch.float64)
    for seed, norm in enumerate((attention.q_norm, attention.k_norm)):
        norm.weight.copy_(uniform((D,), torch.float64, seed + 3))
    x = uniform((B, S, H * D), torch.float64)
    w = {name: double(p) for name, p in attention.named_parameters()}
    q, k, v = (
        (double(x) @ w[f"{name}_proj.weight"].T).reshape(B, S, -1, D) for name in ("q", "k", "v")
    )
    angles = np.outer(np.arange(S), 10000.0 ** (-np.arange(0, D, 2) / D))
    tables = np.cos(angles), np.sin(angles)
    q = oracle_norm.norm_rope(q, w["q_norm.weight"], *tables, eps=1e-6)
    k = oracle_norm.norm_rope(k, w["k_norm.weight"], *tables, eps=1e-6)
    right = np.zeros((B, S, H, D))
    for b, i, h in np.ndindex(B, S, H):
        kv = h * K // H
        scores = k[b, : i + 1, kv] @ q[b, i, h] / np.sqrt(D)
        weights = np.exp(scores - scores.max())
        right[b, i, h] = weights @ v[b, : i + 1, kv] / weights.sum()
    right = right.reshape(B, S, H * D) @ w["o_proj.weight"].T
    np.testing.assert_allclose(double(attention(x)), right, rtol=1e-6, atol=1e-7)
    plain = posenc_ext.RotaryAttention(H * D, H, K, dtype=torch.float64)
    plain.load_state_dict(attention.state_dict(), strict=False)
    assert np.abs(double(plain(x)) - right).max() > 1e-2
