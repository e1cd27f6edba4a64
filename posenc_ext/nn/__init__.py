"""Modules, made of the functions in `posenc_ext.ops`."""

from .rotary import RotaryPositionalEmbedding

__all__ = ["RotaryPositionalEmbedding"]
