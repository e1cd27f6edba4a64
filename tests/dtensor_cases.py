"""Calls of every op, with the ways to shard their tensors that need no communication."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import posenc_ext

ops = torch.ops.posenc_ext
posenc_ext.distributed.register_sharding_rules()

B, S, H, K, D, N = 5, 7, 6, 4, 8, 3  # none divides evenly among ranks; K heads of k, R = 2N


class Case(NamedTuple):
    call: Callable[..., Any]
    tensors: dict[str, torch.Tensor]
    # Of one mesh dimension: the axis in which a tensor is sharded, or "sum"; the others are whole.
    ways: list[dict[str, int | str]]
    results: list[Any]
    grads: tuple[str, ...] = ()


def random(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, dtype=dtype, generator=torch.Generator().manual_seed(sum(size)))


def tables(*size: int) -> dict[str, torch.Tensor]:
    return {"cos": random(*size, N), "sin": random(*size, N) + 1}


def along(names: dict[str, str], axes: str, results: tuple[str, ...], sums: bool = False) -> Any:
    """The ways and results of a call on tensors with these axes, one way for each of `axes`."""
    ways, outs = [{}], [[None] * len(results)]
    for axis in axes:
        ways.append({name: own.index(axis) for name, own in names.items() if axis in own})
        rest = "sum" if sums else None
        outs.append([own.index(axis) if axis in own else rest for own in results])
    return ways, outs


positions = torch.arange(S).flip(0)
each_positions = torch.stack([(positions + i) % 11 for i in range(B)])
starts, bounds = torch.arange(B) % 3, torch.tensor([0, 2, 2, S])
x, q, k = random(B, S, H, D), random(B, S, H, D), random(B, S, K, D)
tail = (False, False, False)
scores, slopes, batch_slopes = random(B, H, S, S + 2), random(H).abs(), random(B, H).abs()
keys = torch.stack([torch.arange(S + 2).sub(i).clamp(min=0) for i in range(B)])
mask = keys > 0


def rope_cases(
    call: Callable[..., Any], xs: dict[str, torch.Tensor], names: str, axes: str, **kwargs: Any
) -> list[Case]:
    """The forms in which rows are given."""
    forms = [
        ("", tables(11), {"offset": 2}),
        ("", {**tables(11), "offset": starts}, {}),
        ("s", {**tables(11), "positions": positions}, {}),
        ("bs", {**tables(11), "positions": each_positions}, {}),
        ("bs", tables(B, S), {}),
        ("s", tables(1, S), {}),
    ]
    cases = []
    for own, tensors, options in forms:
        axes_of = dict.fromkeys(xs, names)
        if "positions" in tensors:
            axes_of["positions"] = own
        elif "offset" in tensors:
            axes_of["offset"] = "b"
        elif own:
            axes_of |= {"cos": own if own == "bs" else "1s", "sin": own if own == "bs" else "1s"}

        def bound(options: Any = options, **given: Any) -> Any:
            return call(**given, **options, **kwargs)

        ways, results = along(axes_of, axes, (names,) * len(xs))
        if call is posenc_ext.rope:  # it is linear
            ways, results = [*ways, {"x": "sum"}], [*results, ["sum"]]
        cases.append(Case(bound, {**xs, **tensors}, ways, results, (*xs, "cos", "sin")))
    return cases


def inplace(op: Callable[..., Any], *xs: str) -> Callable[..., Any]:
    def call(**given: Any) -> Any:
        return op(**{**given, **{name: given[name].clone() for name in xs}}, inplace=True)

    return call


def with_out(x: Any, **given: Any) -> Any:
    with torch.no_grad():
        given = {n: t.detach() if isinstance(t, torch.Tensor) else t for n, t in given.items()}
        return posenc_ext.rope(x.detach(), out=torch.zeros_like(x), **given)


def table_grad(grad: Any, x: Any, cos: Any, sin: Any, positions: Any = None) -> Any:
    return ops.rope_table_grad(grad, x, cos, sin, positions, None, None, 0, "bshd", *tail)


def table_grad_cases() -> list[Case]:
    cases = []
    for cos_axes, position_axes, axes in (
        ("ln", None, "bh"), ("ln", "s", "bhs"), ("ln", "bs", "bhs"), ("bsn", None, "bhs"),
        ("1sn", None, "bhs"),
    ):  # fmt: skip
        size = {"l": 11, "b": B, "1": 1, "s": S}
        tensors = {"grad": random(B, S, H, D), "x": x, **tables(*(size[a] for a in cos_axes[:-1]))}
        names = {"grad": "bshd", "x": "bshd", "cos": cos_axes, "sin": cos_axes}
        if position_axes is not None:
            tensors["positions"] = positions if position_axes == "s" else each_positions
            names["positions"] = position_axes
        ways, results = along(names, axes, (cos_axes, cos_axes), sums=True)
        ways += [{"grad": "sum"}, {"x": "sum"}]
        results += [["sum"] * 2] * 2
        cases.append(Case(table_grad, tensors, ways, results))
    return cases


def pair_cases() -> list[Case]:
    """Heads of q and k are placed independently: k may be whole, or a partial sum."""
    ways: list[dict[str, int | str]] = []
    for way_q, way_k in itertools.product((None, 2, "sum"), repeat=2):
        ways.append({n: w for n, w in (("q", way_q), ("k", way_k)) if w is not None})
    results = [[way.get("q"), way.get("k")] for way in ways]

    def call(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return ops.apply_rope(q, k, cos, sin, None, None, None, 1, "bshd", *tail)

    return [Case(call, {"q": q, "k": k, **tables(11)}, ways, results)]


def packed_cases() -> list[Case]:
    packed = functools.partial(posenc_ext.rope, layout="thd", interleaved=True)
    ways, results = along({"x": "thd"}, "th", ("thd",))
    tensors = {"x": x[0], **tables(11), "cu_seqlens": bounds}
    offset = {"offset": torch.tensor([3, 0, 1])}
    return [
        Case(packed, t, ways, results, ("x", "cos", "sin"))
        for t in (tensors, {**tensors, **offset})
    ]


def call_op(op: Any, *options: Any) -> Callable[..., Any]:
    return lambda **given: op(*given.values(), *options)


def alibi_cases(
    call: Callable[..., Any], grads: tuple[str, ...] = ("scores", "slopes"), **more: torch.Tensor
) -> list[Case]:
    cases = []
    for given, own in ((slopes, "h"), (batch_slopes, "bh")):
        names = {"scores": "bhqk", "slopes": own, **dict.fromkeys(more, "bk")}
        ways, results = along(names, "bh", ("bhqk",))
        cases.append(Case(call, {"scores": scores, "slopes": given, **more}, ways, results, grads))
    return cases


def slope_grad_cases(call: Callable[..., Any], *tensors: str, **more: torch.Tensor) -> list[Case]:
    cases = []
    for given, own in ((slopes, "h"), (batch_slopes, "bh")):
        values = {"grad": random(B, H, S, S + 2), "y": scores.softmax(-1)}
        names = dict.fromkeys(tensors, "bhqk") | {"slopes": own} | dict.fromkeys(more, "bk")
        ways, results = along(names, "bh", (own,), sums=True)
        ways, results = [*ways, {"grad": "sum"}], [*results, ["sum"]]
        all_tensors = {n: values[n] for n in tensors} | {"slopes": given} | more
        cases.append(Case(call, all_tensors, ways, results))
    return cases


def bias(slopes: Any, key_positions: Any = None) -> Any:
    return posenc_ext.alibi_bias(slopes, S, S + 2, causal=True, key_positions=key_positions)


def alibi_bias_cases() -> list[Case]:
    forms = [
        ({"slopes": slopes}, {"slopes": "h"}, "h", "hqk"),
        ({"slopes": batch_slopes}, {"slopes": "bh"}, "bh", "bhqk"),
        ({"slopes": slopes, "key_positions": keys}, {"slopes": "h", "key_positions": "bk"}, "bh",
         "bhqk"),
    ]  # fmt: skip
    return [
        Case(bias, tensors, *along(names, axes, (result,)), ("slopes",))
        for tensors, names, axes, result in forms
    ]


def sinusoidal_cases() -> list[Case]:
    points = random(S, B) * 9
    call = functools.partial(posenc_ext.sinusoidal_table, dim=9, padding_idx=2)
    ways, results = along({"positions": "sb"}, "sb", ("sbd",))
    whole_numbers = {"positions": each_positions.T.contiguous()}
    return [
        Case(call, {"positions": points}, ways, results, ("positions",)),
        Case(call, whole_numbers, ways, results),
    ]


def add_sinusoidal_cases() -> list[Case]:
    def call(x: Any, **where: Any) -> Any:
        return posenc_ext.add_sinusoidal(x, scale=1.5, **where or {"offset": 3})

    x3, x2 = random(B, S, 9), random(S, 9)
    cases = [
        Case(call, {"x": x3}, *along({"x": "bsd"}, "bs", ("bsd",)), ("x",)),
        Case(call, {"x": x3.bfloat16()}, *along({"x": "bsd"}, "bs", ("bsd",)), ("x",)),
        Case(call, {"x": x2}, *along({"x": "sd"}, "s", ("sd",)), ("x",)),
    ]
    for names, where in (("b", {"offset": starts}), ("bs", {"positions": each_positions})):
        ways = along({"x": "bsd", **dict.fromkeys(where, names)}, "bs", ("bsd",))
        cases.append(Case(call, {"x": x3, **where}, *ways, ("x",)))
    return cases


def frequency_cases() -> list[Case]:
    ways: list[dict[str, int | str]] = [{}, {"like": 0}, {"like": 1}, {"like": "sum"}]
    call = call_op(ops.sinusoidal_frequencies, 4, 10000.0, 4.0)
    return [Case(call, {"like": random(B, S)}, ways, [[None]] * 4)]


def rope_table_cases() -> list[Case]:
    tensors = {"positions": random(S, B) * 9, "inv_freq": random(6, dtype=torch.float64)}
    ways, results = along({"positions": "sb", "inv_freq": "n"}, "sbn", ("sbn", "sbn"))
    return [Case(posenc_ext.rope_table, tensors, ways, results, ("positions", "inv_freq"))]


def softmax_grad_cases() -> list[Case]:
    names = {"grad": "bhqk", "y": "bhqk"}
    ways, results = along(names, "bh", ("bhqk",))
    tensors = {"grad": random(B, H, S, S + 2), "y": scores.softmax(-1)}
    call = call_op(ops.alibi_softmax_grad, 0.5, True)
    return [Case(call, tensors, [*ways, {"grad": "sum"}], [*results, ["sum"]])]


def softmax(**given: Any) -> Any:
    return posenc_ext.alibi_softmax(**given, scale=0.5, causal=True)


def add_alibi(**given: Any) -> Any:
    return posenc_ext.add_alibi(**given, causal=True)


def relative_cases(call: Callable[..., Any], name: str, last: int, size: int) -> list[Case]:
    ways, results = along({name: "bhst"}, "bh", ("bhst",))
    ways, results = [*ways, {name: "sum"}], [*results, ["sum"]]
    tensors = {name: random(B, H, S, last), "index": torch.arange(2 * S + 1).remainder(6) - 1}

    def bound(**given: Any) -> Any:
        return call(*given.values(), size)

    return [Case(bound, tensors, ways, results)]


CASES: dict[str, list[Case]] = {
    "rope": [
        *rope_cases(posenc_ext.rope, {"x": x}, "bshd", "bsh"),
        *rope_cases(
            posenc_ext.rope, {"x": x.transpose(1, 2)}, "bhsd", "bsh", layout="bhsd", inverse=True
        ),
        *rope_cases(posenc_ext.rope, {"x": x}, "bshd", "bsh", interleaved_out=True)[-2:],
        *packed_cases(),
    ],
    "rope_": rope_cases(inplace(posenc_ext.rope, "x"), {"x": x}, "bshd", "bsh"),
    "rope_out": [case._replace(grads=()) for case in rope_cases(with_out, {"x": x}, "bshd", "bsh")],
    "apply_rope": [
        *rope_cases(posenc_ext.apply_rope, {"q": q, "k": k}, "bshd", "bsh"),
        *pair_cases(),
    ],
    "apply_rope_": rope_cases(
        inplace(posenc_ext.apply_rope, "q", "k"), {"q": q, "k": k}, "bshd", "bsh"
    ),
    "rope_table_grad": table_grad_cases(),
    "rope_table": rope_table_cases(),
    "sinusoidal_frequencies": frequency_cases(),
    "sinusoidal_table": sinusoidal_cases(),
    "add_sinusoidal": add_sinusoidal_cases(),
    "alibi_bias": alibi_bias_cases(),
    "add_alibi": alibi_cases(add_alibi),
    "add_alibi_": alibi_cases(inplace(add_alibi, "scores")),
    "alibi_softmax": [*alibi_cases(softmax), *alibi_cases(softmax, key_padding_mask=mask)],
    "alibi_slope_grad": [
        *slope_grad_cases(
            lambda grad, slopes: ops.alibi_slope_grad(grad, slopes, True, None), "grad"
        ),
        *slope_grad_cases(
            lambda grad, slopes, keys: ops.alibi_slope_grad(grad, slopes, True, keys),
            "grad",
            keys=keys,
        ),
    ],
    "alibi_softmax_grad": softmax_grad_cases(),
    "alibi_softmax_slope_grad": slope_grad_cases(
        call_op(ops.alibi_softmax_slope_grad, True), "grad", "y"
    ),
    "relative_gather": relative_cases(posenc_ext.relative_gather, "x", 5, S + 2),
    "relative_scatter": relative_cases(posenc_ext.relative_scatter, "y", S + 2, 5),
}
