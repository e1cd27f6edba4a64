"""No instruction outside the instruction set of its function: read from the machine code.

Only the functions in the namespaces `posenc::avx2` and `posenc::avx512` are picked at run time. One
AVX instruction anywhere else, say in a shared inline function that the linker took from them, is an
illegal instruction on an older machine.
"""

import platform
import re
import shutil
import subprocess

import pytest

from posenc_ext import _C

pytestmark = [
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="the kernels differ on x86-64 only"
    ),
    pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump"),
]

# A register of AVX or later, an opmask, or any VEX or EVEX mnemonic (all begin with v).
AVX = re.compile(r"^(?!verr|verw)v\w+|%[yz]mm|%k[0-7]\b")
AVX512 = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b")
FUSED = re.compile(
    r"^vf(?:n?m(?:add|sub)|maddsub|msubadd)"
)  # rounds once where the formula does twice


@pytest.fixture(scope="module")
def functions():
    """{demangled name: [instruction, ...]} of the extension's own code."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", "-j", ".text", _C.__file__]
    found, body = {}, None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.endswith(">:\n"):
                body = found.setdefault(line.partition("<")[2][:-3], [])
            elif body is not None and line.startswith(" "):
                body.append(line.partition("\t")[2].strip())
    assert process.returncode == 0
    return found


def kind(name):
    for isa in ("avx512", "avx2"):
        if f"posenc::{isa}::" in name:
            return isa
    return "plain"


def faults(functions, isa, pattern):
    return [
        f"{name}: {instruction}"
        for name, body in functions.items()
        if kind(name) == isa
        for instruction in body
        if pattern.search(instruction)
    ]


def test_plain_functions_use_no_avx(functions):
    assert sum(kind(name) == "plain" for name in functions) > 100
    assert faults(functions, "plain", AVX) == []


def test_avx2_functions_use_no_avx512(functions):
    assert faults(functions, "avx2", AVX512) == []


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_nothing_is_fused(functions, isa):
    assert faults(functions, isa, FUSED) == []


def test_the_reader_sees_what_it_looks_for(functions):
    assert len(faults(functions, "avx2", AVX)) > 100
    assert len(faults(functions, "avx512", AVX512)) > 100
    assert FUSED.search("vfmadd213ps %ymm0,%ymm1,%ymm2")
