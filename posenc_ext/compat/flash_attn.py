"""The rotary functions of flash_attn.layers.rotary, for heads of any size.

What differs: an offset beyond the end of the table is an IndexError (there, tensors of offsets go
on without rotating), and in place a leaf that requires grad is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import error, integer
from ..ops.rope import apply_rope, rope
from ..ops.rope_options import check_tensors
from .tables import readable, with_front


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotate one tensor.

    >>> import torch, posenc_ext
    >>> from posenc_ext.compat.flash_attn import apply_rotary_emb
    >>> cos, sin = posenc_ext.rope_table(16, posenc_ext.rope_frequencies(64).inv_freq)
    >>> apply_rotary_emb(torch.randn(2, 10, 4, 64), cos, sin, seqlen_offsets=3).shape
    torch.Size([2, 10, 4, 64])

    Args:
        x: ``[B, S, H, D]``, or packed ``[T, H, D]`` with `cu_seqlens`.
        cos, sin: ``[L, R/2]``, of any floating dtype.
        interleaved: pairs are ``(x[2i], x[2i + 1])``.
        inplace: write into `x` and return it.
        seqlen_offsets: an int or ``[B]``, the position of the first token. Tokens at negative
            positions, as padding on the left has them, are multiplied by cos 1 and sin 0.
        cu_seqlens: ``[N + 1]``, where the packed sequences begin.
        max_seqlen: not needed here, and not read.

    Raises:
        TypeError, ValueError, IndexError: as :func:`posenc_ext.rope`.
    """
    check_tensors("apply_rotary_emb", x=x, cos=cos, sin=sin)
    tokens = x.shape[0 if cu_seqlens is not None else 1] if x.dim() > 1 else 0
    (cos, sin), seqlen_offsets = _with_padding(seqlen_offsets, tokens, cos, sin)
    return rope(
        x,
        readable(cos, x),
        readable(sin, x),
        layout="bshd" if cu_seqlens is None else "thd",
        offset=seqlen_offsets,
        cu_seqlens=cu_seqlens,
        interleaved=interleaved,
        inplace=inplace,
    )


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Rotate query and key inside a packed projection, in place.

    >>> import torch, posenc_ext
    >>> from posenc_ext.compat.flash_attn import apply_rotary_emb_qkv_
    >>> cos, sin = posenc_ext.rope_table(16, posenc_ext.rope_frequencies(64).inv_freq)
    >>> apply_rotary_emb_qkv_(torch.randn(2, 10, 3, 4, 64), cos, sin).shape
    torch.Size([2, 10, 3, 4, 64])

    Args:
        qkv: ``[B, S, 3, H, D]``; or ``[B, S, Hq + 2*Hk, D]`` with `num_heads_q` Hq.
        cos, sin: ``[L, R/2]``, of any floating dtype.
        cos_k, sin_k: other tables for the key, as xPos has: those of
            :func:`posenc_ext.xpos_table`.
        interleaved, seqlen_offsets: as for :func:`apply_rotary_emb`.

    Returns:
        `qkv`.

    Raises:
        TypeError, ValueError, IndexError: as :func:`posenc_ext.apply_rope`.
    """
    op = "apply_rotary_emb_qkv_"
    check_tensors(op, qkv=qkv, cos=cos, sin=sin)
    for name, table in (("cos_k", cos_k), ("sin_k", sin_k)):
        if table is not None:
            check_tensors(op, **{name: table})
        given = None if table is None else (list(table.shape), table.dtype)
        if given != (None if cos_k is None and sin_k is None else (list(cos.shape), cos.dtype)):
            raise error(
                ValueError,
                op,
                f"{name} must have the shape and dtype of cos ({list(cos.shape)}, {cos.dtype}), as "
                f"cos_k and sin_k both or neither, got {given}",
            )
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    elif qkv.dim() == 4 and num_heads_q is not None:
        heads = integer(op, "num_heads_q", num_heads_q)
        rest = qkv.shape[2] - heads
        if heads < 0 or rest < 0 or rest % 2:
            raise error(
                ValueError,
                op,
                f"num_heads_q must leave as many key as value heads of {qkv.shape[2]}, got {heads}",
            )
        q, k = qkv[:, :, :heads], qkv[:, :, heads : heads + rest // 2]
    else:
        raise error(
            ValueError,
            op,
            "qkv must have shape [B, S, 3, H, D], or [B, S, Hq + 2*Hk, D] with num_heads_q, got "
            f"{list(qkv.shape)} with num_heads_q = {num_heads_q}",
        )
    if cos_k is None or sin_k is None:
        (cos, sin), seqlen_offsets = _with_padding(seqlen_offsets, qkv.shape[1], cos, sin)
    else:
        (cos, sin, cos_k, sin_k), seqlen_offsets = _with_padding(
            seqlen_offsets, qkv.shape[1], cos, sin, cos_k, sin_k
        )
    options: dict[str, Any] = {"interleaved": interleaved, "offset": seqlen_offsets}
    cos, sin = readable(cos, qkv), readable(sin, qkv)
    if cos_k is None or sin_k is None:
        apply_rope(q, k, cos, sin, **options, inplace=True)
    else:  # whatever is wrong with either table must show before q is written
        rotated = rope(k, readable(cos_k, qkv), readable(sin_k, qkv), **options, inplace=False)
        rope(q, cos, sin, **options, inplace=True)
        k.copy_(rotated)
    return qkv


def _with_padding(
    offsets: int | Tensor, tokens: int, *tables: Tensor
) -> tuple[tuple[Tensor, ...], int | Tensor]:
    """Tables with a row of cos 1 and sin 0 in front for each token that may stand at a negative
    position, and the offsets that belong to them."""
    if any(table.dim() != 2 or table.shape != tables[0].shape for table in tables):
        return tables, offsets  # rope says what is wrong
    if isinstance(offsets, Tensor):
        if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
            return tables, offsets
        known = type(offsets) is Tensor and offsets.device.type == "cpu"
        if known and not torch.compiler.is_compiling():
            last = tables[0].shape[0] - tokens
            if not bool((offsets < 0).any()) or bool((offsets > last).any()):
                return tables, offsets
        offsets = offsets.clamp(min=-tokens) + tokens
    elif isinstance(offsets, int) and offsets < 0:
        offsets = max(offsets, -tokens) + tokens
    else:
        return tables, offsets
    return tuple(with_front(t, tokens, (1.0, 0.0)[i % 2]) for i, t in enumerate(tables)), offsets


def apply_rotary_emb_kv_(
    kv: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
) -> Tensor:
    """Rotate the key inside a packed key and value ``[B, S, 2, H, D]``, in place; return `kv`.

    >>> import torch, posenc_ext
    >>> from posenc_ext.compat.flash_attn import apply_rotary_emb_kv_
    >>> cos, sin = posenc_ext.rope_table(16, posenc_ext.rope_frequencies(64).inv_freq)
    >>> apply_rotary_emb_kv_(torch.randn(2, 10, 2, 4, 64), cos, sin).shape
    torch.Size([2, 10, 2, 4, 64])

    The other arguments are as for :func:`apply_rotary_emb`.
    """
    check_tensors("apply_rotary_emb_kv_", kv=kv, cos=cos, sin=sin)
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise error(
            ValueError,
            "apply_rotary_emb_kv_",
            f"kv must have shape [B, S, 2, H, D], got {list(kv.shape)}",
        )
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv
