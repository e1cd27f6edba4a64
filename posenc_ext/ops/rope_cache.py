"""Rotary position embedding (RoPE) that writes keys and values into a cache on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._native import _C
from ..arguments import at_least, error, number
from ..distributed import beside, is_dtensor, rope_options_beside
from .functions import has_tangent
from .norm_rope_options import check_parameters, norm_options
from .rope_options import check_flags, check_tensors, rope_options

_OP = "apply_rope_cache"
_PARAMETERS = ("q_weight", "k_weight", "q_bias", "k_bias")
_ops = torch.ops.posenc_ext


def apply_rope_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    slots: Tensor | None = None,
    cache_layout: str | None = None,
    window: int | None = None,
    k_scale: float | Tensor | None = None,
    v_scale: float | Tensor | None = None,
    norm: str | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm_dims: str = "head",
    order: str = "norm_first",
    rounding: str = "once",
    layout: str = "bshd",
    positions: Tensor | None = None,
    offset: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    interleaved: bool = False,
    interleaved_out: bool | None = None,
    inverse: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Rotate query and key, and write the rotated key and the value into a cache, in one call.

    >>> import torch, posenc_ext
    >>> cos, sin = posenc_ext.rope_table(64, posenc_ext.rope_frequencies(16).inv_freq)
    >>> k_cache, v_cache = torch.zeros(2, 2, 64, 4, 16)  # [B, L, H, D] each
    >>> q, k, v = torch.randn(2, 1, 8, 16), torch.randn(2, 1, 4, 16), torch.randn(2, 1, 4, 16)
    >>> q = posenc_ext.apply_rope_cache(q, k, v, k_cache, v_cache, cos, sin, offset=7)
    >>> torch.equal(k_cache[:, 7:8], posenc_ext.rope(k, cos, sin, offset=7))
    True
    >>> torch.equal(v_cache[:, 7:8], v)
    True

    The same numbers as :func:`apply_rope`, which see for the rotation and its options, or with
    `norm` as :func:`qk_norm_rope`, and two copies. With an 8-bit cache, what is stored is
    ``rotated / scale``, computed in float32, rounded once to nearest even, and held at the largest
    number of the dtype where it would pass it.

    Args:
        q, k: as for :func:`apply_rope`.
        v: as `k`; its last axis may have another size.
        k_cache, v_cache: where to write, with the axes that `cache_layout` names. Any strides.
            Of the dtype of `k`, or float8_e4m3fn, float8_e5m2 or int8.
        slots: int32 or int64 ``[T]`` or ``[B, S]``, where each token of `k` goes in a paged cache:
            row ``slot % P`` of block ``slot // P``. -1 for a token that is not stored. With a
            contiguous cache as one of B blocks, slots are ``b * L + row``.
        cache_layout: "blhd" ``[B, L, H, D]`` or "bhld" ``[B, H, L, D]``, contiguous, in which a
            token goes to the row of its position; "nphd" ``[N, P, H, D]`` or "nhpd"
            ``[N, H, P, D]``, N blocks of P rows, with `slots`. Default: "nphd" with `slots`, "blhd"
            without.
        window: makes a contiguous cache a ring: position p goes to row ``p % window``. Of the
            tokens of one call that follow one another, only the last `window` are stored.
        k_scale, v_scale: of an 8-bit cache, a number or float32 ``[]`` or ``[H]``; default 1, but
            int8 must have one.
        norm: "rms", "layer" or "l2" to normalise query and key too; None not to. Then
            `interleaved_out` must be as `interleaved`.
        q_weight, k_weight, q_bias, k_bias, eps, weight_offset, norm_dims, order, rounding: of the
            norm, as for :func:`qk_norm_rope`. With an 8-bit cache `rounding` must be "once".
        layout, positions, offset, cu_seqlens, interleaved, interleaved_out, inverse: as for
            :func:`apply_rope`. With `cu_seqlens` or one row of `cos` per token, `slots` are needed.
        inplace: write the rotated query into `q` and return it.

    Returns:
        The rotated `q`.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, layout or combination; memory that overlaps; a tensor that
            requires grad, as this has no gradient; on the CPU, two tokens for one slot.
        IndexError: a position outside the table, a slot or position outside the cache. On the CPU
            nothing has been written then; on CUDA it is a device assert, and nothing is written
            outside the cache. On CUDA, which of two tokens with one slot stays is not defined.
        NotImplementedError: under a transform of torch.func.
    """
    if k_scale is not None and not isinstance(k_scale, Tensor):
        k_scale = _scale("k_scale", k_scale, k)
    if v_scale is not None and not isinstance(v_scale, Tensor):
        v_scale = _scale("v_scale", v_scale, v)
    weights = (q_weight, k_weight, q_bias, k_bias)
    rule = (eps, weight_offset, norm, norm_dims, order, rounding)
    if norm is None and not (q_weight is k_weight is q_bias is k_bias is None):
        raise error(ValueError, _OP, "norm must be given with weights or biases, got None")
    if not torch.compiler.is_compiling():
        result = _C.apply_rope_cache(
            q, k, v, k_cache, v_cache, cos, sin, layout, positions, offset, cu_seqlens, interleaved,
            inverse, inplace, interleaved_out, slots, cache_layout, window, k_scale, v_scale,
            None if norm is None else (*weights, *rule),
        )  # fmt: skip
        if result is not None:
            return result
    check_tensors(_OP, q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    check_flags(_OP, interleaved=interleaved, inverse=inverse, inplace=inplace)
    options = rope_options(
        _OP, cos, sin, layout, positions, offset, cu_seqlens, interleaved, inverse, interleaved_out
    )
    parameters = dict(zip(_PARAMETERS, weights, strict=True))
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    check_parameters(_OP, slots=slots, **scales, **parameters)
    if norm is not None:
        rule = norm_options(_OP, *rule)
    if cache_layout is None:
        cache_layout = "blhd" if slots is None else "nphd"
    if not isinstance(cache_layout, str):
        text = f"cache_layout must be a str, got {type(cache_layout).__name__}"
        raise error(TypeError, _OP, text)
    rows = 0 if window is None else at_least(_OP, "window", window, 1)
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    inputs = {"q": q, "k": k, "v": v, "cos": options.cos, "sin": options.sin}
    _check_plain({**inputs, **caches, **scales, **parameters})
    for name, t in {"q": q, **caches}.items():
        if (inplace or t is not q) and not torch.compiler.is_compiling() and t.is_neg():
            text = f"{name} must not be a lazily negated view to be written, got one"
            raise error(ValueError, _OP, text)
    if is_dtensor(q) or is_dtensor(k):
        options = rope_options_beside(_OP, (q, k), options)
        slots, k_scale, v_scale, *weights = beside(q, slots, k_scale, v_scale, *weights)
    cache = (slots, cache_layout, rows, k_scale, v_scale, *weights, *rule)
    arguments = (q, k, v, k_cache, v_cache, *options, *cache)
    if inplace:
        _ops.apply_rope_cache_(*arguments)
        return q
    rotated: Tensor = _ops.apply_rope_cache(*arguments)
    return rotated


def _scale(name: str, value: Any, like: Any) -> Tensor:
    check_tensors(_OP, **{name[0]: like})
    given = number(_OP, name, value)
    return torch.full((), given, dtype=torch.float32, device=like.device)


def _check_plain(tensors: dict[str, Tensor | None]) -> None:
    """No derivative flows through these."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise error(
            NotImplementedError,
            _OP,
            "q must not be under a transform of torch.func, got one: a cache is written once",
        )
    for name, t in tensors.items():
        if t is None:
            continue
        if (torch.is_grad_enabled() and t.requires_grad) or has_tangent(t):
            text = (
                f"{name} must not need a gradient, as a cache has none, got one of shape "
                f"{list(t.shape)} that does: call it under torch.no_grad()"
            )
            raise error(ValueError, _OP, text)
