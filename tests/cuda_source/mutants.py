"""Faults put into a copy of the kernels, each of which the tests must notice: `make cuda-mutants`.

Each mutant is compiled as `make cuda` does, for the CPU or by nvcc, and what is named must fail.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import compile_source
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# file, what stands there, what takes its place, what must fail
MUTANTS = [
    (
        "rope_tile.cuh",
        "size : half + pair;",
        "size : half + pair + 1;",
        "test_rope_source.py",
    ),  # index off by one
    ("rope_tile.cuh", "token < o.tokens", "true", "test_rope_source.py"),
    ("rope_tile.cuh", "sin[i] = call.inverse ?", "sin[i] = false ?", "test_rope_source.py"),
    ("rope_tile.cuh", "if (head != first) read", "if (head == first) read", "test_rope_source.py"),
    ("rope_tile.cuh", "present = head < end", "present = head <= end", "test_rope_source.py"),
    (
        "rope_tile.cuh",
        "const void* data, int64_t bytes",
        "const void* data, float bytes",
        "test_rope_source.py",
    ),
    ("rope_kernels.cu", "slot >= tiling.slots ||", "", "test_rope_source.py"),
    ("rope_kernels.cu", "ceil_div(65536, t.columns)", "65536 / t.columns", "test_rope_source.py"),
    ("rope_kernels.cu", "i += gridDim.x", "i += gridDim.x + 1", "test_rope_source.py"),
    ("rope_rows.cuh", "inside ? row : 0", "row", "test_rope_source_rows.py"),  # missing bound
    ("rope_rows.cuh", "ahead < source.rows - first", "true", "test_rope_source_rows.py"),
    ("rope_rows.cuh", "begin <= end,", "true,", "test_rope_source_rows.py"),
    ("rope_rows.cuh", "<= token)", "< token)", "test_rope_source_rows.py"),
    ("rope_grad_kernels.cu", "row + 1)}", "row)}", "test_rope_source_rows.py"),
    ("rope_grad_kernels.cu", "call.inverse ?", "false ?", "test_rope_source_rows.py"),
    ("cache_rows.cuh", "slot >= -1 &&", "", "test_cache_source.py"),
    (
        "cache_rows.cuh",
        "token < call.k.tokens - call.window",
        "false",
        "test_cache_source.py",
    ),
    ("rope_cache_kernels.cu", "call.inverse ? -s : s", "s", "test_cache_source.py"),
    ("rope_cache_kernels.cu", "i += gridDim.x", "i += gridDim.x + 1", "test_cache_source.py"),
    ("alibi_rows.cuh", "? 0 : at + 1", "? 0 : at", "test_alibi_source.py"),  # off by one
    (
        "alibi_rows.cuh",
        ">= rows || at >= call.k_len",
        ">= rows",
        "test_alibi_source.py",
    ),  # no bound
    ("alibi_rows.cuh", "int64_t offset(", "int offset(", "test_alibi_source.py"),
    ("alibi_rows.cuh", "call.k_len % Pack<T>::size == 0", "true", "test_alibi_source.py"),
    ("alibi_rows.cuh", "b * x.batch + h", "h * x.batch + h", "test_alibi_source.py"),
    ("alibi_kernels.cu", "if (w < seen)", "if (w <= seen)", "test_alibi_source.py"),
    ("alibi_kernels.cu", "if (seen >= W &&", "if (seen > 0 &&", "test_alibi_source.py"),
    (
        "alibi_kernels.cu",
        "row + call.k_len - call.q_len + 1 - key",
        "row + 1 - key",
        "test_alibi_source.py",
    ),
    ("relative_kernels.cu", "begin + heads < all_heads ?", "true ?", "test_relative_source.py"),
    ("alibi_softmax_kernels.cu", "|| b != b", "", "test_alibi_source.py"),
    ("alibi_softmax_kernels.cu", "first + w < end ? value", "true ? value", "test_alibi_source.py"),
    (
        "alibi_softmax_kernels.cu",
        "const A dot =",
        "const A dot = A(0.001) +",
        "test_alibi_source.py",
    ),
    (
        "alibi_grad_kernels.cu",
        "smaller(left, keys), sum)",
        "keys - 1, sum)",
        "test_alibi_source.py",
    ),
    ("alibi_grad_kernels.cu", "double total = 0", "float total = 0", "test_alibi_source.py"),
    (
        "norm_rope_rows.cuh",
        "d < dim; d += kNormSums",
        "d < dim; d += 8",
        "test_norm_rope_source.py",
    ),
    ("norm_rope_rows.cuh", "half + pair + i", "half + pair", "test_norm_rope_source.py"),
    ("norm_rope_kernels.cu", "bool wide = aligned &&", "bool wide =", "test_norm_rope_source.py"),
    (
        "norm_rope_kernels.cu",
        "__syncthreads();  // the groups",
        "// the groups",
        "test_norm_rope_source.py",
    ),
    (
        "norm_rope_grad_kernels.cu",
        "token < o.tokens; ++token",
        "token < o.tokens - 1; ++token",
        "test_norm_rope_source.py",
    ),
    ("table_rows.cuh", "i < call.pairs;", "true;", "test_table_source.py"),  # missing bound
    ("table_rows.cuh", "place.column[0] + W", "place.column[0] + 1", "test_table_source.py"),
    ("table.cuh", "by_offset ? at.offset : i", "at.offset", "test_table_source.py"),
    ("table.cuh", "if (at.base != base)", "if (i == begin)", "test_table_source.py"),
    ("table.cuh", "const int64_t x_row", "const float x_row", "test_table_source.py"),
    ("sinusoidal_kernels.cu", "out + first", "out", "test_table_source.py"),
    (
        "relative_kernels.cu",
        "call.q_len - 1 - query",
        "call.q_len - query",
        "test_relative_source.py",
    ),
    ("relative_kernels.cu", "column >= 0 && ", "", "test_relative_source.py"),
    ("relative_kernels.cu", "column < columns)", "true)", "test_relative_source.py"),
    ("relative_kernels.cu", "int64_t offset = 0", "float offset = 0", "test_relative_source.py"),
    ("relative_kernels.cu", "column < call.columns;", "true;", "test_relative_source.py"),
    # Barriers of a warp where the block must wait, half a warp in a mask, a pointer not looked at.
    (
        "alibi_rows.cuh",
        "piece) {\n    __syncthreads();",
        "piece) {\n    __syncwarp();",
        "test_alibi_source.py",
    ),
    (
        "alibi_softmax_kernels.cu",
        "tops);\n    __syncthreads();",
        "tops);\n    __syncwarp();",
        "test_alibi_source.py",
    ),
    ("alibi_rows.cuh", "0xffffffffu", "0x0000ffffu", "test_alibi_source.py"),
    ("rope_kernels.cu", "aligned16(o.out,", "aligned16(o.x,", "test_rope_source.py"),
    # What only the code shows: split stores, spilled registers, an FMA.
    ("device.cuh", "#ifdef __CUDA_ARCH__", "#ifdef POSENC_NEVER", "codegen.py"),
    (
        "relative_kernels.cu",
        "(kThreads, 3)\n    relative_scatter",
        "(kThreads, 8)\n    relative_scatter",
        "codegen.py",
    ),
    (
        "relative_kernels.cu",
        "own[column * kParts] += value",
        "own[column * kParts] = fma(value, A(1), own[column * kParts])",
        "codegen.py",
    ),
]


def includes(csrc: Path, file: Path) -> set[Path]:
    """The project's files that `file` includes, itself too."""
    found = {file}
    for name in re.findall(r'#include "([^"]+)"', file.read_text()):
        if (csrc / name).exists():
            found |= includes(csrc, csrc / name)
    return found


