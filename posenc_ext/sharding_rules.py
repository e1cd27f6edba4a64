"""DTensor sharding rules: how each op runs on the shards of its arguments, without communication.

Importing this module registers them. The rules follow from the names of the axes. Along one
dimension of the device mesh an axis may be sharded if every tensor that has it is sharded there and
every other one is whole; each rank then computes its part of the result. A gradient that sums over
the axis is a partial sum on each rank. An op that is linear in an argument maps a partial sum of it
to a partial sum of the result.

What has no rule here, such as scores sharded along queries or keys, DTensor first redistributes to
a form that has one: the result is right, at the price of communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from .arguments import error

_ops = torch.ops.posenc_ext

# Placements of the outputs and of the arguments, along one dimension of the mesh.
Rule = tuple[list[Placement | None], list[Placement | None]]
Names = str | None  # the axes of a tensor, one letter each; None for what is no tensor


Rules = Callable[..., list[Rule]]  # of the arguments of an op


def _rules_of(op: Any) -> Callable[[Rules], Rules]:
    decorator: Callable[[Rules], Rules] = register_sharding(op.default)
    return decorator


def _place(names: Names, sharded: str, otherwise: Placement) -> Placement | None:
    """The placement of a tensor with these axes, when those in `sharded` are."""
    if names is None:
        return None
    found = [i for i, name in enumerate(names) if name in sharded]
    return Shard(found[0]) if found else otherwise


def _rules(
    outputs: Sequence[str],
    inputs: Sequence[Names],
    axes: Iterable[str],
    *,
    sums: bool = False,
    linear: Sequence[int] = (),
) -> list[Rule]:
    """One rule for each way to shard: nothing, each of `axes`, a partial sum of each input in
    `linear`. With `sums`, an output is summed over the axes that it lacks.

    Of several rules that cost nothing DTensor takes the first, so that of the whole stands there.
    """
    whole: Placement = Replicate()
    rules: list[Rule] = [
        ([whole for _ in outputs], [_place(names, "", whole) for names in inputs]),
    ]
    for axis in axes:
        rest = Partial() if sums else whole
        rules.append(
            (
                [_place(names, axis, rest) for names in outputs],
                [_place(names, axis, whole) for names in inputs],
            )
        )
    for argument in linear:
        placements = [_place(names, "", whole) for names in inputs]
        placements[argument] = Partial()
        rules.append(([Partial() for _ in outputs], placements))
    return rules


# ---- rope ----


def _rope_axes(
    cos: Any, positions: Any, offsets: Any, cu_seqlens: Any, layout: str
) -> tuple[str, list[Names], str]:
    """The axes of x, those of the arguments after it, and which ones may be sharded.

    The tokens (s) may be only where their rows come with them: a shard of x alone does not say at
    which position it starts.
    """
    x = layout.replace("t", "s")  # [..., S, ..., D]
    table = "ln"  # [L, R/2]
    if cos.ndim == 3:
        table = ("b" if cos.shape[0] != 1 else "1") + "sn"  # [B | 1, S, R/2]
    rows: Names = None
    if positions is not None:
        rows = "s" if positions.ndim == 1 else ("b" if positions.shape[0] != 1 else "1") + "s"
    starts: Names = None
    if offsets is not None:
        starts = "b" if offsets.ndim == 1 and "b" in x else "1"[: offsets.ndim]
    bounds: Names = None if cu_seqlens is None else "1"
    axes = "bh" + ("s" if rows is not None or cos.ndim == 3 else "")
    rest: list[Names] = [table, table, rows, starts, bounds, *[None] * 5]
    return x, rest, "".join(axis for axis in axes if axis in x)


@_rules_of(_ops.rope)
def rope(x: Any, cos: Any, _sin: Any, *options: Any) -> list[Rule]:
    positions, offsets, cu_seqlens, _, layout, *_ = options
    names, rest, axes = _rope_axes(cos, positions, offsets, cu_seqlens, layout)
    return _rules([names], [names, *rest], axes, linear=[0])


@_rules_of(_ops.rope_)
def rope_(*arguments: Any) -> list[Rule]:
    return [([], inputs) for _, inputs in rope(*arguments)]


@_rules_of(_ops.rope_out)
def rope_out(x: Any, *options: Any, out: Any) -> list[Rule]:
    if x.placements != out.placements:
        raise error(
            ValueError, "rope", f"out must be placed as x {x.placements}, got {out.placements}"
        )
    return [([], [*inputs, *outputs]) for outputs, inputs in rope(x, *options)]


@_rules_of(_ops.apply_rope)
def apply_rope(_q: Any, _k: Any, cos: Any, _sin: Any, *options: Any) -> list[Rule]:
    positions, offsets, cu_seqlens, _, layout, *_ = options
    names, rest, axes = _rope_axes(cos, positions, offsets, cu_seqlens, layout)
    # Heads of q and of k are independent: either may be whole, sharded or a partial sum.
    each: list[Placement] = [Replicate(), Partial()]
    if "h" in axes:
        each.append(Shard(names.index("h")))
    whole = [_place(n, "", Replicate()) for n in rest]
    rules: list[Rule] = [([q, k], [q, k, *whole]) for q in each for k in each]
    shared = [axis for axis in axes if axis != "h"]
    return rules + _rules([names, names], [names, names, *rest], shared)[1:]


@_rules_of(_ops.apply_rope_)
def apply_rope_(q: Any, k: Any, *options: Any) -> list[Rule]:
    """As they are placed: DTensor moves no first argument that is written, but would a second."""
    rules = {tuple(inputs[:2]): inputs for _, inputs in apply_rope(q, k, *options)}
    pairs = dict(zip(q.placements, k.placements, strict=True))
    given = set(zip(q.placements, k.placements, strict=True))
    if len(given) != len(pairs) or not given <= set(rules):
        raise error(
            ValueError,
            "apply_rope",
            "q and k must be sharded alike, along batch, heads or (with positions) tokens, when "
            f"inplace=True, got {q.placements} and {k.placements}: rotate them one by one",
        )
    return [([], rules[pair]) for pair in given]


@_rules_of(_ops.rope_table_grad)
def rope_table_grad(_grad: Any, x: Any, cos: Any, _sin: Any, *options: Any) -> list[Rule]:
    positions, offsets, cu_seqlens, _, layout, *_ = options
    names, rest, axes = _rope_axes(cos, positions, offsets, cu_seqlens, layout)
    tables = [name for name in rest[:2] if name is not None]
    return _rules(tables, [names, names, *rest], axes, sums=True, linear=[0, 1])


@_rules_of(_ops.apply_rope_cache)
def apply_rope_cache(*arguments: Any) -> list[Rule]:
    """As the five tensors are placed, alike: DTensor would move a cache and write into the copy."""
    q, k, v, k_cache, v_cache, cos, _sin, positions, offsets, cu_seqlens, _, layout = arguments[:12]
    slots, cache_layout, _window, k_scale, v_scale, *parameters = arguments[15:24]
    norm_dims = arguments[27]
    names, rest, _axes = _rope_axes(cos, positions, offsets, cu_seqlens, layout)
    cache = cache_layout if slots is None else cache_layout.replace("n", "z")
    scales: list[Names] = [None if t is None else "h"[: t.ndim] for t in (k_scale, v_scale)]
    places: Names = None if slots is None else "zz"[: slots.ndim]
    inputs = [names, names, names, cache, cache, *rest, places, None, None, *scales]
    inputs += [None if t is None else "w" for t in parameters] + [None] * 6
    own = "b" if norm_dims == "all" else "bh"  # what a shard needs no other for
    axes = [axis for axis in own if axis in names and axis in cache]
    rules = {
        tuple(inputs[:5]): rule for rule in _rules([names], inputs, axes) for inputs in rule[1:]
    }
    written = (q, k, v, k_cache, v_cache)
    given = set(zip(*(t.placements for t in written), strict=True))
    if not given <= set(rules):
        raise error(
            ValueError,
            "apply_rope_cache",
            "q, k, v and the caches must be sharded alike, along heads or (in a contiguous cache) "
            f"batch, got {', '.join(str(t.placements) for t in written)}",
        )
    return [rules[placements] for placements in given]


@_rules_of(_ops.apply_rope_cache_)
def apply_rope_cache_(*arguments: Any) -> list[Rule]:
    return [([], inputs) for _, inputs in apply_rope_cache(*arguments)]


# ---- tables ----


def _batch(tensor: Any) -> str:
    """A letter for each dimension of any number of them."""
    return "abcdefgh"[: tensor.ndim]


@_rules_of(_ops.rope_table)
def rope_table(positions: Any, inv_freq: Any, *_: Any) -> list[Rule]:
    p = _batch(positions)
    return _rules([p + "n"] * 2, [p, "n", None, None], p + "n")


@_rules_of(_ops.sinusoidal_frequencies)
def sinusoidal_frequencies(like: Any, *_: Any) -> list[Rule]:
    """The data of `like` is not read."""
    anyhow = [Replicate(), Partial(), *(Shard(i) for i in range(like.ndim))]
    return [([Replicate()], [placement, None, None, None]) for placement in anyhow]


@_rules_of(_ops.sinusoidal_table)
def sinusoidal_table(positions: Any, *_: Any) -> list[Rule]:
    p = _batch(positions)
    return _rules([p + "n"], [p, "z", None, None, None, None], p)


@_rules_of(_ops.add_sinusoidal)
def add_sinusoidal(x: Any, _frequencies: Any, offsets: Any, *_: Any) -> list[Rule]:
    names = "bsd"[-x.ndim :]
    starts = None if offsets is None else "b"[: offsets.ndim]
    axes = "b" if x.ndim == 3 else ""
    return _rules([names], [names, "z", starts, None, None, None, None], axes)


# ---- ALiBi ----


def _slopes(slopes: Any) -> str:
    return "bh"[-slopes.ndim :]


@_rules_of(_ops.alibi_bias)
def alibi_bias(slopes: Any, *options: Any) -> list[Rule]:
    *_, key_positions = options
    keys = None if key_positions is None else "bk"
    batched = slopes.ndim == 2 or keys is not None
    output = "bhqk" if batched else "hqk"
    inputs = [_slopes(slopes), None, None, None, None, keys]
    return _rules([output], inputs, "bh" if batched else "h")


@_rules_of(_ops.alibi_slope_grad)
def alibi_slope_grad(grad: Any, slopes: Any, _causal: Any, key_positions: Any) -> list[Rule]:
    names = "bhqk"[-grad.ndim :]
    keys = None if key_positions is None else "bk"
    inputs = [names, _slopes(slopes), None, keys]
    axes = "bh"[-len(names) + 2 :]
    return _rules([_slopes(slopes)], inputs, axes, sums=True, linear=[0])


@_rules_of(_ops.add_alibi)
def add_alibi(_scores: Any, slopes: Any, _causal: Any) -> list[Rule]:
    return _rules(["bhqk"], ["bhqk", _slopes(slopes), None], "bh")


@_rules_of(_ops.add_alibi_)
def add_alibi_(*arguments: Any) -> list[Rule]:
    return [([], inputs) for _, inputs in add_alibi(*arguments)]


@_rules_of(_ops.alibi_softmax)
def alibi_softmax(_scores: Any, slopes: Any, *options: Any) -> list[Rule]:
    *_, mask = options
    keys = None if mask is None else "bk"
    return _rules(["bhqk"], ["bhqk", _slopes(slopes), None, None, keys], "bh")


@_rules_of(_ops.alibi_softmax_grad)
def alibi_softmax_grad(*_: Any) -> list[Rule]:
    return _rules(["bhqk"], ["bhqk", "bhqk", None, None], "bh", linear=[0])


@_rules_of(_ops.alibi_softmax_slope_grad)
def alibi_softmax_slope_grad(_grad: Any, _y: Any, slopes: Any, _causal: Any) -> list[Rule]:
    names = _slopes(slopes)
    return _rules([names], ["bhqk", "bhqk", names, None], "bh", sums=True, linear=[0])


# ---- relative ----


def _relative(x: Any, *_: Any) -> list[Rule]:
    """x [..., Q, T] or [..., Q, K], and an index of all distances: only leading axes are split."""
    lead = _batch(x)[:-2]
    names = lead + "qk"
    return _rules([names], [names, "z", None], lead, linear=[0])


relative_gather = _rules_of(_ops.relative_gather)(_relative)
relative_scatter = _rules_of(_ops.relative_scatter)(_relative)
