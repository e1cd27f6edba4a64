"""Rotary embedding and ALiBi for models of Hugging Face transformers.

    from posenc_ext.compat.transformers import patch, unpatch

    patch(model)

transformers itself is not imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ..arguments import error, integer
from ..ops.rope import apply_rope
from ..ops.rope_options import check_tensors
from ..types import Rounding
from . import hf_alibi, hf_norms, hf_probes
from .hf_calls import functions_of, looks_up, name_of
from .hf_rotations import Form, heads_axis, layout_of, rotate
from .tables import HALF_DTYPES, check_tied

ROUNDINGS = get_args(Rounding)


def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    position_ids: Tensor | None = None,
    rounding: Rounding = "once",
) -> tuple[Tensor, Tensor]:
    """Rotate query and key by full-width tables, as the function of this name in transformers.

    >>> import torch
    >>> from posenc_ext.compat.transformers import apply_rotary_pos_emb
    >>> angle = torch.arange(5.0)[None, :, None] * torch.tensor([1.0, 0.01]).repeat(2)  # [1, S, R]
    >>> q, k = torch.randn(2, 8, 5, 4), torch.randn(2, 2, 5, 4)  # [B, H, S, D]
    >>> q, k = apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())

    ``x*cos + rotate_half(x)*sin``. The halves of the columns of `cos` and `sin` must be equal.

    Args:
        q, k: ``[B, H, S, D]``, or ``[B, S, H, D]`` with `unsqueeze_dim` 2; float32, float64,
            bfloat16 or float16. Head counts may differ.
        cos, sin: ``[B, S, R]`` or ``[1, S, R]``, R at most D; or ``[S, R]`` with `unsqueeze_dim`
            one less. The dtype of `q`, or float32.
        unsqueeze_dim: where cos and sin get the axis of the heads.
        position_ids: ``[B, S]`` rows of tables ``[L, R]``, as in transformers before 4.38.
        rounding: "once": the exact result of float32 arithmetic, rounded to the dtype of `q`.
            "transformers": the bits of transformers, which in bfloat16 and float16 rounds both
            products and their sum, in torch ops at their speed. In float32 and float64 both are the
            same, bit for bit.

    Returns:
        The rotated `q` and `k`.

    Raises:
        TypeError, ValueError: as :func:`posenc_ext.apply_rope`, or tables whose halves differ. That
            is looked at once for each table; on CUDA it is a device assert.
    """
    op = "apply_rotary_pos_emb"
    _check_rounding(op, rounding)
    if isinstance(unsqueeze_dim, Tensor):
        raise error(
            TypeError, op, "unsqueeze_dim must be an int (give position_ids by name), got a Tensor"
        )
    unsqueeze_dim = integer(op, "unsqueeze_dim", unsqueeze_dim)
    check_tensors(op, q=q, k=k, cos=cos, sin=sin)
    for name, x in (("q", q), ("k", k)):
        if x.dim() not in (3, 4):
            text = f"{name} must have shape [B, H, S, D] or [B, S, H, D], got {list(x.shape)}"
            raise error(ValueError, op, text)
    if sin.shape != cos.shape:
        text = f"sin must have the shape of cos, {list(cos.shape)}, got {list(sin.shape)}"
        raise error(ValueError, op, text)
    if position_ids is not None:
        check_tensors(op, position_ids=position_ids)
        if cos.dim() != 2:
            raise error(
                ValueError,
                op,
                "position_ids must be None unless cos is [L, R], got both with cos of shape "
                f"{list(cos.shape)}",
            )
    heads = heads_axis(op, cos if position_ids is None else cos[None], unsqueeze_dim)
    _check_tables(op, q, cos, heads, position_ids)
    check_tied(op, cos, sin)
    if rounding == "once" or q.dtype not in HALF_DTYPES:
        return _round_once(op, q, k, cos, sin, heads, position_ids)
    # Their operations check little. Ours check everything, without a head to rotate too.
    axis = heads if q.dim() == 4 else heads + 3
    nothing = q.detach().narrow(axis, 0, 0), k.detach().narrow(axis, 0, 0)
    _round_once(op, *nothing, cos.detach(), sin.detach(), heads, position_ids)
    if position_ids is not None:
        cos, sin = cos[position_ids], sin[position_ids]
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _round_each(q, cos, sin), _round_each(k, cos, sin)


def _check_tables(op: str, q: Tensor, cos: Tensor, heads: int, position_ids: Tensor | None) -> None:
    """The shape of the tables, in terms of what the caller has."""
    tokens, d = q.shape[-2 if heads == -3 else -3], q.shape[-1]
    if cos.shape[-1] % 2 or cos.shape[-1] > d:
        rule = f"an even number of columns, at most D = {d}"
    elif position_ids is None and cos.shape[-2] != tokens:
        rule = f"one row for each of the {tokens} tokens of q"
    else:
        return
    raise error(ValueError, op, f"cos must have {rule}, got {list(cos.shape)}")


def _round_once(
    op: str,
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    position_ids: Tensor | None,
) -> tuple[Tensor, Tensor]:
    layout, n = layout_of(q, heads), cos.shape[-1] // 2
    if position_ids is None:
        cos, sin = (t[None] if t.dim() == 2 else t for t in (cos, sin))
        return rotate(op, Form("tiled"), layout, q, k, cos, sin)  # type: ignore[return-value]  # k is a tensor
    return apply_rope(q, k, cos[:, :n], sin[:, :n], layout=layout, positions=position_ids)


def _round_each(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    part, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = part.chunk(2, -1)
    return torch.cat([part * cos + torch.cat([-second, first], -1) * sin, rest], -1)


class Swap(NamedTuple):
    """One function of a module that has been swapped."""

    module: str
    function: str
    form: str
    rounding: str  # "once", or "transformers" where half precision keeps their rounding
    norms: int = 0  # that are fused with it, in the model that was given

    def __str__(self) -> str:
        norms = f", {self.norms} norms in the same pass" if self.norms else ""
        return f"{self.module}.{self.function}: {self.form}, rounding {self.rounding}{norms}"


class _Patched(NamedTuple):
    original: Callable[..., Any]
    ours: Callable[..., Any]
    swap: Swap


_patched: dict[tuple[str, str], _Patched] = {}


def patch(
    model_or_module: nn.Module | type[nn.Module] | ModuleType,
    *,
    rounding: Rounding = "once",
    fuse_norm: bool = False,
) -> list[Swap]:
    """Make a model of transformers rotate, or build its ALiBi bias, with the kernels here.

    >>> import types, torch
    >>> from posenc_ext.compat.transformers import patch, unpatch
    >>> def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    ...     cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    ...     turn = lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1)
    ...     return q * cos + turn(q) * sin, k * cos + turn(k) * sin
    >>> modeling = types.ModuleType("modeling_mine")  # a model's own code; or give the model
    >>> modeling.apply_rotary_pos_emb = apply_rotary_pos_emb
    >>> print(patch(modeling)[0])
    modeling_mine.apply_rotary_pos_emb: half pairs, tiled tables, rounding once
    >>> unpatch(modeling)
    ['modeling_mine.apply_rotary_pos_emb']

    A model calls a function of the module that its code stands in. That function is swapped, so
    every model of the same family in this process changes with it, also one that is compiled
    already. What it does is found by trying it on small inputs: ours takes its place only if it
    gives the same bits in float32, for the kinds of calls that were tried. In any other call the
    original runs.

    Args:
        model_or_module: a model, its class, or the module of its code
            (``transformers.models.llama.modeling_llama``). Of a model, only functions that its code
            looks up are swapped; of a class or module, all that stand there.
        rounding: as for :func:`apply_rotary_pos_emb`: "once" rounds half precision once,
            "transformers" keeps its bits: there the original function runs, unless it rounds once
            itself.
        fuse_norm: of a model whose attention normalises query and key right before it rotates them
            (Qwen3, Gemma 3, OLMo 2), do both in one pass, :func:`posenc_ext.qk_norm_rope`. Only the
            model given changes in this, and only where RMS norms are found to come to the rotation
            when its attention is tried. Sums of squares are added in another order than torch's: in
            float32 results are within 4 ulp of the norm and the rotation one after the other.

    Returns:
        What has been swapped. Patching again changes nothing but the rounding and the norms.

    Raises:
        TypeError: not a model, a class of models or a module.
        ValueError: nothing to swap, a function that is not known, or no norm to fuse: then nothing
            is swapped. From a swapped function, in a later call: a table of full width whose halves
            differ.
    """
    _check_rounding("patch", rounding)
    hf_norms.check(model_or_module, rounding, fuse_norm)
    found = list(functions_of("patch", model_or_module))
    used = [entry for entry in found if looks_up(model_or_module, entry[0], entry[1])]
    if not used:
        there = f", where no code looks up {found[0][1]}" if found else ""
        raise error(
            ValueError,
            "patch",
            "model_or_module must come from code that calls a function apply_rotary_pos_emb, "
            f"build_alibi_tensor or alike, got {name_of(model_or_module)}{there}",
        )
    prepared = {}
    for module, name, function in used:
        known = _patched.get((module.__name__, name))
        original = known.original if known and function is known.ours else function
        form = hf_alibi.recognize(original) or hf_probes.recognize(original)
        if isinstance(form, str):
            raise error(
                ValueError,
                "patch",
                f"model_or_module must use rotations known here, got {module.__name__}.{name}, "
                f"which {form}",
            )
        swap = Swap(module.__name__, name, str(form), rounding)
        if known and function is known.ours and known.swap == swap:
            prepared[module, name] = known
        else:
            prepared[module, name] = _Patched(original, form.replacement(original, rounding), swap)
    before, records = {entry[:2]: entry[2] for entry in used}, dict(_patched)
    # An interrupt between two of these lines leaves either ours with its record, or the original.
    for (module, name), patched in prepared.items():
        setattr(module, name, patched.original)
        _patched[module.__name__, name] = patched
        setattr(module, name, patched.ours)
    swaps = [patched.swap for patched in prepared.values()]
    if isinstance(model_or_module, nn.Module):
        hf_norms.restore(model_or_module)
    if not isinstance(model_or_module, nn.Module) or not fuse_norm:
        return swaps
    norms: Counter[tuple[str, str]] | str = ""
    try:
        norms = hf_norms.fuse(model_or_module, list(prepared))
    finally:  # whatever the code of the model has raised
        if isinstance(norms, str):
            hf_norms.restore(model_or_module)
            for (module, name), function in before.items():
                setattr(module, name, function)
            _patched.clear()
            _patched.update(records)
    if isinstance(norms, str):
        text = "fuse_norm must be False where no RMS norm comes to the rotation"
        raise error(ValueError, "patch", f"{text}, got {name_of(model_or_module)}: {norms}")
    return [swap._replace(norms=norms[swap.module, swap.function]) for swap in swaps]


def unpatch(model_or_module: nn.Module | type[nn.Module] | ModuleType) -> list[str]:
    """Undo :func:`patch`, for every model of the family; return the names that were restored.

    Raises:
        TypeError: not a model, a class of models or a module.
        ValueError: a function was replaced by something else after `patch`.
    """
    found = list(functions_of("unpatch", model_or_module))
    restored = []
    for module, name, function in found:
        patched = _patched.get((module.__name__, name))
        if patched is not None and function not in (patched.ours, patched.original):
            text = f"{module.__name__}.{name} must be what patch put there, got {function!r}"
            raise error(ValueError, "unpatch", text)
    for module, name, function in found:
        patched = _patched.get((module.__name__, name))
        if patched is not None:
            setattr(module, name, patched.original)
            del _patched[module.__name__, name]
            if function is patched.ours:
                restored.append(f"{module.__name__}.{name}")
    if isinstance(model_or_module, nn.Module):
        hf_norms.restore(model_or_module)
    return restored


def _check_rounding(op: str, rounding: Any) -> None:
    if rounding not in ROUNDINGS:
        raise error(ValueError, op, f"rounding must be 'once' or 'transformers', got {rounding!r}")
