"""Formulas of the ops that compute sines and cosines."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from .common import exact, like


def cos_sin(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """float64 [..., n], of positions [...] and float64 frequencies [n].

    A frequency is split in two, so that the first product is exact for whole positions below 2^29
    and the second one is small.
    """
    p, first = positions.double().unsqueeze(-1), frequencies.float().double()
    a, b = p * first, p * (frequencies - first)
    cos_a, sin_a, cos_b, sin_b = a.cos(), a.sin(), b.cos(), b.sin()
    return cos_a * cos_b - sin_a * sin_b, sin_a * cos_b + cos_a * sin_b


def rope_table(
    positions: Tensor, inv_freq: Tensor, attention_factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin(positions, inv_freq)
    return (cos * attention_factor).to(dtype), (sin * attention_factor).to(dtype)


def sinusoidal_frequencies(like: Tensor, count: int, base: float, denominator: float) -> Tensor:
    exponent = torch.arange(count, dtype=torch.float64, device=like.device) / -denominator
    high = ctypes.c_float(base).value  # torch.onnx.export writes a number of Python as a float32
    return (torch.full_like(exponent, high) + (base - high)).pow(exponent)


def sinusoidal_table(
    positions: Tensor,
    frequencies: Tensor,
    dim: int,
    interleaved: bool,
    cos_first: bool,
    dtype: torch.dtype,
) -> Tensor:
    cos, sin = cos_sin(positions, frequencies)
    pair = (cos, sin) if cos_first else (sin, cos)
    row = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    missing = dim - row.shape[-1]  # 1: a zero column; -1: the last frequency has one column only
    return (F.pad(row, (0, missing)) if missing else row).to(dtype)


def add_sinusoidal(
    x: Tensor,
    frequencies: Tensor,
    offsets: Tensor | None,
    offset: int,
    scale: float,
    interleaved: bool,
    cos_first: bool,
) -> Tensor:
    positions = torch.arange(x.shape[-2], device=x.device) + offset
    if offsets is not None:
        start = offsets.reshape(-1, 1) if x.dim() == 3 else offsets.reshape(-1)
        positions = positions + start
    order = (interleaved, cos_first)
    dtype = exact(x.dtype)
    table = sinusoidal_table(positions, frequencies, x.shape[-1], *order, dtype)
    return like(x.to(dtype) * scale + table, x)
