"""Rotary position embedding (RoPE), applied to query and key.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding",
https://arxiv.org/abs/2104.09864, equation 34.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, overload

import torch
from torch import Tensor

from .._native import _C
from ..distributed import is_dtensor, rope_options_beside
from ..types import Layout
from .rope_autograd import rotate, rotate_inplace, rotate_out, rotate_pair
from .rope_options import check_flags, check_tensors, rope_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RopeKeywords(TypedDict, total=False):
    """The arguments after the tables; for type checkers."""

    layout: Layout
    positions: Tensor | None
    offset: int | Tensor
    cu_seqlens: Tensor | None
    interleaved: bool
    inverse: bool
    inplace: bool


@overload
def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None = None, **options: Unpack[RopeKeywords]
) -> tuple[Tensor, Tensor]: ...
@overload
def apply_rope(
    q: Tensor, k: None, cos: Tensor, sin: Tensor | None = None, **options: Unpack[RopeKeywords]
) -> tuple[Tensor, None]: ...
def apply_rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    layout: Layout = "bshd",
    positions: Tensor | None = None,
    offset: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    interleaved: bool = False,
    interleaved_out: bool | None = None,
    inverse: bool = False,
    inplace: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Rotate query and key by the angles of their positions, in one pass over both.

    >>> import torch, posenc_ext
    >>> cos, sin = posenc_ext.rope_table(16, posenc_ext.rope_frequencies(64).inv_freq)
    >>> q, k = torch.randn(2, 16, 8, 64), torch.randn(2, 16, 2, 64)
    >>> q, k = posenc_ext.apply_rope(q, k, cos, sin)
    >>> q.shape, k.shape
    (torch.Size([2, 16, 8, 64]), torch.Size([2, 16, 2, 64]))

    Each pair of channels (u, v) with the angle of its row becomes

        u' = u*cos - v*sin        v' = v*cos + u*sin

    Pairs are ``(x[i], x[i + R/2])``, or ``(x[2i], x[2i + 1])`` when `interleaved`. Arithmetic is in
    float32 (float64 for float64 inputs) and rounded once, so the result does not depend on threads,
    instruction set, strides or layout. Channels from R on are copied.

    Args:
        q, k: float32, float64, bfloat16 or float16, of one dtype, with the axes that `layout`
            names. Any strides. Head counts may differ. Lengths may differ if rows come from
            `offset`: both then start there. With `k` None this is :func:`rope` of `q`.
        cos, sin: ``[L, R/2]``, rows picked by position, or ``[B, S, R/2]`` (or ``[1, S, R/2]``),
            one row per token. R, the number of channels to rotate, is at most D. float32 or the
            dtype of `q`; float32 keeps more bits. A full-width Hugging Face table repeats its
            columns and must be halved: ``cos[..., :R // 2]``. With R of at most D/2 it would
            otherwise be taken for one of twice the R. A complex `cos` alone is ``cos + i*sin`` and
            implies `interleaved`, as in the LLaMA code.
        layout: "bshd", "bhsd", "sbhd", "thd" (packed), or without batch or heads "shd", "hsd",
            "bsd", "sbd", "sd". It is never guessed from sizes, so a wrong one is found only where
            the table is too short for it.
        positions: int32 or int64 ``[S]`` or ``[B, S]``, rows of the table. Default ``0 .. S-1``.
        offset: added to the default positions: an int, or an integer tensor ``[]`` or ``[B]``.
        cu_seqlens: int32 or int64 ``[N + 1]`` for layout "thd": sequence i is tokens
            ``cu_seqlens[i] .. cu_seqlens[i + 1]``, and positions restart with it (at `offset`,
            which may be ``[N]``).
        interleaved: which channels form a pair, see above.
        interleaved_out: the same of the result: ``interleaved=True, interleaved_out=False`` reads
            neighbouring channels and writes halves, as DeepSeek-V3 does. Default: as `interleaved`.
        inverse: rotate by the negative angles.
        inplace: write the result into `q` and `k` and return them. To train, take them from a
            fused projection as slices: torch lets nobody write into the views of split, chunk and
            unbind.

    Returns:
        The rotated `q` and `k`, with the shape and dtype of the inputs and, if those are dense,
        their strides.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, layout or combination; in place, memory that overlaps or a leaf
            that requires grad.
        IndexError: a position outside the table.

    Differentiable in `q`, `k`, `cos` and `sin`, to any order, forward and backward.
    """
    if k is None:
        return rope(
            q, cos, sin, layout=layout, positions=positions, offset=offset, cu_seqlens=cu_seqlens,
            interleaved=interleaved, interleaved_out=interleaved_out, inverse=inverse,
            inplace=inplace,
        ), None  # fmt: skip
    if not torch.compiler.is_compiling():
        result = _C.apply_rope(
            q, k, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse, inplace,
            interleaved_out,
        )  # fmt: skip
        if result is not None:
            return result
    check_tensors("apply_rope", q=q, k=k)
    check_flags("apply_rope", interleaved=interleaved, inverse=inverse, inplace=inplace)
    options = rope_options(
        "apply_rope", cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
        interleaved_out,
    )  # fmt: skip
    if is_dtensor(q) or is_dtensor(k):
        options = rope_options_beside("apply_rope", (q, k), options)
    if inplace:
        q, k = rotate_inplace("apply_rope", (q, k), options)
        return q, k
    return rotate_pair(q, k, options)


def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    layout: Layout = "bshd",
    positions: Tensor | None = None,
    offset: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    interleaved: bool = False,
    interleaved_out: bool | None = None,
    inverse: bool = False,
    inplace: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Rotate one tensor by the angles of its positions.

    >>> import torch, posenc_ext
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = posenc_ext.rope_table(2, posenc_ext.rope_frequencies(4).inv_freq)
    >>> posenc_ext.rope(x, cos, sin, layout="sd", offset=1)
    tensor([[-1.9841,  1.9599,  2.4624,  4.0198]])

    As :func:`apply_rope`, which see for the arguments, for a single tensor `x`.

    Args:
        out: write the result here and return it: the shape, dtype and device of `x`, any strides.
            It may be `x` itself; any other overlap is a ValueError. Not differentiable, as
            elsewhere in torch.
    """
    if not torch.compiler.is_compiling():
        result = _C.rope(
            x, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse, inplace,
            interleaved_out, out,
        )  # fmt: skip
        if result is not None:
            return result
    check_tensors("rope", x=x)
    check_flags("rope", interleaved=interleaved, inverse=inverse, inplace=inplace)
    options = rope_options(
        "rope", cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
        interleaved_out,
    )  # fmt: skip
    if is_dtensor(x):
        options = rope_options_beside("rope", (x,), options)
    if out is not None:
        return rotate_out(x, out, inplace, options)
    if inplace:
        return rotate_inplace("rope", (x,), options)[0]
    return rotate(x, options)
