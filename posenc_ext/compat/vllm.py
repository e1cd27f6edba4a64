"""The op rotary_embedding of vLLM, with autograd, and with its positions checked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..arguments import error, integer
from ..ops.rope import apply_rope, rope
from ..ops.rope_options import check_flags, check_tensors
from .tables import readable


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    """Rotate query and key in place.

    >>> import torch, posenc_ext
    >>> from posenc_ext.compat.vllm import rotary_embedding
    >>> table = posenc_ext.rope_table(16, posenc_ext.rope_frequencies(64).inv_freq)
    >>> query, key = torch.randn(5, 8 * 64), torch.randn(5, 2 * 64)
    >>> rotary_embedding(torch.arange(5), query, key, 64, torch.cat(table, -1), True)

    Args:
        positions: int64 or int32, ``[T]`` or ``[B, S]``, rows of the table.
        query, key: ``[.., H * head_size]`` or ``[.., H, head_size]``, where .. are the axes of
            `positions`. Head counts may differ. `key` may be None.
        head_size: D.
        cos_sin_cache: ``[L, R]``, cosines in the first half of the columns and sines in the other,
            of any floating dtype.
        is_neox: pairs are ``(x[i], x[i + R/2])`` rather than ``(x[2i], x[2i + 1])``.
        rope_dim_offset: the first channel to rotate. The others keep their values.
        inverse: rotate by the negative angles.

    Raises:
        TypeError, ValueError, IndexError: as :func:`posenc_ext.apply_rope`, so for a position
            outside the table, which vLLM does not check.
    """
    op = "rotary_embedding"
    check_tensors(op, positions=positions, query=query, cos_sin_cache=cos_sin_cache)
    check_flags(op, is_neox=is_neox, inverse=inverse)
    if key is not None:
        check_tensors(op, key=key)
    size, first = (
        integer(op, "head_size", head_size),
        integer(op, "rope_dim_offset", rope_dim_offset),
    )
    if positions.dim() not in (1, 2):
        raise error(
            ValueError, op, f"positions must have shape [T] or [B, S], got {list(positions.shape)}"
        )
    if cos_sin_cache.dim() != 2 or cos_sin_cache.shape[1] % 2:
        raise error(
            ValueError,
            op,
            f"cos_sin_cache must have shape [L, R] with an even R, got {list(cos_sin_cache.shape)}",
        )
    width = cos_sin_cache.shape[1]
    if not 0 <= first <= size - width:
        raise error(
            ValueError,
            op,
            f"rope_dim_offset must be from 0 to head_size - R = {size - width}, got {first}",
        )
    q = _heads(op, "query", query, positions, size, first)
    cos, sin = readable(cos_sin_cache, query).chunk(2, -1)
    layout = "shd" if positions.dim() == 1 else "bshd"
    options: dict[str, Any] = {"layout": layout, "positions": positions, "interleaved": not is_neox,
               "inverse": inverse, "inplace": True}  # fmt: skip
    if key is None:
        rope(q, cos, sin, **options)
        return
    k = _heads(op, "key", key, positions, size, first)
    apply_rope(q, k, cos, sin, **options)


def _heads(op: str, name: str, x: Tensor, positions: Tensor, size: int, first: int) -> Tensor:
    """The channels of x from `first` on, as ``[.., H, D]``, a view."""
    sizes: tuple[int, ...] = x.shape
    if len(sizes) == positions.dim() + 1 and size > 0 and sizes[-1] % size == 0:
        sizes = (*sizes[:-1], sizes[-1] // size, size)
        x = x.view(sizes)
    if sizes[:-2] != positions.shape or sizes[-1] != size:
        raise error(
            ValueError,
            op,
            f"{name} must have shape [.., H * D] or [.., H, D] with D = {size} and .. = "
            f"{list(positions.shape)} as in positions, got {list(x.shape)}",
        )
    return x[..., first:] if first else x
