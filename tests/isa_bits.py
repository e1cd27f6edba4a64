"""Bit equality across instruction sets: a test file is run as a program, once per instruction set,
prints hashes of a fixed set of results, and every instruction set must print the same."""

import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import posenc_ext

ISAS = ["default", "avx2", "avx512"]
each_isa = pytest.mark.parametrize("capability", ISAS)


def digest(*tensors):
    """A hash of the bits, with every NaN made the same."""
    state = hashlib.sha256()
    for t in tensors:
        t = torch.where(t.isnan(), torch.full_like(t, float("nan")), t).contiguous()
        state.update(t.view(torch.uint8).numpy().tobytes())
    return state.hexdigest()[:16]


def print_fingerprints(found):
    """The program's output: {case: digest} of what this process computed."""
    print(json.dumps({"capability": posenc_ext._C.cpu_capability(), "found": found}))


@functools.cache
def run_with(file, capability):
    """What `file` prints in a fresh process that was asked for a capability (None: the best)."""
    env = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
    if capability:
        env["ATEN_CPU_CAPABILITY"] = capability
    env["PYTHONPATH"] = str(pathlib.Path(posenc_ext.__file__).resolve().parent.parent)
    return json.loads(subprocess.check_output([sys.executable, file], env=env, text=True))


def check_instruction_sets(file, capability, cases):
    """`cases`: the least number of them, so that an empty program cannot pass."""
    best = run_with(file, None)
    if ISAS.index(capability) > ISAS.index(best["capability"]):
        pytest.skip(f"this machine has no {capability}")
    other = run_with(file, capability)
    assert other["capability"] == capability
    different = [case for case, value in best["found"].items() if other["found"][case] != value]
    assert not different
    assert len(other["found"]) == len(best["found"]) >= cases
