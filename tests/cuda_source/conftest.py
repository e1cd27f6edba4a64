"""The kernels of csrc/cuda, run by the CPU: `make cuda`, or pytest tests/cuda_source."""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]


def pytest_configure(config):
    import compile_source

    # Before xdist starts its workers, which inherit the environment: one of us compiles.
    if "POSENC_CUDA_SOURCE" not in os.environ and not config.option.collectonly:
        os.environ["POSENC_CUDA_SOURCE"] = str(compile_source.build())


@pytest.fixture(scope="session", autouse=True)
def library():
    torch.ops.load_library(os.environ["POSENC_CUDA_SOURCE"])
