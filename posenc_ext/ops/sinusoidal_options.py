"""The conventions of sinusoidal encodings, and what their functions share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import arange, check_dtype, error, integer, number
from ..distributed import beside
from ..kept import constant
from ..types import SinusoidConvention
from .rope_options import check_tensors
from .sinusoidal_autograd import sinusoidal_table

_ops = torch.ops.posenc_ext
MOST_KEPT = 2**14  # frequencies of a width, 128 KB


class Convention(NamedTuple):
    """How the columns are ordered and the frequencies spaced."""

    interleaved: bool = False
    cos_first: bool = False
    pad: bool = True  # an odd width ends in a zero column, else in one sin (or cos) more
    shift: float = 0.0  # the denominator is the number of frequencies less this


CONVENTIONS: dict[SinusoidConvention, Convention] = {
    "interleaved": Convention(interleaved=True, pad=False),
    "concatenated": Convention(pad=False),
    "tensor2tensor": Convention(shift=1.0),
    "fairseq": Convention(shift=1.0),
    "musicgen": Convention(cos_first=True, shift=1.0),
    "diffusion": Convention(cos_first=True),
}


def convention_of(op: str, name: Any) -> Convention:
    if not isinstance(name, str) or name not in CONVENTIONS:
        known = ", ".join(CONVENTIONS)
        raise error(ValueError, op, f"convention must be one of {known}, got {name!r}")
    return CONVENTIONS[name]


def positions_of(op: str, name: str, value: Any, device: Any) -> Tensor:
    if isinstance(value, Tensor):
        check_tensors(op, **{name: value})
        if value.dtype not in (torch.int32, torch.int64) and not value.is_floating_point():
            raise error(
                TypeError, op, f"{name} must be int32, int64 or floating, got {value.dtype}"
            )
        return value.to(device or value.device)
    n = integer(op, name, value, "an int or a tensor")
    if n < 0:
        raise error(ValueError, op, f"{name} must not be negative as an int, got {n}")
    return arange(0, n, device)


def dim_of(op: str, dim: Any) -> int:
    dim = integer(op, "dim", dim)
    if dim < 0:
        raise error(ValueError, op, f"dim must not be negative, got {dim}")
    if not isinstance(dim, torch.SymInt) and dim > 2**20:  # frequencies are made one by one
        raise error(ValueError, op, f"dim must not exceed {2**20}, got {dim}")
    return dim


def base_of(op: str, name: str, base: Any) -> float:
    base = number(op, name, base)
    if base <= 0:
        raise error(ValueError, op, f"{name} must be positive, got {base}")
    return base


def frequencies_of(x: Tensor, dim: int, base: float, how: Convention) -> Tensor:
    """float64 [n] on the device of `x`."""
    count = dim // 2 if how.pad else (dim + 1) // 2
    denominator = (dim // 2 if how.pad else dim / 2) - how.shift
    if count <= 1:
        denominator = 1.0
    if count > MOST_KEPT:
        return _frequencies(x.device, count, base, float(denominator))
    return constant(_frequencies, x.device, count, base, float(denominator))


def _frequencies(device: torch.device, count: int, base: float, denominator: float) -> Tensor:
    like = torch.empty(0, device=device)  # not x, which may be batched or need a gradient
    return _ops.sinusoidal_frequencies(like, count, base, denominator)


def table_of(
    op: str, positions: Tensor, dim: int, base: float, how: Convention, dtype: Any
) -> Tensor:
    check_dtype(op, dtype)
    (frequencies,) = beside(positions, frequencies_of(positions, dim, base, how))
    flags = (how.interleaved, how.cos_first)
    return sinusoidal_table(positions, frequencies, dim, *flags, dtype)