def compile_mutant(folder: Path, library: Path, file: str) -> Path:
    """Compile again the kernels that see `file`, and link them with the other objects."""
    csrc, objects = folder / "csrc", {p.name: p for p in library.parent.glob("*.o")}
    flags = [
        *compile_source.FLAGS.split(),
        "-Wno-error",
        "-DPOSENC_CUDA_ON_CPU",
        f"-I{csrc}",
        f"-I{HERE}",
    ]
    for source in (csrc / "cuda").glob("*.cu"):
        if csrc / "cuda" / file in includes(csrc, source):
            objects[f"{source.name}.o"] = folder / f"{source.name}.o"
            compile_source.run(
                "c++", *flags, "-x", "c++", "-c", source, "-o", objects[f"{source.name}.o"]
            )
    mutant = folder / "mutant.so"
    lib = Path(torch.__file__).parent / "lib"
    compile_source.run(
        "c++", "-shared", *compile_source.LINK.split(), *objects.values(), "-o", mutant,
        f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch", "-ltorch_cpu", "-lc10",
    )  # fmt: skip
    return mutant


def survives(library: Path, file: str, old: str, new: str, tests: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "csrc", folder / "csrc")
        path = folder / "csrc/cuda" / file
        source = path.read_text()
        if old not in source:
            sys.exit(f"{file} has no {old!r} any more: renew the mutant")
        path.write_text(source.replace(old, new, 1))
        env = dict(os.environ)
        if tests == "codegen.py":
            env.pop("LD_PRELOAD", None)
            command = [sys.executable, HERE / tests, "--csrc", folder / "csrc", "8.0"]
        else:
            env["POSENC_CUDA_SOURCE"] = str(compile_mutant(folder, library, file))
            command = [sys.executable, "-m", "pytest", "-q", "-x", HERE / tests]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    ends = re.findall(
        r"^FAILED.*|ERROR: AddressSanitizer: [\w-]+|runtime error: .*|.* lacks 16-byte .*"
        r"|.* splits 16-byte .*|.* uses local memory.*|.* contracts to FMA",
        done.stdout + done.stderr,
        re.MULTILINE,
    )
    if done.returncode and not ends:
        sys.exit(f"{file}: {new!r}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    word = "noticed " if done.returncode else "SURVIVES"
    print(f"{word} {file}: {new!r}: {ends[0] if ends else ''}", flush=True)
    return done.returncode == 0


def main() -> None:
    library = compile_source.build()
    alive = [mutant for mutant in MUTANTS if survives(library, *mutant)]
    if alive:
        sys.exit(f"{len(alive)} of {len(MUTANTS)} mutants survive")
    print(f"all {len(MUTANTS)} mutants are noticed")


if __name__ == "__main__":
    main()
