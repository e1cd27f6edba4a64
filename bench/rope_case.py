"""The q, k and tables of one RoPE row, its float64 reference, and what peers compute.

Shapes: B batch, S sequence, H heads, D head dim; the whole head is rotated.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import posenc_ext

from .common import check_close

DTYPES = (torch.float32, torch.bfloat16)
KEY_VALUE_HEADS = 8

# Errors allowed, as a share of the largest value. Ours rounds once; eager rounds every step, and
# its bfloat16 tables too.
ONCE = {torch.float32: 2**-22, torch.bfloat16: 2**-8}
EVERY_STEP = {torch.float32: 2**-21, torch.bfloat16: 2**-6}


class RopeCase:
    """Random q [B, S, H, D] and k [B, S, 8, D] in `layout`, with float32 tables [S, D/2]."""

    def __init__(
        self, shape: tuple[int, int, int, int], dtype: torch.dtype, layout: str = "bshd"
    ) -> None:
        batch, length, heads, head_dim = shape
        self.layout, self.dtype = layout, dtype
        generator = torch.Generator().manual_seed(0)

        def random(head_count: int) -> Tensor:
            sizes = {"b": batch, "s": length, "h": head_count, "d": head_dim}
            shape = [sizes[axis] for axis in layout]
            return torch.randn(shape, generator=generator).to(dtype)

        self.q, self.k = random(heads), random(KEY_VALUE_HEADS)
        frequencies = posenc_ext.rope_frequencies(head_dim)
        self.set_tables(*posenc_ext.rope_table(length, frequencies.inv_freq))

    def set_tables(self, cos: Tensor, sin: Tensor) -> None:
        """Use the float32 tables [S, D/2], and keep for eager what its models keep.

        That is full width, the dtype of x, and axes that broadcast over batch and heads.
        """
        self.cos, self.sin = cos, sin
        rows = [-1 if axis == "s" else 1 for axis in self.layout[:-1]]
        self.wide_cos, self.wide_sin = (
            torch.cat((t, t), dim=-1).to(self.dtype).view(*rows, 2 * t.shape[-1])
            for t in (cos, sin)
        )

    @property
    def label(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.layout}"

    def eager(self) -> tuple[Tensor, Tensor]:
        """Rotate q and k in plain torch, as Hugging Face models do."""
        return rotate_eagerly(self.q, self.k, self.wide_cos, self.wide_sin)

    def ours(self, q: Tensor, k: Tensor, inplace: bool = False) -> tuple[Tensor, Tensor]:
        """Rotate q and k with posenc_ext."""
        return posenc_ext.apply_rope(q, k, self.cos, self.sin, layout=self.layout, inplace=inplace)

    def check(
        self,
        name: str,
        x: Tensor,
        rotated: Tensor,
        tolerances: dict[torch.dtype, float] = ONCE,
        inverse: bool = False,
    ) -> None:
        """Raise WrongResult unless `rotated` is x turned by the tables, computed in float64."""
        axes = [-1 if axis == "s" else 1 for axis in self.layout[1:-1]]
        cos, sin = (t.double().view(*axes, t.shape[-1]) for t in (self.cos, self.sin))
        if inverse:
            sin = -sin
        for one, got in zip(x.detach(), rotated.detach(), strict=True):  # a batch at a time
            u, v = one.double().chunk(2, dim=-1)
            reference = torch.cat((u * cos - v * sin, v * cos + u * sin), dim=-1)
            check_close(f"{name} {self.label}", got, reference, tolerances[self.dtype])

    def check_pair(
        self,
        name: str,
        rotate: Callable[[], tuple[Tensor, Tensor]],
        tolerances: dict[torch.dtype, float] = ONCE,
    ) -> None:
        """`check` both results of a function that rotates q and k."""
        for x, rotated in zip((self.q, self.k), rotate(), strict=True):
            self.check(name, x, rotated, tolerances)


def rotate_half(x: Tensor) -> Tensor:
    u, v = x.chunk(2, dim=-1)
    return torch.cat((-v, u), dim=-1)


def rotate_eagerly(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The expression of Hugging Face's `apply_rotary_pos_emb`, with full-width tables."""
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
