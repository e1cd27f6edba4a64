"""Names for what the arguments of posenc_ext may be, for annotations of your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import Tensor

Layout = Literal["bshd", "bhsd", "sbhd", "thd", "shd", "hsd", "bsd", "sbd", "sd"]
Precision = Literal["exact", "float32"]
SinusoidConvention = Literal[
    "interleaved", "concatenated", "tensor2tensor", "fairseq", "musicgen", "diffusion"
]
AxialVariant = Literal["qwen2_vl", "pixtral", "llama4", "sam2", "eva02", "dinov3", "pixel"]
AxialNormalize = Literal["separate", "max", "min"]
AxisOrder = Literal["chunked", "interleaved", "ernie"]
FirstAxis = Literal["width", "height"]
BertForm = Literal["relative_key", "relative_key_query"]
DebertaTerm = Literal["c2p", "p2c"]
ContextMode = Literal["contiguous", "zigzag", "striped"]
Rounding = Literal["once", "transformers"]

Cache = tuple[Tensor, Tensor]  # keys and values so far, [B, H, K, D] each: the `past` of a call
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # of flex_attention

_F = TypeVar("_F", bound=Callable[..., Any])


def called_as(forward: _F) -> Callable[[Any], _F]:
    """For type checkers: gives the ``__call__`` of a module, which is Any in torch, the type of its
    forward."""
    return lambda _: forward
