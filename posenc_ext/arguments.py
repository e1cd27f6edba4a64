"""Checks of Python arguments, with errors in the one form `posenc_ext.<op>: ...`."""

from __future__ import annotations

import math
import numbers
import operator
from array import array
from typing import Any, cast

import torch
from torch import Tensor

from ._native import _C

LARGEST = 2**48  # of sizes that are added and multiplied: no sum or product leaves 64 bits
WHOLE = (torch.int32, torch.int64)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def power(base: float, exponent: float) -> float:
    """base ** exponent for a positive base, correctly rounded (csrc/power.h): Python's depends on
    the processor in the last bit, and stands where a compiler traces the numbers."""
    if torch.compiler.is_compiling() or isinstance(base, torch.SymFloat):
        return cast(float, base**exponent)
    return _C.power(base, exponent)


def error(kind: type[Exception], op: str, text: str) -> Exception:
    """The exception to raise: one line, whatever a wrong argument looks like when printed."""
    line = " ".join(text.split())
    return kind(f"posenc_ext.{op}: {line if len(line) <= 400 else line[:400] + '...'}")


def number(op: str, name: str, value: Any) -> float:
    """A finite float from an int or a float."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return cast(float, value)  # a traced number: float() would bind it
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise error(TypeError, op, f"{name} must be a number, got {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not -math.inf < result < math.inf:
        raise error(ValueError, op, f"{name} must be finite, got {result}")
    return result


def integer(op: str, name: str, value: Any, kind: str = "an int") -> int:
    """An int from what has an index. `kind` is what else the caller takes, for the message."""
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        # Not through operator.index, which makes a traced length a constant.
        result = cast(int, value)
    elif isinstance(value, (bool, Tensor)) or not hasattr(value, "__index__"):
        raise error(TypeError, op, f"{name} must be {kind}, got {type(value).__name__}")
    else:
        result = operator.index(value)
    if not torch.compiler.is_compiling() and not -(2**63) <= result < 2**63:
        raise error(ValueError, op, f"{name} must fit in 64 bits, got {result}")
    return result


def known(*sizes: int) -> bool:
    """Are these numbers, and no symbols of a graph that is being traced? A choice that depends on a
    symbol would bind the graph to one side of it."""
    if not torch.compiler.is_compiling():
        return all(isinstance(size, int) for size in sizes)
    from torch.fx.experimental.symbolic_shapes import has_static_value  # slow to import

    return all(has_static_value(size) for size in sizes)


def length_of(op: str, seq_len: Any) -> int | None:
    """A length that may be left out; a tensor ``[]`` of one is read."""
    if seq_len is None:
        return None
    if isinstance(seq_len, torch.SymInt):
        return cast(int, seq_len)
    if isinstance(seq_len, Tensor) and seq_len.dim() == 0 and seq_len.dtype in WHOLE:
        if seq_len.is_meta:
            raise error(ValueError, op, "seq_len must hold a value, got a meta tensor")
        seq_len = seq_len.item()
    length = integer(op, "seq_len", seq_len)
    if not torch.compiler.is_compiling() and length < 0:
        raise error(ValueError, op, f"seq_len must not be negative, got {length}")
    return length


def at_least(op: str, name: str, value: Any, least: int, most: int | None = None) -> int:
    value = integer(op, name, value)
    if value < least:
        raise error(ValueError, op, f"{name} must be at least {least}, got {value}")
    if most is not None and known(value) and value > most:
        raise error(ValueError, op, f"{name} must be at most {most}, got {value}")
    return value


def probability(op: str, value: Any, name: str = "dropout") -> float:
    result = number(op, name, value)
    if not 0 <= result <= 1:
        raise error(ValueError, op, f"{name} must be between 0 and 1, got {value}")
    return result


def check_dtype(op: str, dtype: Any, name: str = "dtype") -> None:
    if dtype not in DTYPES:
        text = f"{name} must be float32, float64, bfloat16 or float16, got {dtype}"
        raise error(TypeError, op, text)


def check_precision(op: str, precision: Any) -> None:
    if precision not in ("exact", "float32"):
        raise error(ValueError, op, f"precision must be 'exact' or 'float32', got {precision!r}")


def arange(start: int, end: int, device: Any = None) -> Tensor:
    """``torch.arange``, also in a forked child, where torch's own waits for ever for threads that
    the fork has left behind."""
    large = not torch.compiler.is_compiling() and end - start > 32768
    if large and _C.in_forked_child() and torch.device(device or "cpu").type == "cpu":
        return torch.frombuffer(array("q", range(start, end)), dtype=torch.int64)
    return torch.arange(start, end, dtype=torch.int64, device=device)
