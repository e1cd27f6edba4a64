"""Which norms of a model stand right before the rotation, found by trying them."""

from __future__ import annotations

import copy
import inspect
import types
from collections import Counter
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..arguments import error
from ..ops.norm_rope import norm_rope
from .hf_calls import used_names
from .hf_pending import Rule, make_wait, seen, stop_waiting, weight_of
from .tables import HALF_DTYPES

N = 16  # channels of a norm that is tried without a weight
# Of attributes whose change is seen: hf_pending.settings_of.
SIMPLE = (int, float, bool, str, tuple, torch.Size, torch.dtype, type(None))
SCALES = (1e-3, 1.0, 300.0)  # of what it is tried on: eps tells in the first


def check(model: Any, rounding: str, fuse_norm: Any) -> None:
    """The arguments of `patch`."""
    if not isinstance(fuse_norm, bool):
        text = f"fuse_norm must be a bool, got {type(fuse_norm).__name__}"
        raise error(TypeError, "patch", text)
    if not fuse_norm:
        return
    if not isinstance(model, nn.Module):
        text = f"fuse_norm must be False unless a model is given, got {type(model).__name__}"
        raise error(ValueError, "patch", text)
    if rounding == "transformers":
        text = "fuse_norm must be False with rounding 'transformers', whose bits it has not"
        raise error(ValueError, "patch", f"{text}, got True")


def fuse(
    model: nn.Module, functions: list[tuple[types.ModuleType, str]]
) -> Counter[tuple[str, str]] | str:
    """Let the norms wait that are fused when the module around them is tried. How many there are
    beside each function, or why none is."""
    why = "no module that rotates holds a norm"
    count: Counter[tuple[str, str]] = Counter()
    parts = list(model.modules())
    for module, function in functions:
        names = {c: used_names(list(c.__mro__), [module]) for c in {type(part) for part in parts}}
        for part in parts:
            if (id(vars(module)), function) in names.get(type(part), ()):
                fused, reason = _fuse_in(part)
                count[module.__name__, function] += fused
                why = reason or why
    return count if count.total() else why


def _fuse_in(part: nn.Module) -> tuple[int, str]:
    before, why = {}, ""
    for name, norm in part.named_children():
        if hasattr(norm, "_posenc_waits"):
            continue
        rule = recognize(norm)
        if isinstance(rule, Rule):
            before[norm] = type(norm)
            make_wait(norm, rule)
        elif "norm" in name:
            why = f"{type(part).__name__}.{name} {rule}"
    fused, raised = _try(part, before) if before else (set(), "")
    for norm in before.keys() - fused:
        stop_waiting(norm)
        why = f"no norm of {type(part).__name__} came to the rotation{raised}"
    return len(fused), why


def restore(model: nn.Module) -> None:
    """Let no norm wait."""
    for norm in model.modules():
        stop_waiting(norm)


def _try(part: nn.Module, norms: Any) -> tuple[set[nn.Module], str]:
    """Which of the norms are fused when `part` is called with a few tokens, and what it raised."""
    parameters = list(inspect.signature(type(part).forward).parameters.values())[1:]
    sizes = [p.shape[1] for p in part.parameters() if p.dim() == 2]
    first = next(part.parameters(), None)
    if first is None or not sizes or first.is_meta:
        return set(), ", since it has no weights to try it with"
    d = getattr(part, "head_dim", None)
    d = d if isinstance(d, int) else next(n for n in map(_channels, norms) if n)
    options: Any = {"dtype": first.dtype, "device": first.device}
    table = torch.ones(1, 3, d, **options)
    given = {"hidden_states": _random(2, 3, sizes[0]).to(**options),
             "position_embeddings": (table, torch.zeros_like(table))}  # fmt: skip
    kwargs = {p.name: given.get(p.name) for p in parameters
              if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
              and (p.name in given or p.default is p.empty)}  # fmt: skip
    found: set[nn.Module] = set()
    note, modes = seen.set(found), [(module, module.training) for module in part.modules()]
    part.eval()  # no dropout, which would draw random numbers
    raised = ""
    try:
        with torch.inference_mode(False), torch.no_grad():
            type(part).forward(part, **kwargs)
    except Exception as exception:  # after the rotation it does not matter
        raised = f": {type(exception).__name__}: {exception}"
    finally:
        seen.reset(note)
        for module, training in modes:
            module.training = training
    return found & norms.keys(), raised


