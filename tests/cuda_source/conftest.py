"""The kernels of csrc/cuda, run by the CPU: `make cuda`, or pytest tests/cuda_source."""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]


@pytest.fixture(scope="session", autouse=True)
def library():
    import compile_source

    made = os.environ.get("POSENC_CUDA_SOURCE") or compile_source.build()
    torch.ops.load_library(str(made))
