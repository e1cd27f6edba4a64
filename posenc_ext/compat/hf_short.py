"""Calls of a rotation like the last one: decoding makes one for each layer and token.

What is known of a call, and what ours needs to run it, follows from shapes and dtypes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.rope import apply_rope
from .tables import check_tied


class Short(NamedTuple):
    """A rotation of both q and k by the first columns of full-width tables."""

    key: Any
    columns: int
    options: Any

    def run(
        self, tied: bool, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any
    ) -> tuple[Tensor, Tensor]:
        if tied:
            check_tied("apply_rotary_pos_emb", cos, sin)
        n = self.columns
        cos, sin = cos.narrow(-1, 0, n), sin.narrow(-1, 0, n)
        return apply_rope(q, k, cos, sin, **self.options)


def key_of(given: dict[str, Any] | None) -> Any:
    """None for a call that is to be looked at in full."""
    if given is None or torch.compiler.is_compiling():
        return None
    q, k, cos, sin = given.get("q"), given.get("k"), given.get("cos"), given.get("sin")
    axis = given.get("axis")
    if (
        not type(q) is type(k) is type(cos) is type(sin) is Tensor
        or not (axis is None or type(axis) is int)
        or given.get("ids") is not None
        or cos.requires_grad
        or sin.requires_grad
    ):
        return None
    return (q.shape, k.shape, cos.shape, sin.shape,
            q.dtype, k.dtype, cos.dtype, sin.dtype, axis)  # fmt: skip
