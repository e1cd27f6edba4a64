"""The build of posenc_ext: compiles csrc/*.cpp, csrc/cpu/*.cpp and, for CUDA, csrc/cuda into _C.

The environment steers it:
    MAX_JOBS=n            compile at most n files at once (ninja starts one per core otherwise)
    POSENC_CUDA=0|1       leave csrc/cuda out, or insist on it; unset: in if torch and nvcc can
    POSENC_WERROR=1       a compiler warning is an error
    CUDA_HOME             the CUDA toolkit, when it is not the one nvcc on PATH belongs to
    TORCH_CUDA_ARCH_LIST  as in PyTorch, e.g. "8.0 9.0+PTX"
    POSENC_LOCAL_VERSION  what a wheel says after its version, as torch2.13.0 (`make wheels`)
"""

import os
import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

from setuptools import find_packages, setup

if "sdist" in sys.argv and "bdist_wheel" not in sys.argv:
    torch = None  # an sdist holds the same files whatever is installed
else:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"posenc_ext: building needs torch ({error}): pip install torch"
        ) from error

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "posenc_ext/_version.py").read_text())[1]
CUDA_ARCHS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def glob_sources(*patterns):
    # setuptools wants paths relative to setup.py, with forward slashes.
    found = [path for pattern in patterns for path in glob(pattern, root_dir=ROOT)]
    return sorted(path.replace(os.sep, "/") for path in found)


