"""Calls of the norm_rope ops for tests/dtensor_cases.py, of which this is a part."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from dtensor_cases import (
    Case,
    along,
    bounds,
    inplace,
    k,
    ops,
    positions,
    q,
    random,
    starts,
    tables,
    tail,
    x,
)

import posenc_ext

D, H = x.shape[-1], x.shape[-2]
WEIGHTS = {"weight": random(D), "bias": random(D, dtype=torch.float32) / 2}
PAIR = {"q_weight": random(D), "k_weight": random(D) + 1, "q_bias": random(D)}
ALL = {"weight": random(H * D), "bias": random(H * D)}
NORM = (1e-6, 0.0, "rms", "head", "norm_first", "once")


def cases(call: Callable[..., Any], xs: dict[str, Any], weights: Any, axes: str) -> list[Case]:
    """The forms in which rows are given, one of each kind."""
    made = []
    for own, tensors in (
        ({}, tables(11)),
        ({"offset": "b"}, {**tables(11), "offset": starts}),
        ({"positions": "s"}, {**tables(11), "positions": positions}),
        ({"cos": "1s", "sin": "1s"}, tables(1, len(positions))),
    ):
        free = axes + "s" if own.keys() & {"positions", "cos"} else axes
        ways, results = along(dict.fromkeys(xs, "bshd") | own, free, ("bshd",) * len(xs))
        made.append(Case(call, {**xs, **weights, **tensors}, ways, results, (*xs, *weights)))
    return made


def with_out(x: Any, **given: Any) -> Any:
    with torch.no_grad():
        given = {n: t.detach() if isinstance(t, torch.Tensor) else t for n, t in given.items()}
        return posenc_ext.norm_rope(x.detach(), out=torch.zeros_like(x), **given)


def grad(grad: Any, x: Any, weight: Any, bias: Any, cos: Any, sin: Any) -> Any:
    rope = (None, None, None, 0, "bshd", *tail)
    return ops.norm_rope_grad(grad, x, weight, bias, True, cos, sin, *rope, *NORM)


def grad_cases() -> list[Case]:
    tensors = {"grad": x.flip(0), "x": x, **WEIGHTS, **tables(11)}
    names = {"grad": "bshd", "x": "bshd"}
    ways, results = along(names, "bh", ("bshd", "w", "w"), sums=True)
    return [Case(grad, tensors, [*ways, {"grad": "sum"}], [*results, ["sum"] * 3])]


def packed_cases() -> list[Case]:
    call = functools.partial(posenc_ext.norm_rope, layout="thd", order="rope_first")
    tensors = {"x": x[0], **WEIGHTS, **tables(11), "cu_seqlens": bounds}
    return [Case(call, tensors, *along({"x": "thd"}, "th", ("thd",)), ("x", *WEIGHTS))]


one, pair = posenc_ext.norm_rope, posenc_ext.qk_norm_rope
together = functools.partial(one, norm_dims="all", norm="layer")
QK = {"q": q, "k": k}
NORM_CASES: dict[str, list[Case]] = {
    "norm_rope": [
        *cases(one, {"x": x}, WEIGHTS, "bh"),
        *cases(together, {"x": x}, ALL, "b"),
        *packed_cases(),
    ],
    "norm_rope_": cases(inplace(one, "x"), {"x": x}, WEIGHTS, "bh"),
    "norm_rope_out": [c._replace(grads=()) for c in cases(with_out, {"x": x}, WEIGHTS, "bh")],
    "qk_norm_rope": cases(pair, QK, {**PAIR}, "bh"),
    "qk_norm_rope_": [
        c._replace(grads=()) for c in cases(inplace(pair, "q", "k"), QK, {**PAIR}, "bh")
    ],
    "norm_rope_grad": grad_cases(),
}
