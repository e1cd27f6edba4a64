"""What the attention modules share: heads, masks, softmax, and the checks of their arguments."""

from __future__ import annotations

import math
from typing import Any, TypedDict

import torch
from torch import Tensor

from ..arguments import LARGEST, at_least, error
from ..ops.alibi import alibi_softmax
from ..ops.rope_options import check_tensors
from ..types import Cache
from .kv_cache import KVCache


class Masks(TypedDict, total=False):
    """What all attention modules take beside x; for type checkers."""

    key_padding_mask: Tensor | None
    attn_mask: Tensor | None


class CachedMasks(Masks, total=False):
    past: Cache | KVCache | None


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, heads * D] to [B, heads, S, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, heads, S, D] to [B, S, heads * D]."""
    return x.transpose(1, 2).flatten(2)


def split_scale(scale: float) -> tuple[float, float]:
    """A power of two to multiply queries by, and the rest, from 1 to 2, for the softmax. The digits
    of scores stay what they are, and those of float16 do not overflow before they are scaled."""
    power = 2.0 ** (math.frexp(scale)[1] - 1)
    return power, scale / power


def attention_weights(
    scores: Tensor,
    scale: float,
    causal: bool,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    slopes: Tensor | None = None,
) -> Tensor:
    """``softmax(scale * scores + mask)`` over the keys, plus the ALiBi bias of `slopes`; a row that
    sees no key is zeros."""
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -float("inf"))
        else:
            scores, scale = scores * scale + attn_mask.to(scores.dtype), 1.0
    # With slopes of 0 this is the plain softmax, and it takes scale and masks in the same pass.
    slopes = scores.new_zeros(scores.shape[1]) if slopes is None else slopes
    return alibi_softmax(
        scores, slopes, scale=scale, causal=causal, key_padding_mask=key_padding_mask
    )


def outputs(y: Tensor, weights: Tensor | None, cache: Cache | KVCache | None) -> Any:
    """y, with what else was asked for behind it."""
    rest = tuple(part for part in (weights, cache) if part is not None)
    return (y, *rest) if rest else y


def extend(op: str, past: Cache | KVCache | None, k: Tensor, v: Tensor) -> Cache:
    """The keys and values of all calls so far."""
    if past is None:
        return k, v
    if isinstance(past, KVCache):
        return past.append(k, v)
    if {t.dtype for t in past} != {k.dtype}:
        got = " and ".join(str(t.dtype) for t in past)
        text = f"past must have the dtype of the keys ({k.dtype}), got {got}"
        raise error(TypeError, op, text)
    return torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)


def head_sizes(op: str, d_model: Any, num_heads: Any) -> tuple[int, int]:
    d_model = at_least(op, "d_model", d_model, 1, LARGEST)
    num_heads = at_least(op, "num_heads", num_heads, 1)
    if d_model % num_heads:
        raise error(
            ValueError, op, f"d_model must be a multiple of num_heads = {num_heads}, got {d_model}"
        )
    return d_model, num_heads


def kv_heads(op: str, num_heads: int, given: Any) -> int:
    """The number of heads of keys and values: as given, or as of the queries."""
    if given is None:
        return num_heads
    count = at_least(op, "num_kv_heads", given, 1)
    if num_heads % count:
        text = f"num_kv_heads must divide num_heads = {num_heads}, got {count}"
        raise error(ValueError, op, text)
    return count


def check_call(
    op: str,
    x: Any,
    sizes: tuple[int, int],
    key_padding_mask: Any,
    attn_mask: Any,
    past: Any = None,
    kv_heads: int | None = None,
) -> int:
    """Check the arguments that all modules take, and return K, the number of keys.

    `sizes` are d_model and num_heads.
    """
    d_model, heads = sizes
    past = (past.keys, past.values) if isinstance(past, KVCache) else past
    check_floating(op, "x", x, "[B, S, d_model]", d_model)
    batch, length, _ = x.shape
    keys = length + _cached_keys(op, past, [batch, kv_heads or heads, d_model // heads])
    for cached in past or ():
        check_device(op, "past", cached, x)
    check_masks(op, key_padding_mask, attn_mask, (batch, heads, length, keys), x)
    return keys


def check_tensor(op: str, name: str, value: Any) -> None:
    check_tensors(op, **{name: value})


def check_device(op: str, name: str, value: Tensor, x: Tensor) -> None:
    if value.device != x.device:
        text = f"{name} must be on the device of x ({x.device}), got {value.device}"
        raise error(ValueError, op, text)


def check_floating(op: str, name: str, x: Any, axes: str, last: int | None = None) -> None:
    """`axes` are such as "[B, S, d_model]" or "[..., Q, D]"; `last` is the size of the last."""
    check_tensor(op, name, x)
    if not x.is_floating_point():
        raise error(TypeError, op, f"{name} must be floating, got {x.dtype}")
    count = axes.count(",") + 1
    fits = x.dim() >= count - 1 if "..." in axes else x.dim() == count
    if not fits or (last is not None and x.shape[-1] != last):
        size = "" if last is None else f" with {axes.strip('[]').split(', ')[-1]} = {last}"
        raise error(ValueError, op, f"{name} must have shape {axes}{size}, got {list(x.shape)}")


def _cached_keys(op: str, past: Any, size: list[int]) -> int:
    """How many keys `past` holds, after a check of it; `size` is [B, H, D]."""
    if past is None:
        return 0
    if not isinstance(past, (tuple, list)) or not all(isinstance(t, Tensor) for t in past):
        raise error(TypeError, op, f"past must be a pair of tensors, got {type(past).__name__}")
    count = past[0].shape[2] if past and past[0].dim() == 4 else 0
    wanted, shapes = [*size[:2], count, size[2]], [list(t.shape) for t in past]
    if shapes != [wanted, wanted]:
        raise error(
            ValueError,
            op,
            f"past must be keys and values [B, H, K - S, D] like {wanted}, got {shapes}",
        )
    return count  # no int(), which binds a traced length


def check_masks(op: str, keep: Any, mask: Any, size: tuple[int, int, int, int], x: Tensor) -> None:
    """A key_padding_mask [B, K] and an attn_mask that broadcasts to `size` [B, H, Q, K]."""
    batch, _, _, keys = size
    if keep is not None:
        check_tensor(op, "key_padding_mask", keep)
        if keep.dtype != torch.bool:
            text = f"key_padding_mask must be bool (True = keep), got {keep.dtype}"
            raise error(TypeError, op, text)
        if list(keep.shape) != [batch, keys]:
            raise error(
                ValueError,
                op,
                f"key_padding_mask must have shape [B, K] = [{batch}, {keys}], got "
                f"{list(keep.shape)}",
            )
        check_device(op, "key_padding_mask", keep, x)
    if mask is not None:
        check_tensor(op, "attn_mask", mask)
        if mask.dtype != torch.bool and not mask.is_floating_point():
            text = f"attn_mask must be bool (True = keep) or floating (added), got {mask.dtype}"
            raise error(TypeError, op, text)
        given = list(mask.shape)
        fits = all(n in (1, m) for n, m in zip(given[::-1], size[::-1], strict=False))
        if len(given) > 4 or not fits:
            raise error(
                ValueError,
                op,
                f"attn_mask must broadcast to [B, H, Q, K] = {list(size)}, got {given}",
            )
        check_device(op, "attn_mask", mask, x)
