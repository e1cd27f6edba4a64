"""The stand-in for CUDA itself, and that no op lacks a kernel."""

import mutants
import pytest
import torch
from rope_cases import table, uniform
from source_calls import source


def test_every_op_has_a_kernel():
    names = torch._C._dispatch_get_all_op_names()
    ops = {name.split("::")[1] for name in names if name.startswith("posenc_ext::")}
    assert "rope" in ops
    for op in ops:
        name = f"posenc_cuda_source::{op}"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"), op


def test_a_failed_assert_leaves_the_next_launch_whole():
    x, tables = uniform((1, 5, 3, 32)), table(16)
    right = source("rope", x, *tables)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="device assert"):
            source("rope", x, *tables, positions=torch.tensor([0, 1, 2, 3, 64]))
        assert torch.equal(source("rope", x, *tables), right)


def test_the_faults_of_mutants_py_still_fit_the_kernels():
    for file, old, _, tests in mutants.MUTANTS:
        assert old in (mutants.ROOT / "csrc/cuda" / file).read_text(), f"{file}: {old}"
        assert (mutants.HERE / tests).exists(), tests
