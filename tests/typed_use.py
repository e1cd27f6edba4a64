"""What users write, with the types that they must get. `make lint` checks it; it also runs."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import assert_type

import posenc_ext
from posenc_ext.types import Cache, Layout, Precision, SinusoidConvention

q, k, x = torch.randn(2, 6, 4, 16), torch.randn(2, 6, 2, 16), torch.randn(2, 6, 32)

layout: Layout = "bshd"
precision: Precision = "exact"
convention: SinusoidConvention = "concatenated"
inv_freq, factor = posenc_ext.rope_frequencies(16, precision=precision)
cos, sin = posenc_ext.rope_table(6, inv_freq, attention_factor=factor, precision=precision)
assert_type(posenc_ext.apply_rope(q, k, cos, sin, layout=layout), tuple[Tensor, Tensor])
assert_type(posenc_ext.apply_rope(q, None, cos, sin), tuple[Tensor, None])
q_turned, k_turned = posenc_ext.apply_rope(q, k, cos, sin)
scores = q_turned.transpose(1, 2) @ k_turned.repeat_interleave(2, 2).permute(0, 2, 3, 1)
maybe = k if scores.numel() else None
assert_type(posenc_ext.apply_rope(q, maybe, cos, sin)[1], "Tensor | None")

rotary = posenc_ext.RotaryPositionalEmbedding(16, layout=layout, precision=precision)
assert_type(rotary(q), Tensor)
assert_type(rotary(q, k, offset=3), tuple[Tensor, Tensor])
assert_type(rotary.forward(q, k), tuple[Tensor, Tensor])

attention = posenc_ext.RotaryAttention(32, 4, 2)
assert_type(attention(x), Tensor)
y, cache = attention(x, use_cache=True)
assert_type(cache, Cache)
assert_type(attention(x, past=cache, need_weights=True), tuple[Tensor, Tensor])
assert_type(attention(x, need_weights=True, use_cache=True), tuple[Tensor, Tensor, Cache])
assert_type(posenc_ext.ALiBiAttention(32, 4)(x) + 1, Tensor)
assert_type(posenc_ext.ALiBiAttention(32, 4)(x, use_cache=True)[1], Cache)
assert_type(posenc_ext.RelativeSelfAttention(32, 4, 3)(x), Tensor)
assert_type(posenc_ext.TransformerXLAttention(32, 4)(x, memory=x, need_weights=True)[1], Tensor)
assert_type(posenc_ext.BertRelativeAttention(32, 4, 9, form="relative_key")(x), Tensor)
assert_type(posenc_ext.DebertaDisentangledAttention(32, 4, 9, terms=["c2p"])(x), Tensor)
assert_type(posenc_ext.SinusoidalPositionalEncoding(32, convention=convention)(x), Tensor)
assert_type(posenc_ext.LearnedPositionalEncoding(32, 9)(x, offset=1), Tensor)
assert_type(posenc_ext.T5RelativePositionBias(4)(3, 5), Tensor)
assert_type(posenc_ext.RelativePositionalEmbedding(16, 3)(q.transpose(1, 2)), Tensor)
assert_type(posenc_ext.RobertaEmbeddings(9, 32)(torch.tensor([[3, 4]])), Tensor)


def refused() -> None:
    """Each line is one that a checker must find: the comment fails where it has nothing to hide."""
    posenc_ext.rope(q, cos, sin, layout="BSHD")  # type: ignore[arg-type]
    posenc_ext.apply_rope(q, k, cos, sin, layout="BSHD")  # type: ignore[call-overload]
    posenc_ext.rope_table(6, inv_freq, precision="excat")  # type: ignore[arg-type]
    posenc_ext.sinusoidal_table(6, 8, convention="tensortotensor")  # type: ignore[arg-type]
    attention(x, use_cahe=True)  # type: ignore[call-overload]
    rotary(q, k, offsets=3)  # type: ignore[call-overload]
