"""The norm of query and key and their rotation, in one pass.

Sources: RMSNorm, Zhang and Sennrich, "Root Mean Square Layer Normalization",
https://arxiv.org/abs/1910.07467, equation 4; norms of queries and keys, Henry et al., "Query-Key
Normalization for Transformers", https://arxiv.org/abs/2010.04245, and Dehghani et al., "Scaling
Vision Transformers to 22 Billion Parameters", https://arxiv.org/abs/2302.05442, section 2; the
rotation as in :mod:`posenc_ext.ops.rope`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from .._native import _C
from ..distributed import beside, is_dtensor, rope_options_beside
from ..types import Layout
from .norm_rope_autograd import (
    norm_rotate,
    norm_rotate_inplace,
    norm_rotate_out,
    norm_rotate_pair,
)
from .norm_rope_formula import Parameters
from .norm_rope_options import check_parameters, norm_options
from .rope import RopeKeywords
from .rope_options import check_flags, check_tensors, rope_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Options(RopeKeywords, total=False):
    """The arguments after the tables; for type checkers."""

    eps: float
    norm: str
    weight_offset: float
    q_bias: Tensor | None
    k_bias: Tensor | None
    norm_dims: str
    order: str
    rounding: str


@overload
def qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor,
    sin: Tensor | None = None, **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def qk_norm_rope(
    q: Tensor, k: None, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor,
    sin: Tensor | None = None, **options: Unpack[_Options],
) -> tuple[Tensor, None]: ...  # fmt: skip
def qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    eps: float = 1e-6,
    norm: str = "rms",
    weight_offset: float = 0.0,
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    norm_dims: str = "head",
    order: str = "norm_first",
    rounding: str = "once",
    layout: Layout = "bshd",
    positions: Tensor | None = None,
    offset: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    interleaved: bool = False,
    inverse: bool = False,
    inplace: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Normalise query and key and rotate them by their positions, in one pass over both.

    >>> import torch, posenc_ext
    >>> cos, sin = posenc_ext.rope_table(16, posenc_ext.rope_frequencies(64).inv_freq)
    >>> q, k, weight = torch.randn(2, 16, 8, 64), torch.randn(2, 16, 2, 64), torch.ones(64)
    >>> q, k = posenc_ext.qk_norm_rope(q, k, weight, weight, cos, sin)
    >>> q.shape, k.shape
    (torch.Size([2, 16, 8, 64]), torch.Size([2, 16, 2, 64]))

    This is what stands between projection and attention in Qwen3, Gemma 3, OLMo 2, Llama 4, Flux
    and others. Each head of each token becomes

        y = (x - mean) / sqrt(sum((x - mean)^2) / N + eps) * (weight_offset + weight) + bias

    and is rotated as by :func:`apply_rope`. Channels from R on are normalised only. Arithmetic is
    in float32 (float64 for float64 inputs) and rounded once, and sums have one order, so the result
    does not depend on threads, instruction set, strides or layout.

    Args:
        q, k: as for :func:`apply_rope`. With `k` None this is :func:`norm_rope` of `q`.
        q_weight, k_weight: ``[D]``, or ``[H * D]`` with `norm_dims` "all", of float32 or the dtype
            of `q`. None for a norm without weight.
        cos, sin: as for :func:`apply_rope`.
        eps: added under the root.
        norm: "rms" (the mean above is 0, N the number of channels), "layer" (the mean is taken
            off) or "l2" (the mean is 0, N is 1: rows get length 1).
        weight_offset: 1.0 for weights that are stored as their distance from 1 (Gemma).
        q_bias, k_bias: like the weights; None for none.
        norm_dims: "head": each head by itself. "all": the heads of a token together (OLMo 2).
        order: "norm_first", or "rope_first" to normalise what has been rotated (Llama 4).
        rounding: "once"; "norm", which also rounds to the dtype of `q` between norm and rotation
            (Gemma and OLMo 2 in Hugging Face); or "transformers", which rounds there and before
            the weight too (Qwen3 and other norms that follow Llama's in Hugging Face). The three
            are equal in float32 and float64.
        layout, positions, offset, cu_seqlens, interleaved, inverse: as for :func:`apply_rope`.
        inplace: write the result into `q` and `k` and return them.

    Returns:
        The normalised and rotated `q` and `k`, with the shape and dtype of the inputs and, if those
        are dense, their strides.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, layout, word or combination; in place, memory that overlaps or a
            leaf that requires grad.
        IndexError: a position outside the table.

    Differentiable in `q`, `k`, weights, biases, `cos` and `sin`, to any order, forward and
    backward; what `rounding` rounds on the way counts as the identity. Only the inputs are kept for
    backward.
    """
    op = "qk_norm_rope"
    if k is None:
        return norm_rope(
            q, q_weight, cos, sin, eps=eps, norm=norm, weight_offset=weight_offset, bias=q_bias,
            norm_dims=norm_dims, order=order, rounding=rounding, layout=layout,
            positions=positions, offset=offset, cu_seqlens=cu_seqlens, interleaved=interleaved,
            inverse=inverse, inplace=inplace,
        ), None  # fmt: skip
    if not torch.compiler.is_compiling():
        result = _C.qk_norm_rope(
            q, k, q_weight, k_weight, q_bias, k_bias, cos, sin, layout, positions, offset,
            cu_seqlens, interleaved, inverse, inplace, eps, weight_offset, norm, norm_dims, order,
            rounding,
        )  # fmt: skip
        if result is not None:
            return result
    check_tensors(op, q=q, k=k)
    check_parameters(op, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias)
    check_flags(op, interleaved=interleaved, inverse=inverse, inplace=inplace)
    options = rope_options(
        op, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse, None
    )
    rule = norm_options(op, eps, weight_offset, norm, norm_dims, order, rounding)
    ps = Parameters(q_weight, q_bias), Parameters(k_weight, k_bias)
    if is_dtensor(q) or is_dtensor(k):
        options = rope_options_beside(op, (q, k), options)
        ps = Parameters(*beside(q, *ps[0])), Parameters(*beside(k, *ps[1]))
    if inplace:
        q, k = norm_rotate_inplace(op, (q, k), ps, options, rule)
        return q, k
    return norm_rotate_pair(q, k, *ps, options, rule)


