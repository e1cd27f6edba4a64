"""Position encodings for transformer models: native kernels for CPU, with autograd."""

from . import _native
from ._version import __version__
from .ops.rope import apply_rope, rope

__all__ = ["__version__", "apply_rope", "rope"]

del _native
