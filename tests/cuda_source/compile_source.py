"""Compile csrc/cuda for the CPU; prints the library: compile_source.py [FOLDER]

Every kernel and its launcher, by the host's compiler, under the stand-in of cuda_on_cpu.h. Needs
ninja and torch, of any kind; no CUDA. With POSENC_SANITIZED=1 (tests/harden/sanitized.py sets it)
under AddressSanitizer and UBSan, so that a step outside shared memory is a fault too.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent / "harden"))
import sanitized  # noqa: E402

SANITIZED = os.environ.get("POSENC_SANITIZED") == "1"
FOLDER = ROOT / ("build/cuda_source_sanitized" if SANITIZED else "build/cuda_source")
FLAGS = "-std=c++20 -O2 -g1 -fPIC -ffp-contract=off -Wall -Wextra -Werror -Wno-unknown-pragmas"
FLAGS += " " + sanitized.FLAGS if SANITIZED else ""
LINK = sanitized.FLAGS if SANITIZED else ""


def write_ninja(folder: Path) -> Path:
    site = Path(torch.__file__).parent
    includes = [f"-I{ROOT}/csrc", f"-I{HERE}", f"-isystem{site}/include"]
    includes += [f"-isystem{site}/include/torch/csrc/api/include"]
    library = folder / "posenc_cuda_source.so"
    lines = [
        f"builddir = {folder}",
        "rule compile",
        f"  command = c++ -MMD -MF $out.d {FLAGS} -DPOSENC_CUDA_ON_CPU {' '.join(includes)} "
        "-x c++ -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = c++ -shared {LINK} $in -o $out -L{site}/lib -Wl,-rpath,{site}/lib "
        "-ltorch -ltorch_cpu -lc10",
    ]
    objects = []
    sources = [*(ROOT / "csrc/cuda").glob("*.c*"), ROOT / "csrc/cpu/power.cpp", *HERE.glob("*.cpp")]
    for source in sorted(s for s in sources if s.suffix in (".cu", ".cpp")):
        objects.append(str(folder / f"{source.name}.o"))
        lines.append(f"build {objects[-1]}: compile {source}")
    lines.append(f"build {library}: link {' '.join(objects)}")
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")
    return library


def run(*command: str | Path) -> None:
    """Run a compiler, which is not itself under the sanitizers; what it prints goes to stderr."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(command, check=True, stdout=sys.stderr, env=env)


def build(folder: Path = FOLDER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    library = write_ninja(folder)
    run("ninja", "-C", folder)
    return library


if __name__ == "__main__":
    print(build(*(Path(folder).resolve() for folder in sys.argv[1:2])))
