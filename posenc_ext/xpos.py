"""xPos: rotary position embedding (RoPE) whose scores decay with distance.

Source: Sun et al., "A Length-Extrapolatable Transformer", https://arxiv.org/abs/2212.10554.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import check_dtype, error, integer, known, number
from .kept import constant
from .ops.rope_options import check_tensors
from .ops.rope_table import rope_table

# The largest scale in a table, as a logarithm: that of q times that of k times any activation stays
# finite, in float16 as in float32.
_LARGEST = {torch.float16: 8 * math.log(2), torch.float64: 400 * math.log(2)}
_LARGEST_FLOAT32 = 50 * math.log(2)


class XPosTable(NamedTuple):
    """Tables for the query and for the key, which differ: each float ``[rows, R/2]``.

    >>> import posenc_ext
    >>> tables = posenc_ext.xpos_table(10, posenc_ext.rope_frequencies(8).inv_freq)
    >>> tables.cos_q.shape, tables.sin_k.shape
    (torch.Size([10, 4]), torch.Size([10, 4]))
    """

    cos_q: Tensor
    sin_q: Tensor
    cos_k: Tensor
    sin_k: Tensor


def xpos_zeta(dim: int, *, gamma: float = 0.4) -> Tensor:
    """The decay of each frequency, float64 ``[R/2]``: ``(2i/R + gamma) / (1 + gamma)``.

    >>> import posenc_ext
    >>> posenc_ext.xpos_zeta(8)
    tensor([0.2857, 0.4643, 0.6429, 0.8214], dtype=torch.float64)
    """
    op = "xpos_zeta"
    dim, gamma = integer(op, "dim", dim), number(op, "gamma", gamma)
    if dim <= 0 or dim % 2:
        raise error(ValueError, op, f"dim must be positive and even, got {dim}")
    if gamma <= 0:
        raise error(ValueError, op, f"gamma must be positive, got {gamma}")
    i = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")
    return (i / dim + gamma) / (1 + gamma)


def _log_zeta(device: torch.device, dim: int) -> Tensor:
    return xpos_zeta(dim).to(device).log()


def xpos_table(
    positions: int | Tensor,
    inv_freq: Tensor,
    *,
    zeta: Tensor | None = None,
    scale_base: float = 512.0,
    centre: float | Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> XPosTable:
    """cos and sin of rotary embedding, times ``zeta ** ((p - centre) / scale_base)`` for the query
    and its inverse for the key.

    >>> import torch, posenc_ext
    >>> table = posenc_ext.xpos_table(16, posenc_ext.rope_frequencies(64).inv_freq)
    >>> q, k = torch.randn(2, 1, 16, 8, 64).unbind(0)
    >>> q = posenc_ext.rope(q, table.cos_q, table.sin_q)
    >>> k = posenc_ext.rope(k, table.cos_k, table.sin_k)

    The score of query m and key n is that of rotary embedding with each frequency weighed by
    ``zeta ** ((m - n) / scale_base)``: it depends on ``m - n`` alone and is meant for n <= m. The
    centre cancels, if q and k share it.

    The scale of one side grows without limit away from the centre: by 3.5 every `scale_base`
    positions at the first frequency. It is cut off at 2**50 (14,000 positions from the centre;
    2**8 or 2,200 in float16, 2**400 in float64), so that tables and scores are finite at any
    length; beyond that scores no longer depend on the distance alone. For longer sequences take
    queries in blocks, with `centre` at the first query of the block, for the query table and for
    the key table up to the end of the block: keys before the centre, and queries after it, only
    shrink, down to zero where the score is zero.

    Args:
        positions: an int n for ``0 .. n-1``, or a tensor ``[...]``, as for :func:`rope_table`.
        inv_freq: ``[R/2]``, as for :func:`rope_table`.
        zeta: ``[R/2]``, in (0, 1]. Default: :func:`xpos_zeta`.
        scale_base: positions per power of zeta.
        centre: the position of scale 1: a number, or a tensor that broadcasts with positions.
            Default for an int n: ``n // 2``, as flash-attn has it, and a ValueError if that cuts
            off the default zeta. A tensor of positions needs one.
        dtype, device: as for :func:`rope_table`. Values are computed in float64 and rounded once.

    Returns:
        ``XPosTable(cos_q, sin_q, cos_k, sin_k)``, each ``[..., R/2]``.

    Raises:
        TypeError, ValueError: as :func:`rope_table`; no centre for a tensor of positions.

    Differentiable in `inv_freq`, `zeta` and floating positions.
    """
    op = "xpos_table"
    base = number(op, "scale_base", scale_base)
    if base <= 0:
        raise error(ValueError, op, f"scale_base must be positive, got {base}")
    check_dtype(op, dtype)
    cos, sin = rope_table(positions, inv_freq, dtype=torch.float64, device=device)
    for name, value in (("zeta", zeta), ("centre", centre)):
        if isinstance(value, Tensor):
            check_tensors(op, **{name: value})
            if value.is_complex():
                raise error(TypeError, op, f"{name} must be real, got {value.dtype}")
            if value.is_meta and not cos.is_meta:
                text = f"{name} must be on the device of the tables ({cos.device}), got meta"
                raise error(ValueError, op, text)
    decay = 0.0
    if zeta is None:
        log_zeta = constant(_log_zeta, cos.device, 2 * inv_freq.shape[-1])
        decay = math.log(3.5)
    elif isinstance(zeta, Tensor) and zeta.shape == inv_freq.shape:
        log_zeta = zeta.to(cos.device, torch.float64).log()
    else:
        got = list(zeta.shape) if isinstance(zeta, Tensor) else type(zeta).__name__
        raise error(ValueError, op, f"zeta must have shape {list(inv_freq.shape)}, got {got}")
    limit = _LARGEST.get(dtype, _LARGEST_FLOAT32)
    if isinstance(positions, Tensor):
        where = positions.to(cos.device)
        if centre is None:
            raise error(ValueError, op, "centre must be given for a tensor of positions, got None")
    else:
        where = torch.arange(positions, device=cos.device)
        if centre is None:
            centre = positions // 2
            longest = int(2 * base * limit / decay) if decay else positions
            if known(positions) and positions > longest:
                raise error(
                    ValueError,
                    op,
                    f"positions must be at most {longest} for {dtype} with the default centre "
                    f"(give a centre for each block of queries), got {positions}",
                )
    if isinstance(centre, Tensor):
        if centre.dim() > where.dim() or any(
            a not in (1, b) for a, b in zip(centre.shape[::-1], where.shape[::-1], strict=False)
        ):
            raise error(
                ValueError,
                op,
                f"centre must be a number or broadcast to the shape of positions, "
                f"{list(where.shape)}, got {list(centre.shape)}",
            )
        centre = centre.to(cos.device, torch.float64)
    else:
        centre = number(op, "centre", centre)
    powers = ((where.double() - centre) / base).unsqueeze(-1)
    log_scale = powers * log_zeta
    up, down = log_scale.clamp(max=limit).exp(), (-log_scale).clamp(max=limit).exp()
    return XPosTable(*((table * s).to(dtype) for s in (up, down) for table in (cos, sin)))
