"""python -m bench [rows...] [--json FILE] [--quick] [--strict] [--threads N]

Every row first checks its results against a float64 reference, then times ours and the limit in
turns in one process, and prints their ratio beside its target. Rows that allocate their result
are timed under three settings of the allocator, since new pages cost more than the rotation; the
targets are for the first, the allocator as it comes.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import torch

from . import (
    bench_alibi,
    bench_modules,
    bench_norm_rope,
    bench_relative,
    bench_rope,
    bench_rope_cache,
    bench_rope_peers,
    bench_rope_table,
    bench_sinusoidal,
)
from .common import (
    Row,
    Settings,
    Skipped,
    WrongResult,
    copy_bandwidth,
    environment,
    print_table,
    write_json,
)

GROUPS: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "rope.out_of_place": bench_rope.out_of_place,
    "rope_table": bench_rope_table.rope_table,
    "sinusoidal.add": bench_sinusoidal.add_sinusoidal,
    "sinusoidal.table": bench_sinusoidal.sinusoidal_table,
    "rope.prepared": bench_rope.prepared,
    "rope.eager": bench_rope_peers.eager,
    "rope.compile": bench_rope_peers.compiled,
    "rope.onnxruntime": bench_rope_peers.onnxruntime,
    "rope.backward": bench_rope_peers.backward,
    "rope.decode": bench_rope.decode,
    "rope.threads": bench_rope.threads,
    "norm_rope.prepared": bench_norm_rope.prepared,
    "norm_rope.peers": bench_norm_rope.peers,
    "norm_rope.decode": bench_norm_rope.decode,
    "rope.cache": bench_rope_cache.decode,
    "rope.cache_prefill": bench_rope_cache.prefill,
    "alibi.bias": bench_alibi.bias,
    "alibi.softmax": bench_alibi.softmax,
    "alibi.prepared": bench_alibi.added,
    "modules.sinusoidal": bench_modules.sinusoidal,
    "modules.ragged_decode": bench_modules.ragged_decode,
    "modules.lines": bench_modules.lines,
    "relative.shift": bench_relative.shift,
    "relative.bias": bench_relative.bias,
    "relative.gather": bench_relative.gather,
}

# Rows whose limit allocates too, and the settings they run under, each in a process of its own.
ALLOCATING = (
    "rope.out_of_place",
    "rope_table",
    "sinusoidal.add",
    "sinusoidal.table",
    "alibi.bias",
    "alibi.softmax",
)
KEPT = str(2**30)
ALLOCATORS: dict[str, dict[str, str]] = {
    "plain": {},
    "huge pages": {"THP_MEM_ALLOC_ENABLE": "1"},
    # glibc serves even large blocks from its heap, and never returns the heap's pages.
    "kept pages": {"MALLOC_MMAP_THRESHOLD_": KEPT, "MALLOC_TRIM_THRESHOLD_": KEPT},
}


def run_group(name: str, settings: Settings) -> Iterator[Row]:
    """Yield the rows of one group, which raises Skipped when it cannot run here."""
    print(name, file=sys.stderr, flush=True)
    yield from GROUPS[name](settings)


def run_under(allocator: str, names: Iterable[str], arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of `names` from a child process under one setting of the allocator."""
    ours = {variable for values in ALLOCATORS.values() for variable in values}
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-m", "bench", *names, "--rows-only"]
    command += ["--threads", str(torch.get_num_threads())] + ["--quick"] * arguments.quick
    print(f"allocator: {allocator}", file=sys.stderr, flush=True)
    done = subprocess.run(
        command, env=clean | ALLOCATORS[allocator], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise WrongResult(f"the rows under {allocator} failed with status {done.returncode}")
    for line in done.stdout.splitlines():
        row = Row(**json.loads(line))
        case = f"{row.case}, {allocator}"
        yield dataclasses.replace(row, case=case, judged=allocator == "plain")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Timings of posenc_ext")
    parser.add_argument("rows", nargs="*", help=f"which (default all): {', '.join(GROUPS)}")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object a row")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything run?")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--threads", type=int, help="threads of torch (default: as torch chooses)")
    parser.add_argument("--rows-only", action="store_true", help=argparse.SUPPRESS)  # run_under
    arguments = parser.parse_args()
    for name in arguments.rows:
        if not any(group.startswith(name) for group in GROUPS):
            parser.error(f"no rows {name!r}; there are {', '.join(GROUPS)}")
    if arguments.strict and arguments.quick:
        parser.error("--strict needs the full sizes that the targets are for, not --quick")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    settings = Settings(quick=arguments.quick)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    wanted = arguments.rows or [""]
    names = [group for group in GROUPS if any(group.startswith(name) for name in wanted)]

    if arguments.rows_only:
        for name in names:
            for row in run_group(name, settings):
                print(json.dumps(dataclasses.asdict(row)), flush=True)
        return 0

    facts = environment() | {"copy_bandwidth": copy_bandwidth(settings)}
    print(
        "commit {commit} | {machine}, {cpus} CPUs, load {load} | torch {torch} | {isa} | "
        "{threads} threads".format(**facts)
    )
    print(f"copy_ into a prepared tensor: {facts['copy_bandwidth'] / 1e9:.1f} GB/s\n")
    if facts["load"] and facts["load"] > 0.5:
        print(
            "other jobs are running: expect worse figures than on an idle machine", file=sys.stderr
        )
    rows: list[Row] = []
    allocating = [name for name in names if name in ALLOCATING]
    for allocator in ALLOCATORS if allocating else ():
        rows += run_under(allocator, allocating, arguments)
    skipped = []
    for name in names:
        if name not in ALLOCATING:
            try:
                rows += run_group(name, settings)
            except Skipped as reason:
                skipped.append(f"skipped {name}: {reason}")

    print_table(rows, judged=not arguments.quick)
    held = [row for row in rows if row.judged]
    missed = [row for row in held if not row.met]
    if arguments.quick:
        print("\nquick sizes, only to see that all runs: the targets are for the full ones")
    else:
        print(f"\n{len(held) - len(missed)} of {len(held)} targets met")
    for line in skipped:
        print(line)
    if arguments.json:
        write_json(arguments.json, (facts | dataclasses.asdict(row) for row in rows))
    return 1 if missed and arguments.strict else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WrongResult as wrong:
        sys.exit(f"not timed: {wrong}")
