"""Compile csrc/cuda for the CPU; prints the library: compile_source.py [FOLDER]

Every kernel and its launcher, by the host's compiler, under the stand-in of cuda_on_cpu.h. Needs
ninja and torch, of any kind; no CUDA.
"""

import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = "-std=c++20 -O2 -g1 -fPIC -ffp-contract=off -Wall -Wextra -Werror -Wno-unknown-pragmas"


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
        f"  command = c++ -shared $in -o $out -L{site}/lib -Wl,-rpath,{site}/lib "
        "-ltorch -ltorch_cpu -lc10",
    ]
    objects = []
    sources = [*(ROOT / "csrc/cuda").glob("*.c*"), *HERE.glob("*.cpp")]
    for source in sorted(s for s in sources if s.suffix in (".cu", ".cpp")):
        objects.append(str(folder / f"{source.name}.o"))
        lines.append(f"build {objects[-1]}: compile {source}")
    lines.append(f"build {library}: link {' '.join(objects)}")
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")
    return library


def build(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    library = write_ninja(folder)
    subprocess.run(["ninja", "-C", str(folder)], check=True, stdout=sys.stderr)
    return library


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/cuda_source").resolve()))
