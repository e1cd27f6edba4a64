"""Modules, made of the functions in `posenc_ext.ops`."""

from .alibi import ALiBiAttention
from .bert import BertRelativeAttention
from .deberta import DebertaDisentangledAttention
from .learned import LearnedPositionalEncoding
from .relative import RelativePositionalEmbedding, RelativeSelfAttention
from .roberta import RobertaEmbeddings
from .rotary import RotaryPositionalEmbedding
from .rotary_attention import RotaryAttention
from .sinusoidal import SinusoidalPositionalEncoding
from .t5 import T5RelativePositionBias
from .transformer_xl import TransformerXLAttention

__all__ = [
    "ALiBiAttention",
    "BertRelativeAttention",
    "DebertaDisentangledAttention",
    "LearnedPositionalEncoding",
    "RelativePositionalEmbedding",
    "RelativeSelfAttention",
    "RobertaEmbeddings",
    "RotaryAttention",
    "RotaryPositionalEmbedding",
    "SinusoidalPositionalEncoding",
    "T5RelativePositionBias",
    "TransformerXLAttention",
]
