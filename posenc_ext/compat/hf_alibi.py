"""The ALiBi biases that BLOOM, Falcon and MPT build, with the slopes of their own code.

They take slopes from powers in float32, up to 6e-7 off; a model was trained with those.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.alibi import alibi_bias, alibi_row_bias
from ..types import Rounding
from .hf_calls import Function, innermost


def _by_mask(
    product: torch.dtype,
    original: Function,
    attention_mask: Tensor,
    num_heads: int,
    dtype: torch.dtype,
) -> Tensor:
    """``slope * position`` of each key, ``[B*H, 1, K]``, positions counting the real tokens."""
    ones = torch.ones(1, 2, dtype=torch.int64, device=attention_mask.device)
    slopes = original(ones, num_heads, torch.float32)[:, 0, 1]  # slope * 1
    positions = ((attention_mask.cumsum(-1) - 1) * attention_mask).to(torch.int64)
    # Minus a negated slope times the distance to one more key, at position 0, with the query at it.
    bias = alibi_bias(-slopes, 1, key_positions=F.pad(positions, (0, 1)))[..., :-1]
    return bias.flatten(0, 1).to(product).to(dtype)


def _by_length(
    original: Function,
    num_heads: int,
    sequence_length: int,
    alibi_bias_max: int = 8,
    device: torch.device | str | None = None,
) -> Tensor:
    """``-slope * (distance to the last key)``, ``[H, 1, K]``."""
    slopes = -original(num_heads, 2, alibi_bias_max, device)[:, 0, 0]  # -slope * 1
    return alibi_row_bias(slopes, sequence_length)


BUILDERS: dict[tuple[str, ...], list[Function]] = {
    ("attention_mask", "num_heads", "dtype"): [
        functools.partial(_by_mask, torch.float32),  # BLOOM
        functools.partial(_by_mask, torch.bfloat16),  # Falcon rounds the products
    ],
    ("num_heads", "sequence_length", "alibi_bias_max", "device"): [_by_length],  # MPT
}


class Bias(NamedTuple):
    """A known builder of a bias."""

    build: Function

    def __str__(self) -> str:
        return "ALiBi bias by key"

    def replacement(self, original: Function, rounding: Rounding) -> Function:
        return functools.wraps(original)(functools.partial(self.build, original))


def recognize(function: Function) -> Bias | str | None:
    """The builder that gives the bits of `function`, None if it is called otherwise than these, or
    why none here does."""
    function = innermost(function)
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # no signature
        return None
    builders = BUILDERS.get(names, [])
    probes: list[tuple[Any, ...]] = [(6, 300, 4, "cpu"), (8, 7, 8, "cpu")]
    if builders and builders[0] is not _by_length:
        mask = torch.ones(3, 300, dtype=torch.int64, device="cpu")
        mask[1, :2] = mask[2, 5:] = 0
        probes = [(mask, 6, torch.float32), (mask, 8, torch.bfloat16)]
    with torch.no_grad():
        for build in builders:
            if all(_same(build(function, *args), function(*args)) for args in probes):
                return Bias(build)
    return "gives other results than the ALiBi bias by key" if builders else None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