def norm_rope(
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    eps: float = 1e-6,
    norm: str = "rms",
    weight_offset: float = 0.0,
    bias: Tensor | None = None,
    norm_dims: str = "head",
    order: str = "norm_first",
    rounding: str = "once",
    layout: Layout = "bshd",
    positions: Tensor | None = None,
    offset: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    interleaved: bool = False,
    inverse: bool = False,
    inplace: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise one tensor and rotate it by its positions.

    >>> import torch, posenc_ext
    >>> x = torch.tensor([[3.0, 0.0, 0.0, 4.0]])
    >>> cos, sin = posenc_ext.rope_table(2, posenc_ext.rope_frequencies(4).inv_freq)
    >>> posenc_ext.norm_rope(x, None, cos, sin, eps=0.0, norm="l2", layout="sd")
    tensor([[0.6000, 0.0000, 0.0000, 0.8000]])

    As :func:`qk_norm_rope`, which see for the arguments, for a single tensor `x`.

    Args:
        out: write the result here and return it: the shape, dtype and device of `x`, any strides.
            It may be `x` itself; any other overlap is a ValueError. Not differentiable, as
            elsewhere in torch.
    """
    op = "norm_rope"
    if not torch.compiler.is_compiling():
        result = _C.norm_rope(
            x, weight, bias, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse,
            inplace, eps, weight_offset, norm, norm_dims, order, rounding, out,
        )  # fmt: skip
        if result is not None:
            return result
    check_tensors(op, x=x)
    check_parameters(op, weight=weight, bias=bias)
    check_flags(op, interleaved=interleaved, inverse=inverse, inplace=inplace)
    options = rope_options(
        op, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse, None
    )
    rule = norm_options(op, eps, weight_offset, norm, norm_dims, order, rounding)
    p = Parameters(weight, bias)
    if is_dtensor(x):
        options = rope_options_beside(op, (x,), options)
        p = Parameters(*beside(x, *p))
    if out is not None:
        return norm_rotate_out(x, out, inplace, p, options, rule)
    if inplace:
        return norm_rotate_inplace(op, (x,), (p,), options, rule)[0]
    return norm_rotate(x, p, options, rule)