def _channels(norm: nn.Module) -> int:
    weight = weight_of(norm)
    return N if weight is None else weight.numel()


def recognize(norm: nn.Module) -> Rule | str:
    """The rule that a module follows, or why none does."""
    if "forward" in vars(norm) or getattr(norm, "_orig_mod", None) is not None:
        return "is wrapped"
    weight = weight_of(norm)
    parts = [*norm.children(), *norm.buffers(), *norm.parameters()]
    if len(parts) != (weight is not None) or (weight is not None and weight.dim() != 1):
        return "has other parameters than one weight"
    other = [name for name, value in vars(norm).items() if not _known_setting(name, value)]
    if other:
        return f"keeps {other[0]}, which may be part of what it computes"
    n = N if weight is None else weight.numel()
    numbers = [x for x in vars(norm).values() if type(x) is float and 0 <= x < 1]
    with torch.inference_mode(False), torch.no_grad():
        try:
            tried, training = _copy(norm, n), _copy(norm, n).train(not norm.training)
        except Exception as exception:  # code of others: it may hold a lock, or what is not a leaf
            return f"cannot be copied: {type(exception).__name__}: {exception}"
        for eps in dict.fromkeys([*numbers, torch.finfo(torch.float32).eps]):
            for offset in (0.0, 1.0):
                rule = Rule(eps, offset, ((torch.float32, "once"),))
                if _follows(tried, n, rule, torch.float32, "once"):
                    if not _follows(training, n, rule, torch.float32, "once"):
                        return "computes something else in training"
                    halves = [
                        (dtype, rounding)
                        for dtype in HALF_DTYPES
                        for rounding in ("norm", "transformers")
                        if _follows(tried, n, rule, dtype, rounding)
                    ]
                    return rule._replace(roundings=(*rule.roundings, *halves))
    return "is no RMS norm of the last axis"


def _known_setting(name: str, value: Any) -> bool:
    """Is this entry of a module of torch's own, or one whose change `settings_of` shows?"""
    return name == "training" or name.startswith("_") or type(value) in SIMPLE


def _copy(norm: nn.Module, n: int) -> nn.Module:
    """On the CPU and with weights that tell one form from another."""
    weight = weight_of(norm)
    memo = {} if weight is None else {id(weight): nn.Parameter(_random(n))}
    return copy.deepcopy(norm, cast(dict[int, Any], memo))


def _random(*shape: int) -> Tensor:
    """Between -1 and 1."""
    generator = torch.Generator("cpu").manual_seed(0)
    values = torch.rand(shape, generator=generator, device="cpu", dtype=torch.float32)
    return 2 * values - 1


def _follows(norm: nn.Module, n: int, rule: Rule, dtype: torch.dtype, rounding: str) -> bool:
    """But for the order of its sums, which in half precision seldom decides how it rounds."""
    norm = norm.to(dtype)
    weight, unit = weight_of(norm), torch.finfo(dtype).eps
    still = _random(1, n // 2) * 0 + 1, _random(1, n // 2) * 0
    options: Any = {"eps": rule.eps, "weight_offset": rule.weight_offset, "rounding": rounding}
    for scale in SCALES:
        x = (_random(2, 2, max(1, 1024 // n), n) * scale).to(dtype)
        ours = norm_rope(x.view(-1, 1, n), weight, *still, layout="bsd", **options).view(x.shape)
        for view in (lambda t: t, lambda t: t.flatten(1, 2), lambda t: t.transpose(1, 2)):
            given, right = view(x), view(ours)
            try:
                theirs = norm(given.clone())
            except Exception:  # whatever code of others raises: it takes no such call
                return False
            if not isinstance(theirs, Tensor) or theirs.shape != given.shape:
                return False
            other = (right != theirs).double().mean()
            if theirs.dtype != dtype or (dtype != torch.float32 and other > 0.01):
                return False
            if not torch.allclose(right, theirs, rtol=4 * unit, atol=0):
                return False
    return True
