"""DTensor, tensor, context, data and fully sharded parallelism on gloo ranks of this machine.

Ranks are started once for all checks of a world size; each check is a test of its own.
"""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import pytest
import torch

import posenc_ext

dist = pytest.importorskip("torch.distributed", reason="torch without torch.distributed")
if not dist.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)

from distributed_models import CHECKS  # noqa: E402
from dtensor_cache_cases import CASES  # noqa: E402

TESTS = pathlib.Path(__file__).resolve().parent
LIMIT = 300  # seconds; ranks that hang are ended


@functools.cache
def told_by_ranks(size):
    """What each rank says: ({check: traceback, or "" if it passed}, its output)."""
    root = pathlib.Path(posenc_ext.__file__).resolve().parent.parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(root)])}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        logs = [(folder / f"{rank}.log").open("w+") for rank in range(size)]
        command = [sys.executable, str(TESTS / "distributed_rank.py")]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(size), name],
                stdout=log, stderr=subprocess.STDOUT, env=env, cwd=folder,
            )
            for rank, log in enumerate(logs)
        ]  # fmt: skip
        end = time.monotonic() + LIMIT
        try:
            for rank in ranks:
                rank.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # what they have not come to is missing from what they say
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        told = []
        for number, log in enumerate(logs):
            said = folder / f"{number}.json"
            log.seek(0)
            told.append((json.loads(said.read_text()) if said.exists() else {}, log.read()[-3000:]))
            log.close()
        return told


@pytest.mark.parametrize(
    ("size", "check"), [(size, name) for size, checks in CHECKS.items() for name in checks]
)
def test_ranks_equal_one_process(size, check):
    for rank, (said, log) in enumerate(told_by_ranks(size)):
        assert check in said, f"rank {rank} did not come to {check!r}: {log}"
        assert not said[check], f"rank {rank}: {said[check]}"


def test_example_of_context_parallelism():
    root = pathlib.Path(posenc_ext.__file__).resolve().parent.parent
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*run, str(TESTS.parent / "examples" / "context_parallel.py")],
        env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    *ranks, layer, rotated, forward, backward, rotation = result.stdout.splitlines()
    assert ranks == [
        "rank 0 holds tokens 0 to 63 and 192 to 255",
        "rank 1 holds tokens 64 to 127 and 128 to 191",
    ]
    assert re.fullmatch(r"output and gradients of the layer: within \S+e-0\d of one process", layer)
    assert rotated == "rotated queries: the bits of one process"
    assert forward == "collectives of the layer, forward: 2 all_gather_into_tensor"
    assert backward == "collectives of the layer, backward: 2 reduce_scatter_tensor"
    assert rotation == "collectives of the rotation, forward and backward: none"


def test_every_op_has_a_rule():
    from torch.distributed.tensor import DTensor

    posenc_ext.distributed.register_sharding_rules()
    known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    names = [
        name.split("::")[1]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("posenc_ext::")
    ]
    assert len(names) >= 17
    for name in names:
        assert getattr(torch.ops.posenc_ext, name).default in known, name
    assert set(names) == set(CASES)


def test_plain_tensors_register_no_rules():
    code = (
        "import sys, torch, posenc_ext; "
        "posenc_ext.rope(torch.ones(1, 1, 1, 2, requires_grad=True), *[torch.ones(1, 1)] * 2); "
        "print('torch.distributed.tensor' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    root = pathlib.Path(posenc_ext.__file__).resolve().parent.parent
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False False"


@pytest.mark.parametrize("mode", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_out_the_positions(mode, world_size):
    size = 24
    parts = [
        posenc_ext.context_parallel_positions(size, rank, world_size, mode=mode)
        for rank in range(world_size)
    ]
    assert all(p.dtype == torch.int64 and len(p) == size // world_size for p in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(size))
    work = [int(p.sum()) for p in parts]  # of causal attention
    if mode == "zigzag":
        assert len(set(work)) == 1
    elif mode == "striped":
        assert max(work) - min(work) == (world_size - 1) * size // world_size
    else:
        assert torch.equal(torch.cat(parts), torch.arange(size))


@pytest.mark.parametrize(
    ("kind", "message", "arguments"),
    [
        (TypeError, "seq_len must be an int, got float", (8.0, 0, 2)),
        (TypeError, "rank must be an int, got str", (8, "0", 2)),
        (ValueError, "world_size must be at least 1, got 0", (8, 0, 0)),
        (ValueError, "rank must be at least 0 and below world_size = 2, got 2", (8, 2, 2)),
        (ValueError, "rank must be at least 0 and below world_size = 2, got -1", (8, -1, 2)),
        (ValueError, "seq_len must be a multiple of 2 for mode 'contiguous', got 7", (7, 0, 2)),
        (ValueError, "seq_len must be a multiple of 2 for mode 'contiguous', got -2", (-2, 0, 2)),
        (ValueError, "seq_len must be a multiple of 4 for mode 'zigzag', got 6",
         (6, 0, 2, "zigzag")),
        (ValueError, "mode must be one of contiguous, zigzag, striped, got 'ring'",
         (8, 0, 2, "ring")),
    ],
)  # fmt: skip
def test_refusals_of_positions(kind, message, arguments):
    *numbers, mode = arguments if len(arguments) == 4 else (*arguments, "contiguous")
    with pytest.raises(kind) as caught:
        posenc_ext.context_parallel_positions(*numbers, mode=mode)
    assert str(caught.value) == f"posenc_ext.context_parallel_positions: {message}"


def test_no_positions_are_positions_too():
    assert posenc_ext.context_parallel_positions(0, 1, 2, mode="zigzag").shape == (0,)
