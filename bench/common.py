"""Shared by every bench: check first, then time in turns, then print ratios.

Only ratios within one run mean anything: the contestants of a row take turns (A B A B ...), so
that another job on the machine, a hot core or a slow clock hits all of them alike.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import posenc_ext


class WrongResult(Exception):
    """A contestant's result is not the reference: there is nothing to time."""


class Skipped(Exception):
    """This machine lacks what a row needs; the text says what."""


@dataclass(frozen=True)
class Row:
    """One line of the table. `bytes` is what ours reads plus writes."""

    case: str
    ours: float
    limit: float
    limit_name: str
    ratio: float  # ours / limit for "<=" targets, limit / ours ("times faster") for ">="
    target: str
    met: bool
    bytes: int | None = None
    unit: str = "s"  # of ours and limit
    judged: bool = True  # False: shown beside the target, not held to it


@dataclass(frozen=True)
class Settings:
    """How big and how long. `quick` only shows that everything runs."""

    quick: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, S, H, D of q."""
        return (1, 128, 32, 128) if self.quick else (4, 2048, 32, 128)

    @property
    def seconds(self) -> float:
        """How long the contestants of one row take turns, at least."""
        return 0.05 if self.quick else 3.0


def at_most(
    case: str, ours: float, limit: float, limit_name: str, bound: float, **more: object
) -> Row:
    """The row of a target "no more than `bound` times the limit"."""
    ratio = ours / limit
    return Row(case, ours, limit, limit_name, ratio, f"<= {bound:g}x", ratio <= bound, **more)


def faster(
    case: str, ours: float, limit: float, limit_name: str, bound: float, **more: object
) -> Row:
    """The row of a target "at least `bound` times faster than the limit"."""
    ratio = limit / ours
    return Row(case, ours, limit, limit_name, ratio, f">= {bound:g}x", ratio >= bound, **more)


def check_close(name: str, got: Tensor, reference: Tensor, tolerance: float) -> None:
    """Raise WrongResult unless |got - reference| <= tolerance * max |reference| everywhere."""
    if got.shape != reference.shape:
        raise WrongResult(f"{name}: shape {list(got.shape)}, expected {list(reference.shape)}")
    error = (got.double() - reference).abs().max().item() / reference.abs().max().item()
    if not error <= tolerance:  # also catches nan
        raise WrongResult(f"{name}: off by {error:.2e} of the largest value, over {tolerance:.2e}")


def time_in_turns(
    contestants: dict[str, Callable[[], object]],
    settings: Settings,
    *,
    calls: int = 1,
    elsewhere: dict[str, Callable[[int], float]] | None = None,
) -> dict[str, float]:
    """Median seconds of one call of each contestant.

    A turn is `calls` calls. Those `elsewhere`, in another process, make the calls and say the
    seconds of one. After two rounds of warm-up, at least seven rounds and `settings.seconds`.
    """
    elsewhere = elsewhere or {}
    print(f"  timing {', '.join([*contestants, *elsewhere])}", file=sys.stderr, flush=True)
    turns: dict[str, list[float]] = {name: [] for name in [*contestants, *elsewhere]}
    end = time.perf_counter() + settings.seconds
    rounds = 0
    while rounds < 9 or time.perf_counter() < end:
        for name, call in contestants.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            turns[name].append((time.perf_counter() - start) / calls)
        for name, seconds in elsewhere.items():
            turns[name].append(seconds(calls))
        rounds += 1
    return {name: statistics.median(seconds[2:]) for name, seconds in turns.items()}


def copy_bandwidth(settings: Settings) -> float:
    """Bytes read plus written a second by `copy_` of a large tensor into a prepared one."""
    source = torch.ones(2**22 if settings.quick else 2**25)  # 128 MiB
    target = torch.zeros_like(source)
    seconds = time_in_turns({"copy_": lambda: target.copy_(source)}, settings)["copy_"]
    return 2 * source.nbytes / seconds


def environment() -> dict[str, object]:
    """What a figure depends on: commit, machine, torch, ISA, threads, load."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": (_git("rev-parse", "--short", "HEAD") or "unknown") + "+changes" * bool(changed),
        "machine": _cpu_name(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "posenc_ext": posenc_ext.__version__,
        "torch": torch.__version__,
        "isa": posenc_ext._C.cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def print_table(rows: Iterable[Row], *, judged: bool) -> None:
    """Print `case | ours | limit | ratio | target | met`; `met` stays open unless `judged`."""
    lines = [("case", "ours", "limit", "ratio", "target", "met")]
    for row in rows:
        ours = _quantity(row.ours, row.unit)
        if row.bytes:
            ours += f" {row.bytes / row.ours / 1e9:5.1f} GB/s"
        limit = f"{row.limit_name} {_quantity(row.limit, row.unit)}"
        met = ("yes" if row.met else "NO") if judged and row.judged else "-"
        lines.append((row.case, ours, limit, f"{row.ratio:.3g}x", row.target, met))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print(" | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))


def write_json(path: str, records: Iterable[dict[str, object]]) -> None:
    """Write one JSON object a line."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    Path(path).write_text(text, encoding="utf-8")


def _quantity(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.3g} {unit}"
    return f"{value * 1e6:.2f} us" if value < 1e-4 else f"{value * 1e3:.2f} ms"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
