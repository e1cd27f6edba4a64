"""What the translations of this folder share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..arguments import error

HALF_DTYPES = (torch.bfloat16, torch.float16)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def readable(table: Tensor, x: Tensor) -> Tensor:
    """A table in a dtype that rope takes beside x. Widening is exact, as in kernels that convert
    what they load."""
    fits = table.dtype in (x.dtype, torch.float32) or not table.is_floating_point()
    return table if fits else table.float()


def with_front(table: Tensor, rows: int, value: float) -> Tensor:
    """A table ``[L, n]`` behind `rows` rows of one value. The table keeps it for the next call."""
    note = (id(table), rows, 0 if table.is_inference() else table._version)
    kept = getattr(table, "_posenc_front", None)
    if kept is not None and kept[0] == note:
        return kept[1]
    result = torch.cat([table.new_full((rows, table.shape[1]), value), table])
    if not torch.compiler.is_compiling() and not result.requires_grad:
        table._posenc_front = note, result  # type: ignore[attr-defined]
    return result


def check_tied(op: str, cos: Tensor, sin: Tensor, repeated: bool = False) -> None:
    """That full-width tables ``[.., R]`` say everything twice, in their halves or in neighbours.

    Once for each table, which carries a note of it: a model makes one and hands it to every layer.
    Where the values are not at hand without waiting (on a GPU, in a traced graph), the check
    becomes a device assert.
    """
    traced = torch.compiler.is_compiling()
    for name, table in (("cos", cos), ("sin", sin)):
        version = 0 if traced or table.is_inference() else table._version
        note = (repeated if traced else id(table), repeated, version)
        if getattr(table, "_posenc_tied", None) != note:
            _check_tied(op, name, table, repeated, traced)
            table._posenc_tied = note  # type: ignore[attr-defined]


def _check_tied(op: str, name: str, table: Tensor, repeated: bool, traced: bool) -> None:
    first, second = (
        (table[..., ::2], table[..., 1::2]) if repeated else table.detach().chunk(2, dim=-1)
    )
    n = first.shape[-1]
    where = "columns 2i and 2i + 1" if repeated else f"columns i and i + {n}"
    text = f"{name} must be equal in {where}, since each pair of channels is turned by one angle"
    if traced or isinstance(table, FakeTensor) or table.device.type != "cpu":
        # Not by bits, of which ONNX knows nothing. A NaN equals itself here too.
        same = ((first == second) | ((first != first) & (second != second))).all()
        torch._assert_async(same, f"posenc_ext.{op}: {text}, got values that differ")
    elif not torch.equal(_bits(_values(first)), _bits(_values(second))):
        raise error(ValueError, op, f"{text}, got values that differ")


def _bits(table: Tensor) -> Tensor:
    """As integers: a NaN equals itself."""
    return table.view(BITS[table.element_size()])


def _values(table: Any) -> Tensor:
    """The tensor below the wrappers of DTensor and torch.func."""
    if hasattr(table, "to_local"):
        return _values(table.to_local())
    if torch._C._functorch.is_functorch_wrapped_tensor(table):
        axis = torch._C._functorch.maybe_get_bdim(table)
        inner = _values(torch._C._functorch.get_unwrapped(table))
        return inner if axis < 0 else inner.movedim(axis, 0)
    return table
