"""How a ByteModel knows where a byte stands: one small class for each encoding.

A model calls three methods. `embed` sees the embedded bytes, `rotate` the queries and keys of every
layer, and `attend` does the attention. A class changes the one its encoding is about.
Shapes: B batch, S sequence, H heads, D channels of one head, C = H * D.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posenc_ext


class NoPositions(nn.Module):
    """Causal attention as it is. What stands earlier shows in the mask only."""

    shared = True  # by all layers of a model; else each layer has its own

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.width, self.heads, self.length = width, heads, length
        self.head_dim = width // heads

    def embed(self, x: Tensor) -> Tensor:
        """[B, S, C] -> [B, S, C]."""
        return x

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Two [B, S, H, D] -> two [B, S, H, D]."""
        return q, k

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Three [B, H, S, D] -> [B, H, S, D]."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Sinusoidal(NoPositions):
    """Sines are added to the embeddings, which are scaled by sqrt(C) as in the article."""

    def embed(self, x: Tensor) -> Tensor:
        return posenc_ext.add_sinusoidal(x, scale=math.sqrt(self.width))


class RoPE(NoPositions):
    """q and k are rotated. `base` and `scaling` are those of `rope_frequencies`."""

    def __init__(self, *sizes: int, base: float = 10000.0, scaling: object = None) -> None:
        super().__init__(*sizes)
        self.rotary = posenc_ext.RotaryPositionalEmbedding(self.head_dim, base, scaling=scaling)

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        # q and k are strided views of one projection, which the kernel reads as they are.
        return self.rotary(q, k)


def rotate_eager(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, S, H, D] by tables [S, D/2] in plain torch, as most models write it."""
    cos = torch.cat((cos, cos), dim=-1)[:, None]  # [S, 1, D]
    sin = torch.cat((sin, sin), dim=-1)[:, None]
    u, v = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-v, u), dim=-1) * sin


class EagerRoPE(RoPE):
    """The same rotation in plain torch, to compare with."""

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary.table(q.shape[1])
        return rotate_eager(q, cos, sin), rotate_eager(k, cos, sin)


class XPos(NoPositions):
    """RoPE whose scores decay with distance: q and k have tables of their own."""

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        inv_freq = posenc_ext.rope_frequencies(self.head_dim).inv_freq
        table = posenc_ext.xpos_table(q.shape[1], inv_freq)
        q = posenc_ext.rope(q, table.cos_q, table.sin_q)
        return q, posenc_ext.rope(k, table.cos_k, table.sin_k)


class ALiBi(NoPositions):
    """A penalty on distance, inside the softmax."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("slopes", posenc_ext.alibi_slopes(self.heads), persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(2, 3)
        scale = self.head_dim**-0.5
        return posenc_ext.alibi_softmax(scores, self.slopes, scale=scale, causal=True) @ v


class Learned(NoPositions):
    """A trained vector for each position up to `length`, and none beyond."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.encoding = posenc_ext.LearnedPositionalEncoding(self.width, self.length)

    def embed(self, x: Tensor) -> Tensor:
        return self.encoding(x)


class Shaw(NoPositions):
    """A trained vector for each distance up to 16, for keys and for values."""

    shared = False

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.keys = posenc_ext.RelativePositionalEmbedding(self.head_dim, 16, 0)
        self.values = posenc_ext.RelativePositionalEmbedding(self.head_dim, 16, 0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT + self.keys(q)) * self.head_dim**-0.5
        weights = scores.masked_fill(is_ahead(q), -math.inf).softmax(-1)
        return weights @ v + self.values.values(weights)


class T5(NoPositions):
    """A trained bias for each bucket of distances and each head."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.bias = posenc_ext.T5RelativePositionBias(self.heads, bidirectional=False)
        nn.init.normal_(self.bias.relative_attention_bias.weight, std=0.02)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = self.bias(q.shape[2], k.shape[2]).masked_fill(is_ahead(q), -math.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def is_ahead(q: Tensor) -> Tensor:
    """[S, S] for q [B, H, S, D]: True where a key stands after its query."""
    return torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
