"""Frequencies and slopes: correctly rounded, and the same on processors without FMA."""

import os
import subprocess
import sys

import mpmath
import pytest
import torch

import posenc_ext

POWER = posenc_ext._C.power
# What `python -m posenc_ext check --bits` prints last, on every processor. A change of it is a
# change of results, which the changelog has to say.
ALL = "52f40bf8038dd120"


def right(base, exponent):
    with mpmath.workprec(300):
        return float(mpmath.mpf(base) ** mpmath.mpf(exponent))


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e7, 2.0, 0.5, 10000 * 8 ** (128 / 126)])
def test_correctly_rounded(base):
    exponents = [2 * i / d for d in (64, 80, 96, 128, 256) for i in range(d // 2)]
    exponents += [-8 * k / n for n in (3, 5, 12, 20, 112) for k in range(1, n + 1)]
    assert [POWER(base, e) for e in exponents] == [right(base, e) for e in exponents]


@pytest.mark.parametrize(
    ("base", "exponent"),
    [(10, 300), (10, -310), (10, -330), (1e300, 1), (5e-324, 0.25), (7, 0), (1 + 2**-40, 1e13)],
)
def test_far_values(base, exponent):
    assert POWER(base, exponent) == right(base, exponent)


def test_too_large_is_infinite():
    assert POWER(10.0, 309.0) == float("inf")
    assert POWER(0.1, 1e300) == 0


def test_what_is_made_of_it():
    inv_freq = posenc_ext.rope_frequencies(128, base=500000.0).inv_freq
    assert inv_freq.tolist() == [1 / right(500000.0, 2 * i / 128) for i in range(64)]
    slopes = posenc_ext.alibi_slopes(112, dtype=torch.float64)
    assert slopes[:64].tolist() == [right(2.0, -8 * k / 128) for k in range(2, 129, 2)]


def bits(**env):
    command = [sys.executable, "-m", "posenc_ext", "check", "--bits"]
    where = os.path.dirname(os.path.dirname(posenc_ext.__file__))
    env = os.environ | {"PYTHONPATH": where} | env
    return subprocess.check_output(command, env=env, text=True).splitlines()


def test_bits_are_the_same_where_the_c_library_has_no_fma():
    usual = bits()
    other = bits(GLIBC_TUNABLES="glibc.cpu.hwcaps=-FMA,-AVX2,-FMA4", ATEN_CPU_CAPABILITY="default")
    assert other == usual
    assert usual[-1].split() == ["all", ALL]
