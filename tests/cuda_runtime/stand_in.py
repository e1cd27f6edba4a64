"""A stand-in for the CUDA runtime: python tests/cuda_runtime/stand_in.py COMMAND ...

Runs a command, say pytest tests/cuda_runtime, with it in the place of libcudart: torch then sees
two GPUs, on which every kernel does nothing. Needs nvcc, and a torch and a posenc_ext with CUDA; no
GPU. What torch asks of the runtime is written down; `calls` reads it.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / "build/cuda_runtime/stand_in.so"
# Under the name of the driver, which torch loads too.
FLAGS = "-std=c++20 -O1 -shared --cudart=none -Xlinker=-soname=libcuda.so.1"
WARNINGS = "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-Wno-unused-parameter"


def build() -> Path:
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    command = ["nvcc", *FLAGS.split(), WARNINGS, *map(str, HERE.glob("*.cpp")), "-o", str(LIBRARY)]
    subprocess.run(command, check=True)
    return LIBRARY


def environment() -> dict[str, str]:
    """What a process needs in its environment. The library of cuBLASLt is not stood in for."""
    return {"LD_PRELOAD": str(LIBRARY), "DISABLE_ADDMM_CUDA_LT": "1"}


def is_preloaded() -> bool:
    return os.environ.get("LD_PRELOAD") == str(LIBRARY)


@dataclass(frozen=True)
class Call:
    """One line: what was asked, and the words after it."""

    kind: str
    words: list[str]

    @property
    def where(self) -> tuple[int, int]:
        """Device and stream of a launch."""
        return int(self.words[0]), int(self.words[1])

    @property
    def ours(self) -> bool:
        return self.kind == "launch" and "posenc" in self.words[-1]


def calls(of: Callable[[], Any]) -> list[Call]:
    """What torch asks of the runtime while `of` runs."""
    library = ctypes.CDLL(str(LIBRARY))
    library.stand_in_take.restype = ctypes.c_void_p

    def take() -> str:
        text = library.stand_in_take()
        try:
            return ctypes.string_at(text).decode()
        finally:
            libc = ctypes.CDLL(None)
            libc.free(ctypes.c_void_p(text))

    take()
    kept = of()  # until all is read: to free memory may ask the runtime for something, too
    lines = [line.split() for line in take().splitlines()]
    del kept
    return [Call(words[0], words[1:]) for words in lines]


if __name__ == "__main__":
    build()
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ | environment())
