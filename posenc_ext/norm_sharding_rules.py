"""DTensor sharding rules of norm_rope: those of rope, with weights. See sharding_rules.py.

A shard of the heads has its own norms, unless the heads of a token share one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import Placement, Replicate, Shard

from .arguments import error
from .sharding_rules import Names, Rule, _place, _rope_axes, _rules, _rules_of

_ops = torch.ops.posenc_ext


def _norm_axes(options: tuple[Any, ...]) -> tuple[str, list[Names], str]:
    """Of the options from cos on: as _rope_axes, with the options of the norm among the rest."""
    cos, _, positions, offsets, cu_seqlens, _, layout, *_ = options
    names, rest, axes = _rope_axes(cos, positions, offsets, cu_seqlens, layout)
    if options[13] == "all":
        axes = axes.replace("h", "")
    return names, [*rest, *(None,) * 6], axes


def _parameters(*tensors: Any) -> list[Names]:
    return [None if t is None else "w" for t in tensors]


@_rules_of(_ops.norm_rope)
def norm_rope(_x: Any, weight: Any, bias: Any, *options: Any) -> list[Rule]:
    names, rest, axes = _norm_axes(options)
    return _rules([names], [names, *_parameters(weight, bias), *rest], axes)


@_rules_of(_ops.norm_rope_)
def norm_rope_(*arguments: Any) -> list[Rule]:
    return [([], inputs) for _, inputs in norm_rope(*arguments)]


@_rules_of(_ops.norm_rope_out)
def norm_rope_out(x: Any, *options: Any, out: Any) -> list[Rule]:
    if x.placements != out.placements:
        text = f"out must be placed as x {x.placements}, got {out.placements}"
        raise error(ValueError, "norm_rope", text)
    return [([], [*inputs, *outputs]) for outputs, inputs in norm_rope(x, *options)]


@_rules_of(_ops.qk_norm_rope)
def qk_norm_rope(_q: Any, _k: Any, *rest: Any) -> list[Rule]:
    parameters = _parameters(*rest[:4])
    names, others, axes = _norm_axes(rest[4:])
    # Heads of q and of k are independent: either may be whole or sharded.
    each: list[Placement] = [Replicate()]
    if "h" in axes:
        each.append(Shard(names.index("h")))
    whole = [_place(n, "", Replicate()) for n in (*parameters, *others)]
    rules: list[Rule] = [([q, k], [q, k, *whole]) for q in each for k in each]
    shared = [axis for axis in axes if axis != "h"]
    return rules + _rules([names] * 2, [names, names, *parameters, *others], shared)[1:]


@_rules_of(_ops.qk_norm_rope_)
def qk_norm_rope_(q: Any, k: Any, *rest: Any) -> list[Rule]:
    """As they are placed: DTensor moves no first argument that is written, but would a second."""
    rules = {tuple(inputs[:2]): inputs for _, inputs in qk_norm_rope(q, k, *rest)}
    given = set(zip(q.placements, k.placements, strict=True))
    if len(given) != len({p for p, _ in given}) or not given <= set(rules):
        raise error(
            ValueError,
            "qk_norm_rope",
            "q and k must be sharded alike, along batch, heads (if each has its norm) or (with "
            f"positions) tokens, when inplace=True, got {q.placements} and {k.placements}: "
            "normalise them one by one",
        )
    return [([], rules[pair]) for pair in given]


@_rules_of(_ops.norm_rope_grad)
def norm_rope_grad(
    _grad: Any, _x: Any, weight: Any, bias: Any, _parameter_grads: Any, *options: Any
) -> list[Rule]:
    names, rest, axes = _norm_axes(options)
    inputs = [names, names, *_parameters(weight, bias), None, *rest]
    return _rules([names, "w", "w"], inputs, axes, sums=True, linear=[0])
