"""Faults put into a copy of the kernels, each of which the tests must notice: `make cuda-mutants`.

Each mutant is compiled for the CPU as `make cuda` does, and the tests of its file must fail.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# file, what stands there, what takes its place, tests that must fail
MUTANTS = [
    ("rope_tile.cuh", "half + pair", "half + pair + 1", "test_rope_source.py"),  # index off by one
    ("rope_tile.cuh", "if (id >= tile.units())", "if (id > tile.units())", "test_rope_source.py"),
    ("rope_tile.cuh", "token < call.k.tokens", "true", "test_rope_source.py"),
    ("rope_tile.cuh", "sin[i] = call.inverse ?", "sin[i] = false ?", "test_rope_source.py"),
    (
        "rope_tile.cuh",
        "const int64_t to = is_k ? found.k_out[token] : found.q_out[token];",
        "const float to = is_k ? found.k_out[token] : found.q_out[token];",
        "test_rope_source.py",
    ),
    ("rope_kernels.cu", "i += gridDim.x", "i += gridDim.x + 1", "test_rope_source.py"),
    ("rope_kernels.cu", "__syncthreads();  // the tile", "// the tile", "test_rope_source.py"),
    ("rope_rows.cuh", "inside ? row : 0", "row", "test_rope_source_rows.py"),  # missing bound
    ("rope_rows.cuh", "ahead < source.rows - first", "true", "test_rope_source_rows.py"),
    ("rope_rows.cuh", "begin <= end,", "true,", "test_rope_source_rows.py"),
    ("rope_rows.cuh", "<= token)", "< token)", "test_rope_source_rows.py"),
    ("rope_grad_kernels.cu", "row + 1)}", "row)}", "test_rope_source_rows.py"),
    ("rope_grad_kernels.cu", "double dcos, dsin", "float dcos, dsin", "test_rope_source_rows.py"),
    ("rope_grad_kernels.cu", "if (!inside)", "if (false)", "test_rope_source_rows.py"),
    ("alibi_rows.cuh", "? 0 : at + 1", "? 0 : at", "test_alibi_source.py"),  # off by one
    ("alibi_rows.cuh", "row[u] >= rows || at", "at", "test_alibi_source.py"),  # missing bound
    ("alibi_rows.cuh", "int64_t offset(", "int offset(", "test_alibi_source.py"),
    ("alibi_rows.cuh", "call.k_len % Pack<T>::size == 0", "true", "test_alibi_source.py"),
    ("alibi_rows.cuh", "b * x.batch + h", "h * x.batch + h", "test_alibi_source.py"),
    ("alibi_kernels.cu", "if (key < end)", "if (key <= end)", "test_alibi_source.py"),
    ("alibi_softmax_kernels.cu", "|| b != b", "", "test_alibi_source.py"),
    ("alibi_softmax_kernels.cu", "first + w < end ? value", "true ? value", "test_alibi_source.py"),
    ("alibi_softmax_kernels.cu", "const A dot =", "const float dot =", "test_alibi_source.py"),
    (
        "alibi_grad_kernels.cu",
        "smaller(left, keys), sum)",
        "keys - 1, sum)",
        "test_alibi_source.py",
    ),
    ("alibi_grad_kernels.cu", "double total = 0", "float total = 0", "test_alibi_source.py"),
    ("table.cuh", "i == call.n &&", "", "test_table_source.py"),  # missing bound
    ("table.cuh", "place.column[0] + W", "place.column[0] + 1", "test_table_source.py"),
    ("table.cuh", "by_offset ? at.offset : i", "at.offset", "test_table_source.py"),
    ("table.cuh", "if (at.base != base)", "if (i == begin)", "test_table_source.py"),
    ("table.cuh", "const int64_t x_row", "const float x_row", "test_table_source.py"),
    ("sinusoidal_kernels.cu", "out + first", "out", "test_table_source.py"),
    (
        "relative_kernels.cu",
        "call.q_len - 1 - divide(at",
        "call.q_len - divide(at",
        "test_relative_source.py",
    ),
    (
        "relative_kernels.cu",
        "column < columns)",
        "true)",
        "test_relative_source.py",
    ),  # missing bound
    ("relative_kernels.cu", "int64_t offset = 0", "float offset = 0", "test_relative_source.py"),
    ("relative_kernels.cu", "inside ? column : -1", "column", "test_relative_source.py"),
]


def survives(tree: Path, file: str, old: str, new: str, tests: str) -> bool:
    path = tree / "csrc/cuda" / file
    source = path.read_text()
    if old not in source:
        sys.exit(f"{file} has no {old!r} any more: renew the mutant")
    path.write_text(source.replace(old, new, 1))
    command = [sys.executable, "-m", "pytest", "-q", "-x", f"tests/cuda_source/{tests}"]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
        )
    finally:
        path.write_text(source)
    last = (done.stdout.strip().splitlines() or [f"signal {-done.returncode}"])[-1]
    print(
        f"{'SURVIVES' if done.returncode == 0 else 'noticed '} {file}: {new!r}: {last}", flush=True
    )
    return done.returncode == 0


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        ignore = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*_cache", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=ignore)
        alive = [mutant for mutant in MUTANTS if survives(tree, *mutant)]
    if alive:
        sys.exit(f"{len(alive)} of {len(MUTANTS)} mutants survive")
    print(f"all {len(MUTANTS)} mutants are noticed")


if __name__ == "__main__":
    main()
