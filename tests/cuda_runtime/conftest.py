"""What the package asks of the CUDA runtime: `make cuda-build`, which runs these on a stand-in."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def pytest_configure(config):
    import stand_in

    if not stand_in.is_preloaded():
        pytest.exit("run these by tests/cuda_runtime/stand_in.py", pytest.ExitCode.USAGE_ERROR)


@pytest.fixture(autouse=True)
def current_device():
    """Every test begins and ends on device 0."""
    import torch

    assert torch.cuda.current_device() == 0
    yield
    assert torch.cuda.current_device() == 0
