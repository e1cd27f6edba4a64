"""What a frequency rule of RoPE is: the request that it gets, and the frequencies that it gives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import error, number, power

OP = "rope_frequencies"
DEFAULT_BASE = 10000.0
# Fields of rules by what they hold, where that is not a positive number.
LISTS = {"short_factor", "long_factor"}
MAY_BE_0 = {"attention_factor", "mscale", "mscale_all_dim", "partial_rotary_factor"}
NOT_NUMBERS = {"pin": str, "truncate": bool}


class RopeFrequencies(NamedTuple):
    """What a rule gives: frequencies ``[R/2]`` in radians per position, and the factor of cos and
    sin.

    >>> import posenc_ext
    >>> inv_freq, factor = posenc_ext.rope_frequencies(8)
    >>> cos, sin = posenc_ext.rope_table(10, inv_freq, attention_factor=factor)
    """

    inv_freq: Tensor
    attention_factor: float


def value_error(text: str) -> Exception:
    return error(ValueError, OP, text)


class Request(NamedTuple):
    """What a rule is asked for."""

    dim: int  # R; for Proportional, D
    base: float
    seq_len: int | None
    dtype: torch.dtype  # float64, or float32 in Hugging Face's order of operations

    def powers(self, base: float) -> Tensor:
        """base ** (2i / dim), [dim/2]."""
        if self.dtype == torch.float64:  # the pow of torch, and Python's, depend on the processor
            values = [power(base, 2 * i / self.dim) for i in range(self.dim // 2)]
            return torch.tensor(values, dtype=torch.float64, device="cpu")
        exponents = torch.arange(0, self.dim, 2, dtype=torch.int64, device="cpu").to(self.dtype)
        return base ** (exponents / self.dim)

    def unscaled(self, base: float | None = None) -> Tensor:
        return 1.0 / self.powers(self.base if base is None else base)

    def ntk_base(self, growth: float) -> float:
        """The base that leaves the highest frequency alone and divides the lowest by `growth`."""
        if self.dim <= 2:
            raise value_error(f"dim must be more than 2 for an NTK rule, got {self.dim}")
        try:
            return self.base * float(growth ** (self.dim / (self.dim - 2)))
        except OverflowError:
            raise value_error(f"factor must leave the base finite, got {growth}") from None

    def index_ramp(self, length: float, fast: float, slow: float, truncate: bool = True) -> Tensor:
        """[dim/2]: 0 for what turns more than `fast` times in `length`, 1 for less than `slow`
        times, linear in the index between. With `truncate` the two ends are whole indices."""

        def index(turns: float) -> float:
            ratio = length / (turns * 2 * math.pi)
            if not 0 < ratio < math.inf:
                raise value_error(
                    "original_max_position_embeddings must be of a size that goes with the numbers "
                    f"of turns, got {length} for {turns} turns"
                )
            return self.dim * math.log(ratio) / (2 * math.log(self.base))

        if self.base == 1:
            raise value_error("base must not be 1 for a rule that blends by index, got 1")
        low, high = index(fast), index(slow)
        if truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        if low == high:
            high += 0.001
        i = torch.arange(self.dim // 2, dtype=torch.int64, device="cpu").to(self.dtype)
        return torch.clamp((i - low) / (high - low), 0, 1)


@dataclass(frozen=True)
class Rule(ABC):
    """A frequency rule. Its fields are the keys of the dict form."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if kind := NOT_NUMBERS.get(field.name):
                if not isinstance(value, kind):
                    got = type(value).__name__
                    raise error(TypeError, OP, f"{field.name} must be a {kind.__name__}, got {got}")
                continue
            values = (value,)
            if field.name in LISTS:
                if not isinstance(value, (list, tuple)):
                    got = type(value).__name__
                    raise error(TypeError, OP, f"{field.name} must be a list, got {got}")
                values = tuple(value)
                object.__setattr__(self, field.name, values)
            for item in values:
                if number(OP, field.name, item) < 0 or (item == 0 and field.name not in MAY_BE_0):
                    raise value_error(f"{field.name} must be positive, got {item}")

    @abstractmethod
    def __call__(self, at: Request) -> RopeFrequencies:
        """The frequencies, and the attention factor."""
