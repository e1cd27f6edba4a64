"""A small byte-level causal language model with its own attention.

Positions come in through `positions.py`, which holds the calls of posenc_ext.
Shapes: B batch, S sequence, H heads, D channels of one head, C = H * D.
"""

from collections.abc import Callable

import torch.nn.functional as F
from positions import NoPositions
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention on [B, S, C]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, position: NoPositions) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(dim=2)  # [B, S, H, D]
        q, k = position.rotate(q, k)
        y = position.attend(*(t.transpose(1, 2) for t in (q, k, v)))  # [B, H, S, D]
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer MLP, each behind a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, position: NoPositions) -> Tensor:
        x = x + self.attention(self.norm1(x), position)
        return x + self.mlp(self.norm2(x))


class ByteModel(nn.Module):
    """Predict the next byte.

    `position` makes an encoding of `positions.py` from (width, heads, length). All other weights
    are drawn before it, so one seed gives them the same start whatever the encoding.
    """

    def __init__(
        self,
        position: Callable[[int, int, int], NoPositions],
        *,
        width: int,
        heads: int,
        layers: int,
        length: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(_init_weights)
        first = position(width, heads, length)
        rest = (
            first if first.shared else position(width, heads, length) for _ in range(layers - 1)
        )
        self.positions = nn.ModuleList([first, *rest])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, S, 256] for tokens int64 [B, S]."""
        x = self.positions[0].embed(self.embed(tokens))
        for block, position in zip(self.blocks, self.positions, strict=True):
            x = block(x, position)
        return F.linear(self.norm(x), self.embed.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross-entropy in nats per byte over windows int64 [B, S + 1]."""
        return self.losses(windows).mean()

    def losses(self, windows: Tensor) -> Tensor:
        """The cross-entropy in nats of each byte but the first of windows int64 [B, S + 1]."""
        logits, targets = self(windows[:, :-1]).flatten(0, 1), windows[:, 1:]
        return F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