def find_cuda_home():
    """Return the folder of the CUDA toolkit, or None.

    nvcc on PATH may be a wrapper script outside the toolkit, so nvcc itself says where it lives.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc", path=f"{home}/bin") if home else shutil.which("nvcc")
    nvcc = nvcc or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None or home:
        return home if nvcc else None
    plan = subprocess.run([nvcc, "--dryrun", "any.cu"], capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.+)$", plan, re.MULTILINE)
    return os.path.realpath(top[1].strip() if top else Path(nvcc).resolve().parents[1])


def ask_nvcc(home, option):
    return subprocess.run([f"{home}/bin/nvcc", option], capture_output=True, text=True).stdout


def find_cuda(sources):
    """Return the toolkit to build `sources` with, or None for a CPU build; say why."""
    forced = os.environ.get("POSENC_CUDA", "")
    if forced not in ("", "0", "1"):
        raise SystemExit(f"posenc_ext: POSENC_CUDA must be 0, 1 or unset, got {forced!r}")
    home = find_cuda_home()
    reason = None
    if forced == "0":
        reason = "POSENC_CUDA=0"
    elif torch.version.cuda is None:
        reason = f"torch {torch.__version__} has no CUDA"
    elif home is None:
        reason = "nvcc was not found (put it on PATH, or set CUDA_HOME)"
    elif not sources:
        reason = "csrc/cuda holds no sources"
    if reason and forced == "1":
        raise SystemExit(f"posenc_ext: POSENC_CUDA=1 asks for CUDA, but {reason}")
    if reason:
        print(f"posenc_ext: building for the CPU only: {reason}")
        return None
    release = re.search(r"release (\d+)\.\d+", ask_nvcc(home, "--version"))[1]
    if release != torch.version.cuda.split(".")[0]:
        raise SystemExit(
            f"posenc_ext: torch {torch.__version__} was built for CUDA {torch.version.cuda}, but "
            f"{home} holds CUDA {release}: set CUDA_HOME to a matching toolkit, or POSENC_CUDA=0 "
            "to build for the CPU only"
        )
    return home


def choose_archs(home):
    """Return the TORCH_CUDA_ARCH_LIST for a machine that shows no GPU.

    PTX runs on its architecture and later ones: that of the oldest of each family is for GPUs
    between those in the list, that of the newest for what comes.
    """
    known = ask_nvcc(home, "--list-gpu-arch").split()
    archs = [arch for arch in CUDA_ARCHS if f"compute_{arch.replace('.', '')}" in known]
    family = [arch.split(".")[0] for arch in archs]
    ptx = {archs[family.index(one)] for one in family} | {archs[-1]}
    return ";".join(arch + "+PTX" * (arch in ptx) for arch in archs)


def openmp_flags():
    """Return (compile flags, link flags) that put at::parallel_for on torch's own OpenMP runtime.

    Wheels of torch carry a libgomp, at times under a name of its own. Another one beside it would
    be a second pool of threads, so link theirs.
    """
    if sys.platform == "win32":
        return ["/openmp"], []
    if sys.platform == "darwin":  # Apple's clang has no -fopenmp
        return [], []
    site = Path(torch.__file__).parents[1]
    bundled = sorted([*site.glob("torch/lib/libgomp*.so*"), *site.glob("torch.libs/libgomp*.so*")])
    return ["-fopenmp"], [str(bundled[0])] if bundled else ["-fopenmp"]


def make_extension():
    cuda_sources = glob_sources("csrc/cuda/*.cu", "csrc/cuda/*.cpp")
    cuda_home = find_cuda(cuda_sources)
    if cuda_home:
        os.environ["CUDA_HOME"] = cuda_home  # read when torch.utils.cpp_extension is imported
        if "TORCH_CUDA_ARCH_LIST" not in os.environ and not torch.cuda.is_available():
            os.environ["TORCH_CUDA_ARCH_LIST"] = choose_archs(cuda_home)
    from torch.utils.cpp_extension import CppExtension, CUDAExtension

    openmp, link = openmp_flags()
    # No -march and no -ffast-math, and no contraction to FMA: results must not depend on the CPU.
    if sys.platform == "win32":
        cxx = ["/O2", "/std:c++20", "/fp:precise", *openmp]
    else:
        cxx = ["-O3", "-g0", "-std=c++20", "-ffp-contract=off", *openmp]
        cxx += ["-fvisibility=hidden", "-fno-tree-slp-vectorize"]  # why: csrc/cpu/for_each_isa.h
        cxx += [
            "-Wall",
            "-Wextra",
            *(["-Werror"] if os.environ.get("POSENC_WERROR") == "1" else []),
        ]
    nvcc = ["-O3", "-std=c++20", "--fmad=false", "-lineinfo"]  # so that profilers name lines
    extension = (CUDAExtension if cuda_home else CppExtension)(
        "posenc_ext._C",
        glob_sources("csrc/*.cpp", "csrc/cpu/*.cpp") + (cuda_sources if cuda_home else []),
        define_macros=[
            ("POSENC_VERSION", f'"{VERSION}"'),
            ("POSENC_TORCH_VERSION", f'"{torch.__version__}"'),
            *([("POSENC_CUDA_VERSION", f'"{torch.version.cuda}"')] if cuda_home else []),
        ],
        depends=glob_sources("csrc/**/*.h", "csrc/**/*.cuh", "csrc/**/*.inc"),
        extra_compile_args={"cxx": cxx, "nvcc": nvcc},
        extra_link_args=link,
    )
    if sys.platform != "win32":  # as system headers, torch's own warnings stay out of ours
        system = [f"-isystem{folder}" for folder in extension.include_dirs]
        extension.include_dirs = []
        cxx += system
        nvcc += ["-Xcompiler=-ffp-contract=off,-fvisibility=hidden"]  # no header of torch there
    extension.include_dirs.insert(0, str(ROOT / "csrc"))
    return extension


def make_build_ext():
    from torch.utils.cpp_extension import BuildExtension

    class BuildExt(BuildExtension):
        def finalize_options(self):
            super().finalize_options()
            # Objects stay for the next build, which makes `pip install -e .` incremental as well.
            # They are never taken for those of another Python or torch.
            self.build_temp = f"build/temp-{sys.implementation.cache_tag}-torch-{torch.__version__}"
            self.force = True

    return BuildExt


if __name__ == "__main__":
    local = os.environ.get("POSENC_LOCAL_VERSION")
    setup(
        version=f"{VERSION}+{local}" if local else VERSION,
        packages=find_packages(include=["posenc_ext", "posenc_ext.*"]),
        include_package_data=False,
        package_data={"posenc_ext": ["py.typed", "*.pyi"]},
        # A module built for one torch does not load in another.
        install_requires=[f"torch=={torch.__version__.split('+')[0]}" if torch else "torch"],
        ext_modules=[make_extension()] if torch else [],
        cmdclass={"build_ext": make_build_ext()} if torch else {},
    )
