"""The options of rope, checked as Python objects and brought into the form of the op schemas."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class RopeOptions(NamedTuple):
    """What every rope op takes after the tensors to rotate, in the order of its schema."""

    cos: Tensor  # [L, n] or [B | 1, S, n]
    sin: Tensor
    positions: Tensor | None
    offsets: Tensor | None
    cu_seqlens: Tensor | None
    offset: int
    layout: str
    interleaved: bool
    inverse: bool
    interleaved_out: bool

    @property
    def rotary_dim(self) -> int:
        return 2 * self.cos.shape[-1]

    def tensors(self) -> dict[str, Tensor | None]:
        """By the names that the public functions have for them."""
        names = ("cos", "sin", "positions", "offset", "cu_seqlens")
        return dict(zip(names, self[:5], strict=True))

    def inverted(self) -> RopeOptions:
        return self._replace(
            inverse=not self.inverse,
            interleaved=self.interleaved_out,
            interleaved_out=self.interleaved,
        )

    def with_tables(self, cos: Tensor, sin: Tensor) -> RopeOptions:
        return self._replace(cos=cos, sin=sin)

    def detached(self) -> RopeOptions:
        return self.with_tables(self.cos.detach(), self.sin.detach())


def check_tensors(op: str, **tensors: Any) -> None:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"posenc_ext.{op}: {name} must be a tensor, got {type(value).__name__}")
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            kind = "a quantized" if value.is_quantized else "a nested"
            got = f"{kind} tensor" if value.layout is torch.strided else value.layout
            raise TypeError(f"posenc_ext.{op}: {name} must be a dense tensor, got {got}")


def check_flags(op: str, **flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, (bool, int)):
            raise TypeError(f"posenc_ext.{op}: {name} must be a bool, got {type(value).__name__}")


def rope_options(
    op: str,
    cos: Tensor,
    sin: Tensor | None,
    layout: str,
    positions: Tensor | None,
    offset: int | Tensor,
    cu_seqlens: Tensor | None,
    interleaved: bool,
    inverse: bool,
    interleaved_out: bool | None,
) -> RopeOptions:
    """Check the Python types, and give complex tables and tensor offsets the form of the schema."""
    check_tensors(op, cos=cos)
    if cos.is_complex():
        if sin is not None:
            raise ValueError(
                f"posenc_ext.{op}: sin must be None when cos is complex (cos + i*sin), got both"
            )
        cos, sin = torch.view_as_real(cos.resolve_conj()).unbind(-1)
        interleaved = True
    if sin is None:
        raise TypeError(
            f"posenc_ext.{op}: sin must be a tensor unless cos is complex, got None with cos of "
            f"{cos.dtype}"
        )
    check_tensors(op, sin=sin)
    for name, optional in (("positions", positions), ("cu_seqlens", cu_seqlens)):
        if optional is not None:
            check_tensors(op, **{name: optional})
    offsets: Tensor | None = None
    if isinstance(offset, Tensor):
        check_tensors(op, offset=offset)
        offsets, offset = offset, 0
    elif not isinstance(offset, (int, torch.SymInt)):
        try:
            offset = operator.index(offset)
        except TypeError:
            raise TypeError(
                f"posenc_ext.{op}: offset must be an int or a tensor, got {type(offset).__name__}"
            ) from None
    if not -(2**63) <= offset < 2**63:
        raise IndexError(f"posenc_ext.{op}: offset must be a row of the table, got {offset}")
    if not isinstance(layout, str):
        raise TypeError(f"posenc_ext.{op}: layout must be a str, got {type(layout).__name__}")
    if interleaved_out is None:
        interleaved_out = interleaved
    check_flags(op, interleaved_out=interleaved_out)
    return RopeOptions(
        cos, sin, positions, offsets, cu_seqlens, offset, layout, bool(interleaved), bool(inverse),
        bool(interleaved_out),
    )  # fmt: skip
