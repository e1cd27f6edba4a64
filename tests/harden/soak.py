"""Call every native op from eight threads for minutes: soak.py MINUTES

Each round, eight threads do the same work in an order of their own: the calls of
tests/test_threads.py on modules that they share, and those below, so that every op is reached, with
gradients, in place, into `out`, packed, and refused. Every result must have the bits of the first.
The threads live through all rounds, since torch itself keeps some memory of each thread that has
multiplied float32 matrices.

After each round, when malloc has given back what it can, two numbers are read: the bytes that
malloc has handed out and not got back, which are the same after every round but for some KB (glibc
only), and the resident memory of the process, which sees all else and varies by some MB. For each,
the median of the last third of the rounds may be above that of the middle third by LIMITS: what a
round keeps adds up, caches are full after the first third, and a median leaves out rounds that the
machine disturbed.
"""

import argparse
import ctypes
import gc
import os
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import posenc_ext

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rope_cases import assert_bits, table, uniform
from test_threads import THREADS, all_jobs, with_gradients

LIMITS = {"allocated": 2**16, "resident": 2**23}  # bytes
LIBC = ctypes.CDLL(None)


class Reached(TorchDispatchMode):
    """The ops of this package that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "posenc_ext":
            self.names.add(op.name())
        return op(*args, **(kwargs or {}))


def more_jobs():
    """What test_threads.py does not reach."""
    q, (cos, sin) = uniform((300, 4, 32)), table(16, length=512)
    cuts = torch.tensor([0, 0, 90, 91, 300])
    scores, slopes = uniform((2, 4, 70, 90)), posenc_ext.alibi_slopes(4)
    index = torch.arange(70 + 89) % 40
    packed = {"layout": "thd", "cu_seqlens": cuts}

    def refused():
        texts = []
        for call in (
            lambda: posenc_ext.rope(q, cos[:1], sin[:1], layout="thd"),
            lambda: posenc_ext.rope(q, cos, sin, layout="thd", positions=torch.full((300,), 512)),
            lambda: posenc_ext.alibi_softmax(scores[..., None], slopes),
            lambda: posenc_ext.relative_gather(scores, index + 90),
            lambda: posenc_ext.sinusoidal_table(4, -2),
        ):
            try:
                call()
            except (ValueError, IndexError) as error:
                texts.append(str(error))
        return [torch.tensor([len(texts), *map(len, texts)], dtype=torch.float32)]

    return [
        lambda: with_gradients(lambda x: posenc_ext.rope(x, cos, sin, **packed), q),
        lambda: [posenc_ext.rope(q.clone(), cos, sin, **packed, inplace=True)],
        lambda: [posenc_ext.rope(q, cos, sin, **packed, out=torch.empty_like(q))],
        lambda: list(posenc_ext.apply_rope(q.clone(), q + 1, cos, sin, **packed, inplace=True)),
        lambda: with_gradients(lambda x: posenc_ext.norm_rope(x, None, cos, sin, **packed), q),
        lambda: list(
            posenc_ext.qk_norm_rope(
                q.clone(), q + 1, None, None, cos, sin, **packed, inplace=True, norm_dims="all"
            )
        ),
        lambda: [
            posenc_ext.norm_rope(q, None, cos, sin, **packed, out=torch.empty_like(q), norm="l2")
        ],
        lambda: with_gradients(lambda s: posenc_ext.alibi_bias(s, 60, causal=True), slopes),
        lambda: with_gradients(posenc_ext.add_alibi, scores, slopes),
        lambda: [posenc_ext.add_alibi(scores.clone(), slopes, inplace=True)],
        lambda: with_gradients(posenc_ext.rel_shift, scores),
        lambda: with_gradients(lambda y: posenc_ext.relative_scatter(y, index, 40), scores),
        lambda: [posenc_ext.sinusoidal_table(500, 64)],
        refused,
    ]


class MallInfo(ctypes.Structure):
    """What mallinfo2 of glibc returns."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in names.split())


def memory_in_use():
    gc.collect()
    found = {}
    if hasattr(LIBC, "mallinfo2"):
        LIBC.malloc_trim(0)
        LIBC.mallinfo2.restype = MallInfo
        info = LIBC.mallinfo2()
        found["allocated"] = info.uordblks + info.hblkhd  # in arenas, and mapped alone
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return found | {"resident": pages * os.sysconf("SC_PAGE_SIZE")}


def soak(minutes: float) -> int:
    """How many calls were made, all of them right; RuntimeError if the memory grew."""
    work = [*all_jobs(), *more_jobs()]
    with Reached() as reached:
        right = [job() for job in work]
    ops = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("posenc_ext::")}
    if missed := ops - reached.names:
        raise RuntimeError(f"not called: {sorted(missed)}")
    start, memory, calls = time.monotonic(), [], 0
    pool = ThreadPoolExecutor(THREADS)
    sys.setswitchinterval(1e-6)
    while time.monotonic() - start < 60 * minutes or len(memory) < 30:
        jobs = [*all_jobs(), *more_jobs()]  # with modules that have no table yet

        def run(number, jobs=jobs):
            order = list(range(len(jobs)))
            random.Random(THREADS * len(memory) + number).shuffle(order)
            for i in order:
                for actual, wanted in zip(jobs[i](), right[i], strict=True):
                    assert_bits(actual, wanted)

        list(pool.map(run, range(THREADS)))  # raises what any of them raised
        calls += THREADS * len(jobs)
        del jobs, run
        memory.append(memory_in_use())
    third = len(memory) // 3
    for name in memory[0]:
        values = [each[name] for each in memory]
        grown = statistics.median(values[-third:]) - statistics.median(values[third : 2 * third])
        if grown > LIMITS[name]:
            raise RuntimeError(f"{name} memory grew by {grown / 1e6:.2f} MB in {third} rounds")
    return calls


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("minutes", type=float)
    print(f"{soak(parser.parse_args().minutes)} cases, no fault")
