"""Each op beside its formula in float64, for :mod:`posenc_ext.self_check`.

The formulas stand here a second time, in plain Python and torch, so that an installed package can
be checked without its tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import posenc_ext

# 2 pi to 60 digits.
TURN = Fraction("6.28318530717958647692528676655900576839433879875021164194989")

Pairs = Iterator[tuple[Tensor, Tensor]]  # what an op gave, what its formula gives in float64


class Case(NamedTuple):
    """What the arguments of a check are made of."""

    dtype: torch.dtype
    device: torch.device

    def random(self, *shape: int) -> Tensor:
        source = torch.Generator().manual_seed(sum(shape))
        return torch.randn(shape, generator=source, dtype=torch.float64).to(self.device, self.dtype)

    @property
    def wide(self) -> torch.dtype:
        """What tables and slopes are in beside activations of `dtype`."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def table(self, *shape: int) -> Tensor:
        return self._replace(dtype=self.wide).random(*shape)

    def slopes(self, heads: int) -> Tensor:
        return posenc_ext.alibi_slopes(heads, dtype=self.wide, device=self.device)

    def indices(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.device)


# ---- The formulas, in float64. ----


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x [..., D] with its first R channels turned, cos and sin [..., R/2]."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    y, n = x.clone(), cos.shape[-1]
    for i in range(n):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + n)
        y[..., a] = x[..., a] * cos[..., i] - x[..., b] * sin[..., i]
        y[..., b] = x[..., b] * cos[..., i] + x[..., a] * sin[..., i]
    return y


def waves(positions: list[int], frequencies: list[float]) -> tuple[Tensor, Tensor]:
    """cos and sin of each position times each frequency, [N, n], whose angle is exact."""
    turns = [[Fraction(p) * Fraction(f) / TURN for f in frequencies] for p in positions]
    angles = [[float((t - round(t)) * TURN) for t in row] for row in turns]
    return (
        torch.tensor([[math.cos(a) for a in row] for row in angles], dtype=torch.float64),
        torch.tensor([[math.sin(a) for a in row] for row in angles], dtype=torch.float64),
    )


