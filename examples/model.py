"""A small byte-level causal language model with its own attention.

The one line that matters here is the call of `posenc_ext.apply_rope` in `Attention.forward`.
Shapes: B batch, S sequence, H heads, D channels of one head, C = H * D.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posenc_ext

POSITIONS = ("rope", "eager", "none")


def rotate_eager(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, S, H, D] by tables [S, D/2] in plain torch, as most models write it."""
    cos = torch.cat((cos, cos), dim=-1)[:, None]  # [S, 1, D]
    sin = torch.cat((sin, sin), dim=-1)[:, None]
    u, v = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-v, u), dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention on [B, S, C]."""

    def __init__(self, width: int, heads: int, position: str) -> None:
        super().__init__()
        self.heads, self.position = heads, position
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # [B, S, 3, H, D]; q, k and v are strided views of it, which apply_rope reads as they are.
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(dim=2)
        if self.position == "rope":
            q, k = posenc_ext.apply_rope(q, k, cos, sin, layout="bshd")
        elif self.position == "eager":
            q, k = rotate_eager(q, cos, sin), rotate_eager(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, S, D]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer MLP, each behind a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, position: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, position)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class ByteModel(nn.Module):
    """Predict the next byte.

    `position` is "rope" (posenc_ext), "eager" (the same rotation in plain torch) or "none".
    It adds no weights, so one seed gives the three models the same start.
    """

    def __init__(self, position: str, *, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        if position not in POSITIONS:
            raise ValueError(f"position must be one of {POSITIONS}, got {position!r}")
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads, position) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(_init_weights)
        frequencies = posenc_ext.rope_frequencies(width // heads)
        cos, sin = posenc_ext.rope_table(length, frequencies.inv_freq)  # [length, D/2]
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, S, 256] for tokens int64 [B, S], S <= length."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embed.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross-entropy in nats per byte over windows int64 [B, S + 1]."""
        logits = self(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
