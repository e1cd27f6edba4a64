"""Position encodings for transformer models: native kernels for CPU, with autograd."""

from . import _native
from ._version import __version__
from .frequencies import RopeFrequencies
from .ops.rope import apply_rope, rope
from .ops.rope_frequencies import rope_frequencies
from .ops.rope_table import rope_table

__all__ = [
    "RopeFrequencies",
    "__version__",
    "apply_rope",
    "rope",
    "rope_frequencies",
    "rope_table",
]

del _native
