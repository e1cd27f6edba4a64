"""An attention of one's own whose norms wait for the rotation, for the tests of them."""

import sys
import types

import torch
from patch_cases import llama
from rope_cases import uniform

from posenc_ext.compat.transformers import patch, unpatch

SOURCE = """
import torch
class Norm(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.rand(n)), 1e-5
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))
class Attention(torch.nn.Module):
    head_dim = 8
    between = None
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = torch.nn.Linear(16, 32), torch.nn.Linear(16, 16)
        self.q_norm, self.k_norm = Norm(8), Norm(8)
    def forward(self, hidden_states, position_embeddings):
        q, k = (p(hidden_states).unflatten(-1, (-1, 8)) for p in (self.q_proj, self.k_proj))
        inputs, q, k = (q, k), self.q_norm(q), self.k_norm(k)
        if self.between is not None:
            q, k = self.between(inputs, q, k)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return apply_rotary_pos_emb(q, k, *position_embeddings)
"""
X = uniform((2, 5, 16))
TABLES = uniform((1, 5, 4), seed=1).repeat(1, 1, 2), uniform((1, 5, 4), seed=2).repeat(1, 1, 2)


def own_attention(monkeypatch):
    """For a fixture."""
    family = types.ModuleType("modeling_family")
    monkeypatch.setitem(sys.modules, "modeling_family", family)
    family.apply_rotary_pos_emb = llama
    exec(SOURCE, vars(family))
    torch.manual_seed(0)
    yield family.Attention()
    unpatch(family)


def fused(attention):
    (swap,) = patch(attention, fuse_norm=True)
    assert swap.norms == 2
    return attention


def results(attention):
    """And the gradient of every parameter."""
    attention.zero_grad()
    outs = attention(X, TABLES)
    sum(out.pow(2).sum() for out in outs).backward()
    return [*outs, *(p.grad.clone() for p in attention.parameters() if p.grad is not None)]
