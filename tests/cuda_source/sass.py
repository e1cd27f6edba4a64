"""Counts of machine code: instructions for each byte moved, and bytes in flight.

The path counted is the one through full units: of all ways through the code without a call (slow
divisions, failed checks), the one that moves the most 16-byte packs of global memory, and of those
the shortest: tables that allow 16 bytes, no mask, no cu_seqlens. A loop counts as often as the work
of a thread asks for, in packs stored or in accesses of shared memory; every other loop counts once.
"""

import re
import shutil
import site
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

LANES_PER_BYTE = 4.5  # instructions of a lane that leave an H200 at 0.9 of its copy rate
WIDE = re.compile(r"(LDG|STG)\.E(\.\w+)*\.128")
LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s*$")


def kernels(listing: str) -> dict[str, list]:
    """{mangled name: lines} of what nvdisasm prints: labels, and instructions as (guard, op)."""
    found: dict[str, list] = {}
    for part in re.split(r"^\.text\.", listing, flags=re.MULTILINE)[1:]:
        name, _, body = part.partition(":")
        lines = found.setdefault(name, [])
        for line in body.splitlines():
            label = re.match(r"(\.L_x_\d+|\$\w+):", line)
            code = LINE.match(line)
            if label:
                lines.append(label[1])
            elif code:
                guard, op = re.match(
                    r"(@!?U?P\w+ )?(.*)", re.sub(r"/\*.*?\*/", "", code[2])
                ).groups()
                lines.append((guard, op))
            elif line.startswith("//---"):
                break
    return found


def jumps(lines: list) -> tuple[list[str], list[list[int]]]:
    """The instructions of a kernel, and where each may go on."""
    ops, labels = [], {}
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(ops)
        else:
            ops.append(line)
    to: list[list[int]] = []
    for i, (guard, op) in enumerate(ops):
        target = re.search(r"`\((.*)\)", op)
        if op.startswith("BRA"):
            conditional = guard or re.match(r"BRA\S* !?U?P", op)
            to.append([labels[target[1]]] + ([i + 1] if conditional else []))
        elif op.startswith(("EXIT", "RET")):
            to.append([i + 1] if guard else [])
        elif op.startswith("CALL") and not guard:
            to.append([])  # slow divisions and failed checks: no way for full units
        else:
            to.append([i + 1])
    return [op for _, op in ops], [[t for t in ts if t < len(ops)] for ts in to]


def count_of(op: str, kind: str) -> int:
    """Packs of an instruction, or elements of shared memory that it writes or reads."""
    if kind == "pack":
        return int(bool(WIDE.match(op)))
    return int(op.startswith(kind))


class Way:
    """The best way through one kernel."""

    def __init__(self, lines: list, work: dict[str, float]):
        self.ops, self.to = jumps(lines)
        self.work = work
        backward = [(i, t) for i, ts in enumerate(self.to) for t in ts if t <= i]
        loops: dict[int, int] = {}
        for i, t in backward:
            if i != t:
                loops[t] = max(i, loops.get(t, 0))
        self.loops = loops  # head: last instruction; the compiler keeps a loop in one piece

    def trips(self, head: int, body: list[int]) -> float:
        """How often a loop runs whose way is `body`."""
        end = self.loops[head]
        within = [
            h for h, e in self.loops.items() if head <= h and e <= end and (h, e) != (head, end)
        ]
        for kind, amount in self.work.items():
            n = sum(count_of(self.ops[i], kind) for i in body)
            if n and not any(
                count_of(self.ops[i], kind) for h in within for i in range(h, self.loops[h] + 1)
            ):
                return max(1.0, amount / n)
        return 1.0

    def best(self, start: int, end: int, stops: bool) -> tuple[list[int], dict[int, float]]:
        """The way from `start` up to `end` (its last instruction if it `stops` there)."""
        inner = {
            h: e
            for h, e in self.loops.items()
            if start <= h and e <= end and (h, e) != (start, end)
        }
        outermost = {
            h: e
            for h, e in inner.items()
            if not any(a <= h and e <= b and (a, b) != (h, e) for a, b in inner.items())
        }

        @cache
        def value(i: int) -> tuple[float, float, tuple]:
            # packs, instructions, (weights as a chain)
            if i > end:
                return (0, 0, ())
            if i in outermost and i != start:
                body, weights = self.best(i, outermost[i], False)
                times = self.trips(i, body)
                packs = times * sum(count_of(self.ops[j], "pack") * w for j, w in weights.items())
                size = times * sum(weights.values())
                after = outermost[i] + 1
                leave = {t for j in range(i, after) for t in self.to[j] if not i <= t < after}
                rest = max(
                    (value(t) for t in leave if t > i),
                    key=lambda v: (v[0], -v[1]),
                    default=(float("-inf"), 0, ()),
                )
                here = (("loop", times, weights),)
                return (packs + rest[0], size + rest[1], (here, rest[2]))
            nexts = [t for t in self.to[i] if t > i]
            if i == end and not stops:
                return (count_of(self.ops[i], "pack"), 1, ((("op", i),), ()))
            if not nexts:
                done = self.ops[i].startswith(("EXIT", "RET")) and stops
                return (0 if done else float("-inf"), 1, ((("op", i),), ()))
            rest = max((value(t) for t in nexts), key=lambda v: (v[0], -v[1]))
            return (count_of(self.ops[i], "pack") + rest[0], 1 + rest[1], ((("op", i),), rest[2]))

        for i in range(min(end, len(self.ops) - 1), start - 1, -1):  # no deep recursion
            value(i)
        weights: dict[int, float] = {}
        order: list[int] = []
        chain = value(start)[2]
        while chain:
            (step,), chain = chain
            if step[0] == "op":
                weights[step[1]] = weights.get(step[1], 0) + 1
                order.append(step[1])
            else:
                for j, w in step[2].items():
                    weights[j] = weights.get(j, 0) + w * step[1]
                    order.append(j)
        return order, weights