def sines(positions: list[int], dim: int) -> Tensor:
    """[N, dim]: sin and cos in turns."""
    cos, sin = waves(positions, [10000.0 ** (-2 * i / dim) for i in range(dim // 2)])
    return torch.stack([sin, cos], -1).flatten(-2)


def penalties(slopes: Tensor, q_len: int, k_len: int, causal: bool) -> Tensor:
    """[H, q_len, k_len]: -slope * distance, -inf ahead of the query if causal."""
    at = torch.arange(q_len, dtype=torch.float64)[:, None] + k_len - q_len
    key = torch.arange(k_len, dtype=torch.float64)
    bias = -slopes.cpu().double()[:, None, None] * (at - key).abs()
    return bias.masked_fill(key > at, -math.inf) if causal else bias


# ---- The checks. ----


def check_rope(case: Case) -> Pairs:
    x, cos, sin = case.random(2, 5, 3, 10), case.table(7, 4), case.table(7, 4).flip(0)
    rows = case.indices([3, 1, 4, 1, 6])
    c, s = cos[rows][:, None], sin[rows][:, None]
    for interleaved in (False, True):
        rope = partial(posenc_ext.rope, positions=rows, interleaved=interleaved)
        want = rotated(x, c, s, interleaved)
        yield rope(x, cos, sin), want
        yield rope(x.clone(), cos, sin, inplace=True), want
        yield rope(x, cos, sin, out=torch.empty_like(x)), want
        yield rope(x, cos, sin, inverse=True), rotated(x, c, -s, interleaved)


def check_apply_rope(case: Case) -> Pairs:
    q, k, cos, sin = case.random(2, 4, 5, 8), case.random(2, 2, 5, 8), *case.table(2, 8, 4).unbind()
    wants = [rotated(x, cos[3:], sin[3:], False) for x in (q, k)]
    for inplace in (False, True):
        gots = posenc_ext.apply_rope(
            q.clone(), k.clone(), cos, sin, layout="bhsd", offset=3, inplace=inplace
        )
        yield from zip(gots, wants, strict=True)


def check_apply_rope_cache(case: Case) -> Pairs:
    """Into pages of 4 rows, in place or not; a cache that nothing is written to stays."""
    q, k, v = case.random(2, 3, 4, 8), case.random(2, 3, 2, 8), case.random(2, 3, 2, 8)
    cos, sin = case.table(2, 6, 4).unbind()
    slots = torch.tensor([[9, -1, 3], [0, 7, 10]], device=q.device)
    turned = rotated(k, cos[2:5, None], sin[2:5, None], False).flatten(0, 1)
    where, stored = slots.flatten().cpu(), slots.flatten().cpu() >= 0
    for inplace in (False, True):
        caches = torch.zeros(2, 3, 4, 2, 8, dtype=q.dtype, device=q.device)
        got = posenc_ext.apply_rope_cache(
            q.clone(), k, v, caches[0], caches[1], cos, sin, offset=2, slots=slots, inplace=inplace
        )
        yield got, rotated(q, cos[2:5, None], sin[2:5, None], False)
        for cache, values in zip(caches, (turned, v.double().flatten(0, 1)), strict=True):
            want = torch.zeros(12, 2, 8, dtype=torch.float64, device=values.device)
            want[where[stored]] = values[stored]
            yield cache.flatten(0, 1), want


def check_rope_gradients(case: Case) -> Pairs:
    x, grad, tables = case.random(2, 5, 3, 8), case.random(3, 5, 2, 8), case.table(2, 5, 4)
    grad = grad.transpose(0, 2)
    x.requires_grad_()
    cos, sin = (table.clone().requires_grad_() for table in tables)
    gots = torch.autograd.grad(posenc_ext.rope(x, cos, sin), (x, cos, sin), grad)
    c, s = tables[0][:, None], tables[1][:, None]
    (u, v), (gu, gv) = x.double().chunk(2, -1), grad.double().chunk(2, -1)
    yield gots[0], rotated(grad, c, -s, False)
    yield gots[1], (gu * u + gv * v).sum((0, 2))
    yield gots[2], (gv * u - gu * v).sum((0, 2))


def check_norm_rope(case: Case) -> Pairs:
    """Both orders, and the gradients of x, weight and bias by torch's own operations."""
    x, tables = case.random(2, 5, 3, 8), case.table(2, 5, 4)
    c, s = (t.double().cpu()[:, None] for t in tables)
    given = [x, case.random(8), case.random(9)[:8]]
    for order in ("norm_first", "rope_first"):
        leaves = [t.clone().requires_grad_() for t in given]
        options: Any = {"bias": leaves[2], "norm": "layer", "order": order, "eps": 1e-2}
        kept = options | {"bias": given[2]}
        y = posenc_ext.norm_rope(leaves[0], leaves[1], *tables, **options)
        wide = [t.detach().double().cpu().requires_grad_() for t in given]
        inner = turned(wide[0], c, s) if order == "rope_first" else wide[0]
        want = torch.nn.functional.layer_norm(inner, (8,), wide[1], wide[2], 1e-2)
        want = want if order == "rope_first" else turned(want, c, s)
        for got in (
            y,
            posenc_ext.norm_rope(x.clone(), given[1], *tables, inplace=True, **kept),
            posenc_ext.norm_rope(x, given[1], *tables, out=torch.empty_like(x), **kept),
        ):
            yield got, want.detach()
        grad = case.random(3, 5, 2, 8).transpose(0, 2)
        gots = torch.autograd.grad(y, leaves, grad)
        wants = torch.autograd.grad(want, wide, grad.double().cpu())
        yield from zip(gots, wants, strict=True)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    u, v = x.chunk(2, -1)
    return torch.cat([u * cos - v * sin, v * cos + u * sin], -1)


def check_qk_norm_rope(case: Case) -> Pairs:
    q, k, weight = case.random(2, 5, 3, 8), case.random(2, 5, 1, 8), case.random(8)
    tables = case.table(2, 5, 4)
    want = [
        posenc_ext.norm_rope(x, w, *tables, weight_offset=1.0) for x, w in ((q, weight), (k, None))
    ]
    for inplace in (False, True):
        gots = posenc_ext.qk_norm_rope(
            q.clone(), k.clone(), weight, None, *tables, weight_offset=1.0, inplace=inplace
        )
        yield from zip(gots, want, strict=True)


def check_rope_table(case: Case) -> Pairs:
    positions, inv_freq = [0, 1, -7, 4095, 131071, 2**31 - 1], [1.0, 0.31622776601683794, 1e-4]
    gots = posenc_ext.rope_table(
        case.indices(positions), torch.tensor(inv_freq, dtype=torch.float64), dtype=case.dtype
    )
    yield from zip(gots, waves(positions, inv_freq), strict=True)


def check_sinusoidal_table(case: Case) -> Pairs:
    positions = [0, 1, 2, 31, 4095]
    got = posenc_ext.sinusoidal_table(case.indices(positions), 12, dtype=case.dtype)
    yield got, sines(positions, 12)


def check_add_sinusoidal(case: Case) -> Pairs:
    x, grad = case.random(2, 5, 12).requires_grad_(), case.random(2, 5, 12)
    y = posenc_ext.add_sinusoidal(x, offset=3, scale=2.5)
    yield y, 2.5 * x.cpu().double() + sines([3, 4, 5, 6, 7], 12)
    yield torch.autograd.grad(y, x, grad)[0], 2.5 * grad.double()


def check_alibi_bias(case: Case) -> Pairs:
    slopes, grad = case.slopes(6), case.random(6, 5, 9)
    yield slopes, torch.tensor([2.0**-k for k in (2, 4, 6, 8, 1, 3)], dtype=torch.float64)
    for causal in (False, True):
        got = posenc_ext.alibi_bias(slopes, 5, 9, causal=causal, dtype=case.dtype)
        yield got, penalties(slopes, 5, 9, causal)
    slopes.requires_grad_()
    got = posenc_ext.alibi_bias(slopes, 5, 9, dtype=case.dtype)
    unit = penalties(torch.ones(6), 5, 9, False)
    yield torch.autograd.grad(got, slopes, grad)[0], (grad.cpu().double() * unit).sum((1, 2))


def check_add_alibi(case: Case) -> Pairs:
    scores, slopes = case.random(2, 3, 5, 9), case.slopes(3)
    want = scores.cpu().double() + penalties(slopes, 5, 9, True)
    for inplace in (False, True):
        yield posenc_ext.add_alibi(scores.clone(), slopes, causal=True, inplace=inplace), want


def check_alibi_softmax(case: Case) -> Pairs:
    scores, grad = case.random(2, 3, 5, 9).requires_grad_(), case.random(2, 3, 5, 9)
    slopes = case.slopes(3).requires_grad_()
    y = posenc_ext.alibi_softmax(scores, slopes, scale=0.5, causal=True)
    want = (0.5 * scores.cpu().double() + penalties(slopes.detach(), 5, 9, True)).softmax(-1)
    yield y, want
    gots = torch.autograd.grad(y, (scores, slopes), grad)
    g = grad.cpu().double()
    logits = want * (g - (want * g).sum(-1, keepdim=True))
    yield gots[0], 0.5 * logits
    yield gots[1], (logits * penalties(torch.ones(3), 5, 9, False)).sum((0, 2, 3))


INDEX = [-1, 0, 0, 1, 2, 2, 3, -1]  # a column of a table for each distance -3 .. 4


def check_relative_gather(case: Case) -> Pairs:
    x, index = case.random(2, 4, 4), case.indices(INDEX)
    want = torch.zeros(2, 4, 5, dtype=torch.float64)
    for i, j, column in cells():
        want[:, i, j] = x[:, i, column].double()
    yield posenc_ext.relative_gather(x, index), want
    by_distance = torch.zeros(2, 4, 5, dtype=torch.float64)
    for i in range(4):  # columns in falling order, the first query at the last
        by_distance[:, i, : i + 1] = x[:, i, 3 - i :].double()
    yield posenc_ext.rel_shift(x, 5), by_distance


def check_relative_scatter(case: Case) -> Pairs:
    y, index = case.random(2, 4, 5), case.indices(INDEX)
    want = torch.zeros(2, 4, 4, dtype=torch.float64)
    for i, j, column in cells():
        want[:, i, column] += y[:, i, j].cpu().double()
    yield posenc_ext.relative_scatter(y, index, 4), want
    x = case.random(2, 4, 4).requires_grad_()
    yield torch.autograd.grad(posenc_ext.relative_gather(x, index), x, y)[0], want


def cells() -> Iterator[tuple[int, int, int]]:
    """Query i, key j and the column of INDEX for their distance, where there is one."""
    for i, j in itertools.product(range(4), range(5)):
        column = INDEX[j - i + 3]
        if column >= 0:
            yield i, j, column


# What is checked, with the error it may have: one rounding is half an eps.
CHECKS: dict[str, tuple[Callable[[Case], Pairs], float]] = {
    "rope": (check_rope, 1.0),
    "apply_rope": (check_apply_rope, 1.0),
    "apply_rope_cache": (check_apply_rope_cache, 1.0),
    "rope gradients": (check_rope_gradients, 2.0),
    "norm_rope": (check_norm_rope, 4.0),
    "qk_norm_rope": (check_qk_norm_rope, 0.0),
    "rope_table": (check_rope_table, 2.0),
    "sinusoidal_table": (check_sinusoidal_table, 2.0),
    "add_sinusoidal": (check_add_sinusoidal, 1.0),
    "alibi_bias": (check_alibi_bias, 1.0),
    "add_alibi": (check_add_alibi, 1.0),
    "alibi_softmax": (check_alibi_softmax, 4.0),
    "relative_gather": (check_relative_gather, 0.0),
    "relative_scatter": (check_relative_scatter, 1.0),
}
