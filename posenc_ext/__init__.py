"""Position encodings for transformer models: native kernels for CPU, with autograd."""

from . import _native
from ._version import __version__
from .frequencies import RopeFrequencies
from .nn.rotary import RotaryPositionalEmbedding
from .ops.mrope import mrope_axes, mrope_position_ids
from .ops.permute import half_to_interleaved, interleaved_to_half
from .ops.rope import apply_rope, rope
from .ops.rope_frequencies import rope_frequencies
from .ops.rope_table import rope_table

__all__ = [
    "RopeFrequencies",
    "RotaryPositionalEmbedding",
    "__version__",
    "apply_rope",
    "half_to_interleaved",
    "interleaved_to_half",
    "mrope_axes",
    "mrope_position_ids",
    "rope",
    "rope_frequencies",
    "rope_table",
]

del _native