def registers_of(operand: str, width: int) -> set[str]:
    found = re.match(r"-?\|?R(\d+)", operand)
    return {f"R{int(found[1]) + k}" for k in range(width)} if found else set()


def most_in_flight(ops: list[str], order: list[int]) -> int:
    """Wide loads of the way that wait at the same time."""
    waiting: dict[str, int] = {}
    most = 0
    for i in order:
        op = ops[i]
        name, _, rest = op.partition(" ")
        parts = [p.strip() for p in rest.split(",")]
        if WIDE.match(op) and name.startswith("LDG"):
            for register in registers_of(parts[0], 4):
                waiting[register] = i
            most = max(most, len(set(waiting.values())))
            continue
        used = {r for p in parts for r in re.findall(r"\bR\d+\b", p)}
        if name.startswith("STG"):
            used |= {r for p in parts[1:] for r in registers_of(p, 4)}
        done = {waiting[r] for r in used if r in waiting}
        waiting = {r: j for r, j in waiting.items() if j not in done}
    return most


def measure(lines: list, work: dict[str, float]) -> tuple[float, float, int]:
    """Instructions of a thread, bytes that it stores in packs, and wide loads in flight."""
    way = Way(lines, work)
    order, weights = way.best(0, len(way.ops) - 1, True)
    stores = sum(
        w for i, w in weights.items() if way.ops[i].startswith("STG") and WIDE.match(way.ops[i])
    )
    return sum(weights.values()), 16 * stores, most_in_flight(way.ops, order)


def disassembler() -> Path | None:
    """nvdisasm of this Python (the package nvidia-cuda-nvdisasm), or one on PATH."""
    for folder in map(Path, site.getsitepackages()):
        for found in folder.glob("nvidia/cu*/bin/nvdisasm"):
            return found
    found = shutil.which("nvdisasm")
    return Path(found) if found else None


# Kernel; the call; what a thread of it does: packs stored, shared memory; bytes moved for each byte
# stored.
CASES = [
    (r"rope_kernel<.*, true>$", "4 x 2048 tokens, 32 + 8 heads of 128", {"STG": 10}, 2),
    (r"alibi_cells_kernel<.*, false, true>$", "4096 keys", {"STG": 32}, 1),
    (r"alibi_cells_kernel<.*, true, true>$", "4096 keys", {"STG": 32}, 2),
    (r"relative_gather_kernel<.*, true>$", "int64 index, 32 rows that share it", {"STG": 32}, 2),
]


def count(cubin: Path, found: Iterable[str], names: dict[str, str]) -> dict[str, tuple]:
    """{mangled name: (call, instructions per byte, wide loads in flight)} of kernels in CASES."""
    tool = disassembler()
    if tool is None or not any(re.match(c[0], names[k]) for k in found for c in CASES):
        return {}
    listing = subprocess.run([tool, "-c", cubin], check=True, capture_output=True, text=True).stdout
    counts = {}
    for kernel, lines in kernels(listing).items():
        for pattern, call, work, moved in CASES:
            if re.match(pattern, names.get(kernel, "")):
                instructions, stored, loads = measure(lines, work)
                counts[kernel] = call, instructions / (stored * moved), loads
    return counts
