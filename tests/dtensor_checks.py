"""`check(op, mesh)`: an op on DTensors equals the call on whole tensors, without communication.

It runs on every rank of a device mesh of any dimensions, also of a single rank.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from dtensor_cache_cases import CASES
from dtensor_cases import Case
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode

EXACT = {"x", "q", "k", "scores"}  # their gradients are not summed over what is sharded


def placement(way: Any) -> Placement:
    return Replicate() if way is None else Partial() if way == "sum" else Shard(way)


def distribute(t: torch.Tensor, mesh: Any, ways: list[Any]) -> DTensor:
    """Every rank has the whole of t and keeps its part."""
    whole = [None if way == "sum" else way for way in ways]
    part = distribute_tensor(t, mesh, [placement(way) for way in whole], src_data_rank=None)
    for axis, way in enumerate(ways):
        if way == "sum":  # 1 + (n - 1) / 2 of it on the first rank, -1/2 on the others
            first = mesh.get_local_rank(axis) == 0
            part = part * (1 + (mesh.size(axis) - 1) / 2 if first else -0.5)
    placements = [placement(way) for way in ways]
    local = part.to_local()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=t.shape, stride=t.stride()
    )


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def equal(what: str, given: DTensor, wanted: torch.Tensor, exact: bool) -> None:
    value = given.full_tensor()
    assert value.dtype == wanted.dtype, f"{what}: {value.dtype}, not {wanted.dtype}"
    if exact:
        same = torch.equal(value, wanted)
    else:
        same = torch.allclose(value, wanted, rtol=1e-5, atol=1e-5)
    error = (value.double() - wanted.double()).abs().max().item() if not same else 0
    assert same, f"{what}: differs by {error}"


def check_case(what: str, case: Case, mesh: Any, chosen: tuple[int, ...]) -> None:
    """`chosen` is the way of each mesh dimension."""
    ways = {n: [case.ways[i].get(n) for i in chosen] for n in case.tensors}
    sums = any("sum" in w for w in ways.values())
    wanted_ways = [list(w) for w in zip(*(case.results[i] for i in chosen), strict=True)]
    grads = () if sums else case.grads

    wholes = {n: t.detach().requires_grad_(n in grads) for n, t in case.tensors.items()}
    parts = {n: distribute(t, mesh, ways[n]) for n, t in case.tensors.items()}
    parts = {n: t.requires_grad_(n in grads) for n, t in parts.items()}
    wanted = as_tuple(case.call(**wholes))
    with CommDebugMode() as comm:
        outputs = as_tuple(case.call(**parts))
    assert comm.get_total_counts() == 0, f"{what}: {dict(comm.get_comm_counts())}"
    for out, want, way in zip(outputs, wanted, wanted_ways, strict=True):
        assert list(out.placements) == [placement(w) for w in way], f"{what}: {out.placements}"
        equal(f"{what}, result", out, want, "sum" not in way)
    if not grads:
        return

    cotangents = [torch.ones_like(t).cumsum(-1) / 3 - 1 for t in wanted]
    placed = [distribute(g, mesh, w) for g, w in zip(cotangents, wanted_ways, strict=True)]
    expected = torch.autograd.grad(wanted, [wholes[n] for n in grads], cotangents)
    with CommDebugMode() as comm:
        given = torch.autograd.grad(outputs, [parts[n] for n in grads], placed)
    assert comm.get_total_counts() == 0, f"{what}, backward: {dict(comm.get_comm_counts())}"
    for name, grad, want in zip(grads, given, expected, strict=True):
        if name in EXACT:
            assert grad.placements == parts[name].placements, f"{what}: {grad.placements}"
        equal(f"{what}, gradient of {name}", grad, want, name in EXACT)


@contextlib.contextmanager
def mesh_of_one() -> Iterator[Any]:
    """A mesh of this process alone, to run `check` in it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def check(op: str, mesh: Any) -> int:
    """Every case in every way, on a second mesh dimension with the next one; returns how many."""
    count = 0
    for number, case in enumerate(CASES[op]):
        ways = len(case.ways)
        for i in range(ways):
            chosen = (i, *(min(i + 1, ways - 1) for _ in range(mesh.ndim - 1)))  # at last twice
            what = f"{op}, case {number}, {[case.ways[i] for i in chosen]}"
            try:
                check_case(what, case, mesh, chosen)
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
            count += 1
    return count
