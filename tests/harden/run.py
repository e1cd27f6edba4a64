"""Look for faults: python tests/harden/run.py [--quick] [--soak MINUTES]

Fuzzes the row kernels between guard pages, plainly, under AddressSanitizer and UBSan, under
valgrind and on an emulated CPU without AVX; calls the public functions with random right and wrong
arguments; runs the suite on a sanitized build; imports the package on an emulated CPU without
AVX2; and, on request, calls every op from eight threads for minutes and watches the memory. Prints
what was tried (calls of kernels, or tests), what was found, and what was skipped and why. Exits
with 1 if anything was found.
"""

import argparse
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import sanitized

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/harden"
NAMES = ("rows", "norm_rows", "cache_rows", "relative_rows")
OPS = ("rope", "norm_rope", "rope_table", "sinusoidal", "alibi", "cache")
SOURCES = [f"tests/harden/{name}.cpp" for name in NAMES] + [f"csrc/cpu/{op}_rows.cpp" for op in OPS]
FLAGS = ["-std=c++20", "-O2", "-g", "-ffp-contract=off", "-fno-tree-slp-vectorize", "-Icsrc"]
PLAIN_CPU = """
import torch, posenc_ext
assert posenc_ext._C.cpu_capability() == "default", posenc_ext._C.cpu_capability()
cos, sin = posenc_ext.rope_table(8, posenc_ext.rope_frequencies(16).inv_freq)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    x = torch.ones(2, 8, 3, 16, dtype=dtype)
    back = posenc_ext.rope(posenc_ext.rope(x, cos, sin), cos, sin, inverse=True)
    assert torch.allclose(back.float(), x.float(), atol=0.02), dtype
    posenc_ext.add_sinusoidal(x[..., 0, :])
    posenc_ext.alibi_softmax(x.transpose(1, 2) @ x.permute(0, 2, 3, 1), posenc_ext.alibi_slopes(3))
print("4 cases, no fault")
"""


class Skipped(Exception):
    """Why a step cannot run here."""


def run(*command: object, **environment: str) -> str:
    """The output of a command; a failing one is a fault."""
    env = os.environ | environment
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def cases(output: str) -> int:
    """How many cases the output counts: of `rows`, or pytest's passed tests."""
    return sum(int(n) for n in re.findall(r"(\d+) (?:cases, no fault|passed)", output))


@functools.cache
def rows(*flags: str) -> Path:
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        raise Skipped(f"no {compiler}")
    program = BUILD / ("rows-sanitized" if flags else "rows")
    program.parent.mkdir(parents=True, exist_ok=True)
    run(compiler, *FLAGS, *flags, *SOURCES, "-o", program)
    return program


def needs(tool: str, package: str) -> str:
    if platform.machine() != "x86_64":
        raise Skipped("for x86-64 only")
    if not shutil.which(tool):
        raise Skipped(f"no {tool}: apt install {package}")
    return tool


def pytest(*arguments: object, **environment: str) -> int:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
    return cases(run(*command, **{"PYTHONPATH": str(ROOT)} | environment))


def row_kernels(quick: bool) -> int:
    return cases(run(rows(), 3000 if quick else 300_000, 1))


def row_kernels_sanitized(quick: bool) -> int:
    return cases(run(rows(*sanitized.FLAGS.split()), 1000 if quick else 50_000, 2))


def row_kernels_valgrind(quick: bool) -> int:
    tool = needs("valgrind", "valgrind")
    return cases(run(tool, "-q", "--error-exitcode=9", rows(), 50 if quick else 1000, 3))


def row_kernels_without_avx(quick: bool) -> int:
    return cases(run(needs("qemu-x86_64", "qemu-user"), "-cpu", "Nehalem", rows(), 300, 4))


def package_without_avx2(quick: bool) -> int:
    """torch itself needs AVX, so this is the oldest CPU that it can be imported on."""
    tool = needs("qemu-x86_64", "qemu-user")
    command = (tool, "-cpu", "SandyBridge", sys.executable, "-c", PLAIN_CPU)
    return cases(run(*command, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"))


def of_the_suite(quick: bool, *names: str, **environment: str) -> int:
    if quick:
        raise Skipped("`make test` does it")
    return pytest(*(f"tests/test_{name}.py" for name in names), **environment)


def instruction_sets(quick: bool) -> int:
    return of_the_suite(quick, "instruction_sets")


def random_calls(quick: bool) -> int:
    names = ("fuzz_errors", "fuzz_results", "fuzz_tables")
    return of_the_suite(quick, *names, POSENC_FUZZ_EXAMPLES="2000")


def threads_forks_and_interrupts(quick: bool) -> int:
    names = ("threads", "interrupts", "package_known", "rotary_module_life")
    return of_the_suite(quick, *names)


def far_offsets(quick: bool) -> int:
    return of_the_suite(quick, "far_offsets")


def suite_sanitized(quick: bool) -> int:
    """The suite on a build under AddressSanitizer and UBSan."""
    if quick:
        raise Skipped("minutes; in the long form")
    folder = BUILD / "cmake"
    run(
        "cmake", "-S", ".", "-B", folder, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DPOSENC_SANITIZE=address;undefined",
    )  # fmt: skip
    run("cmake", "--build", folder)
    return pytest(
        "-k",
        "(rope or alibi or sinusoidal or relative or fuzz or table) and not compile and not export "
        "and not memory and not instruction and not aot and not transformers",
        "tests", POSENC_TESTS="again", POSENC_MODULE_DIR=str(folder / "python/posenc_ext"),
        PYTHONPATH=str(folder / "python"), **sanitized.environment(),
    )  # fmt: skip


def cuda_source_sanitized(quick: bool) -> int:
    """The CUDA kernels on the CPU, likewise."""
    if quick:
        raise Skipped("`make cuda` does it")
    return pytest("tests/cuda_source", **sanitized.environment())


def soak(minutes: float) -> int:
    """Every op from eight threads for so long; soak.py says what is watched."""
    return cases(run(sys.executable, "tests/harden/soak.py", minutes, PYTHONPATH=str(ROOT)))


STEPS = (
    row_kernels,
    row_kernels_sanitized,
    row_kernels_valgrind,
    row_kernels_without_avx,
    package_without_avx2,
    instruction_sets,
    random_calls,
    threads_forks_and_interrupts,
    far_offsets,
    suite_sanitized,
    cuda_source_sanitized,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a minute: the rest is in `make test` and `make cuda`"
    )
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES")
    arguments = parser.parse_args()
    steps = {step.__name__: functools.partial(step, arguments.quick) for step in STEPS}
    if arguments.soak:
        steps["soak"] = functools.partial(soak, arguments.soak)
    tried, found, skipped = 0, 0, 0
    for name, step in steps.items():
        title = name.replace("_", " ")
        try:
            count = step()
            if not count:
                raise RuntimeError("it tried nothing")
            tried += count
            print(f"{title}: {count} cases, no fault", flush=True)
        except Skipped as reason:
            skipped += 1
            print(f"{title}: skipped, {reason}", flush=True)
        except RuntimeError as fault:
            found += 1
            print(f"{title}: FAULT\n{fault}", flush=True)
    print(f"\n{tried} cases tried, {found} faults found, {skipped} of {len(steps)} steps skipped")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
