"""What is checked on several ranks: `CHECKS[world_size][name]()` runs on every one of them."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from dtensor_cache_cases import CASES
from dtensor_cases import ops, random
from dtensor_checks import check, distribute
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_module
from torch.distributed.tensor.debug import CommDebugMode

import posenc_ext

CHECKS: dict[int, dict[str, Callable[[], Any]]] = {2: {}, 4: {}}
MESH = {2: (2,), 4: (2, 2)}


def on(*world_sizes: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(function: Callable[[], None]) -> Callable[[], None]:
        for size in world_sizes:
            CHECKS[size][function.__name__] = function
        return function

    return register


@functools.cache
def mesh() -> Any:
    return init_device_mesh("cpu", MESH[dist.get_world_size()])


for _op in CASES:
    for _size in CHECKS:
        CHECKS[_size][f"op {_op}"] = functools.partial(lambda op: check(op, mesh()), _op)


def shard(t: torch.Tensor, *axes: int | str | None) -> DTensor:
    return distribute(t, mesh(), list(axes))


def refuses(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call()


def rows(count: int, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return posenc_ext.rope_table(count, posenc_ext.rope_frequencies(dim).inv_freq)


@on(2)
def plain_tables_beside_a_dtensor() -> None:
    """They count as whole on every rank, and get the gradient of the whole: one sum over ranks."""
    x, q = random(4, 6, 4, 8), random(4, 6, 2, 8)
    for axis in (0, 1, 2):
        grads = []
        for inputs in ((x, q), (shard(x, axis), shard(q, axis))):
            cos, sin = (t.requires_grad_() for t in rows(9))
            a, b = posenc_ext.apply_rope(*inputs, cos, sin, offset=3)
            with CommDebugMode() as comm:
                (a.sum() + (b * b).sum()).backward()
            grads.append((cos.grad, sin.grad))
        assert comm.get_total_counts() == 2, dict(comm.get_comm_counts())  # of cos, of sin
        for whole, given in zip(*grads, strict=True):
            torch.testing.assert_close(given, whole, rtol=1e-5, atol=1e-5)


@on(2)
def tokens_are_rotated_by_their_own_positions() -> None:
    """Not by those of a sequence that starts on each rank; without positions given."""
    x, (cos, sin) = random(2, 6, 2, 8), rows(9)
    y = posenc_ext.rope(shard(x, 1), cos, sin, offset=2)
    rank = dist.get_rank()
    own = x[:, 3 * rank : 3 * rank + 3]
    assert torch.equal(y.to_local(), posenc_ext.rope(own, cos, sin, offset=2 + 3 * rank))
    positions = posenc_ext.context_parallel_positions(6, rank, 2) + 2
    assert torch.equal(y.to_local(), posenc_ext.rope(own, cos, sin, positions=positions))


@on(2)
def what_has_no_rule_is_redistributed() -> None:
    scores, slopes, (cos, sin) = random(2, 4, 6, 6), random(4), rows(9)
    q, k = random(2, 6, 4, 8), random(2, 4, 2, 8)
    for call, t, axes in (
        (lambda t: posenc_ext.alibi_softmax(t, slopes, causal=True), scores, (2, 3)),
        (lambda t: posenc_ext.add_alibi(t, slopes, causal=True), scores, (2, 3)),
        (lambda t: posenc_ext.rope(t, cos, sin), q, (3,)),
        (lambda t: posenc_ext.add_sinusoidal(t), q[:, :, 0], (2,)),
    ):
        for axis in axes:
            with CommDebugMode() as comm:
                given = call(shard(t, axis))
            assert comm.get_total_counts() > 0
            assert torch.equal(given.full_tensor(), call(t))
    # An op knows no positions but those it is given: it must not take a shard for the beginning.
    tail = (None, None, None, 1, "bshd", False, False, False)
    tables = (shard(cos, None), shard(sin, None))
    given = ops.rope(shard(q, 1), *tables, *tail)
    assert torch.equal(given.full_tensor(), posenc_ext.rope(q, cos, sin, offset=1))
    table_grads = ops.rope_table_grad(shard(q, 1), shard(q, 1), *tables, *tail)
    for g, w in zip(table_grads, ops.rope_table_grad(q, q, cos, sin, *tail), strict=True):
        torch.testing.assert_close(g.full_tensor(), w)
    frequencies = ops.sinusoidal_frequencies(q, 4, 10000.0, 4.0)
    given = ops.add_sinusoidal(
        shard(q[:, :, 0], 1), shard(frequencies, None), None, 3, 1.0, True, False
    )
    assert torch.equal(given.full_tensor(), posenc_ext.add_sinusoidal(q[:, :, 0], offset=3))
    # Flattened batch and tokens are in strided shards, for which no rule is.
    x = shard(q, 1).flatten(0, 1)
    given = posenc_ext.rope(x, cos, sin, layout="shd", positions=torch.arange(12) % 9)
    whole = posenc_ext.rope(q.flatten(0, 1), cos, sin, layout="shd", positions=torch.arange(12) % 9)
    assert torch.equal(given.full_tensor(), whole), x.placements
    # Tokens of different numbers: no positions serve both.
    given = posenc_ext.apply_rope(shard(q, 1), shard(k, 1), cos, sin, offset=1)
    for g, w in zip(given, posenc_ext.apply_rope(q, k, cos, sin, offset=1), strict=True):
        assert torch.equal(g.full_tensor(), w)


@on(2)
def decoding_decides_once() -> None:
    """DTensor keeps its decisions by the value of each int: offsets must not be among them."""
    q, k, (cos, sin) = shard(random(2, 1, 4, 8), 2), shard(random(2, 1, 2, 8), 2), rows(40)
    x = shard(random(2, 1, 8), 0)
    missed = []
    for offset in range(1, 20):
        posenc_ext.apply_rope(q, k, cos, sin, offset=offset)
        posenc_ext.add_sinusoidal(x, offset=offset)
        _, misses = torch._C._get_DTensor_sharding_propagator_cache_stats()
        missed.append(misses)
    assert missed[1:] == missed[:1] * 18, missed


@on(2)
def refusals() -> None:
    q, k, (cos, sin) = random(2, 4, 4, 8), random(2, 4, 2, 8), rows(9)
    refuses(
        TypeError,
        "posenc_ext.apply_rope: q and k must both be DTensors or both plain",
        lambda: posenc_ext.apply_rope(shard(q, 2), k, cos, sin),
    )
    refuses(
        RuntimeError,
        "posenc_ext.apply_rope: q and k must be sharded alike",
        lambda: posenc_ext.apply_rope(shard(q, 0), shard(k, None), cos, sin, inplace=True),
    )
    caches = [torch.zeros(2, 8, k.shape[2], 8) for _ in "kv"]
    refuses(
        RuntimeError,
        "posenc_ext.apply_rope_cache: q, k, v and the caches must be sharded alike",
        lambda: posenc_ext.apply_rope_cache(
            *(shard(t, 2) for t in (q, k, k)), *(shard(t, None) for t in caches), cos, sin
        ),
    )
    refuses(
        RuntimeError,
        "posenc_ext.rope: out must be placed as x",
        lambda: posenc_ext.rope(shard(q, 0), cos, sin, out=shard(q, 2)),
    )
    refuses(
        RuntimeError,
        "posenc_ext.rope: cos must have shape [L, R/2] with R <= D = 8, got [9, 16]",
        lambda: posenc_ext.rope(shard(q, 0), *rows(9, 32)),
    )
    refuses(
        ValueError,
        "posenc_ext.rope: cu_seqlens must end with T = 4, got 3",
        lambda: posenc_ext.rope(
            shard(q[0], 0), cos, sin, layout="thd", cu_seqlens=torch.tensor([0, 3])
        ),
    )
    late = dist.get_rank() == 1
    if late:  # only there are rows 8 and 9
        refuses(
            IndexError,
            "posenc_ext.rope: positions must be rows of the table",
            lambda: posenc_ext.rope(shard(q, 1), cos, sin, offset=6),
        )
    else:
        posenc_ext.rope(shard(q, 1), cos, sin, offset=6)


@on(2)
def second_derivatives() -> None:
    x, (cos, sin) = random(2, 4, 4, 8), rows(9)
    scores, slopes = random(2, 4, 5, 5), random(4).abs()
    for call, tensors, axis in (
        (posenc_ext.rope, (x, cos, sin), 2),
        (lambda *t: posenc_ext.alibi_softmax(*t, causal=True), (scores, slopes), 1),
        (lambda *t: posenc_ext.add_alibi(*t) ** 2, (scores, slopes), 0),
    ):
        results = []
        for whole in (True, False):
            inputs = [t.detach() if whole else shard(t, None if i else axis)
                      for i, t in enumerate(tensors)]  # fmt: skip
            inputs = [t.requires_grad_() for t in inputs]
            grads = torch.autograd.grad((call(*inputs) ** 3).sum(), inputs, create_graph=True)
            second = torch.autograd.grad(sum((g * g).sum() for g in grads), inputs)
            results.append([t if whole else t.full_tensor() for t in second])
        for want, given in zip(*results, strict=True):
            torch.testing.assert_close(given, want, rtol=1e-4, atol=1e-4)


@on(2)
def modules() -> None:
    q, k = random(2, 6, 4, 8), random(2, 6, 2, 8)
    rotary = posenc_ext.RotaryPositionalEmbedding(8)
    wanted, each = rotary(q, k, offset=3), torch.tensor([1, 4])
    for axis in (0, 1, 2):
        given = rotary(shard(q, axis), shard(k, axis), offset=3)
        assert [torch.equal(g.full_tensor(), w) for g, w in zip(given, wanted, strict=True)]
        per_batch = rotary(shard(q, axis), offset=each)
        assert torch.equal(per_batch.full_tensor(), rotary(q, offset=each))
    encoding = posenc_ext.SinusoidalPositionalEncoding(8, max_len=10)
    for axis in (0, 1):
        given = encoding(shard(q[:, :, 0], axis), offset=2)
        assert torch.equal(given.full_tensor(), encoding(q[:, :, 0], offset=2))
    torch.manual_seed(0)
    attention, x = posenc_ext.ALiBiAttention(8, 4), random(2, 6, 8)
    want = attention(x)
    given = distribute_module(attention, mesh())(shard(x, 0))
    torch.testing.assert_close(given.full_tensor(), want)


@on(2)
def compiled() -> None:
    q, k, (cos, sin) = random(2, 6, 4, 8), random(2, 6, 2, 8), rows(9)

    def step(q: Any, k: Any) -> Any:
        a, b = posenc_ext.apply_rope(q, k, cos, sin)
        return (a * a[..., :1]).sum() + (b * b[..., :1]).sum()

    fast = torch.compile(step, fullgraph=True, backend="aot_eager")
    for axis in (1, 2):
        results = []
        for call in (step, fast):
            inputs = [shard(t, axis).requires_grad_() for t in (q, k)]
            loss = call(*inputs).full_tensor()
            results.append((loss.detach(), *torch.autograd.grad(loss, inputs)))
        for want, given in zip(*results, strict=True):
            assert torch.equal(getattr(given, "to_local", lambda g=given: g)(),
                               getattr(want, "to_local", lambda w=want: w)())  # fmt: skip
