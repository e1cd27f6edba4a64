"""rope_table: exact values, and the same bits however a table is built."""

import math

import mpmath
import numpy as np
import pytest
import torch
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from rope_cases import DTYPES, assert_bits, threads

from posenc_ext import rope_frequencies, rope_table

BASES = (1e4, 5e5, 1e6)
LARGEST = 2**31 - 1


def frequencies(dim=128, base=1e4):
    return rope_frequencies(dim, base).inv_freq


def true_values(positions, inv_freq):
    """cos and sin of every product, as mpmath numbers [position][frequency]."""
    with mpmath.workprec(160):
        angles = [[mpmath.mpf(p) * mpmath.mpf(f) for f in inv_freq] for p in positions]
        return [[(mpmath.cos(a), mpmath.sin(a)) for a in row] for row in angles]


def check_float32(positions, inv_freq):
    """float32 within 0.51 ulp (2^-50 where the value is below 2^-20), float64 within 2^-51."""
    positions = torch.tensor(positions)
    single = rope_table(positions, inv_freq)
    double = rope_table(positions, inv_freq, dtype=torch.float64)
    small = 0
    for p, row in enumerate(true_values(positions.tolist(), inv_freq.tolist())):
        for i, pair in enumerate(row):
            for value, s, d in zip(pair, single, double, strict=True):
                assert abs(d[p, i].item() - value) <= 2.0**-51
                if abs(value) < 2.0**-20:
                    small += 1
                    assert abs(d[p, i].item() - value) <= 2.0**-50
                    assert s[p, i] == d[p, i].float()
                else:
                    ulp = 2.0 ** (math.frexp(float(value))[1] - 24)
                    assert abs(s[p, i].item() - value) <= 0.51 * ulp
    return small


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("dim", [64, 128])
def test_values_are_exact(base, dim):
    random = np.random.default_rng(dim)
    powers = [2**k + d for k in range(12, 31) for d in (-1, 0, 1)]
    scattered = random.integers(0, LARGEST, 40).tolist()
    positions = [*range(0, 4096, 61), *powers, *scattered, LARGEST, -1, -63, -64, -65, -LARGEST]
    inv_freq = frequencies(dim, base)
    check_float32(positions, inv_freq[random.permutation(dim // 2)[:16]])


@pytest.mark.parametrize("base", BASES)
def test_every_early_position_is_exact(base):
    """Against extended precision where that suffices: its angle is within 2^-52 below 4096."""
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("this platform has no extended precision")
    inv_freq = frequencies(128, base)
    angle = np.arange(4097)[:, None].astype(np.longdouble) * inv_freq.numpy()
    for right, table in zip(
        (np.cos(angle), np.sin(angle)), rope_table(4097, inv_freq), strict=True
    ):
        error = np.abs(table.numpy().astype(np.longdouble) - right)
        ulp = np.ldexp(1.0, np.frexp(np.abs(right).astype(np.float64))[1] - 24)
        large = np.abs(right) > 2.0**-10
        assert large.mean() > 0.9
        assert (error / ulp)[large].max() <= 0.51
        assert error[~large].max() <= 2.0**-34


def near_zeros(frequency, limit=LARGEST):
    """Positions whose angle is almost a multiple of a quarter turn: from a continued fraction."""
    with mpmath.workprec(200):
        rest = mpmath.mpf(frequency) / (mpmath.pi / 2)
        before, denominator = 1, 0
        found = []
        while denominator <= limit and rest:
            whole = int(mpmath.floor(rest))
            before, denominator = denominator, whole * denominator + before
            found.append(denominator)
            rest -= whole
            rest = 1 / rest if rest else 0
    return [p for p in found if 0 < p <= limit]


@pytest.mark.parametrize("base", BASES)
def test_values_near_zero(base):
    small = 0
    for f in frequencies(128, base)[::5].tolist():
        positions = near_zeros(f)
        assert len(positions) > 5
        positions = [*positions, *(-p for p in positions)]
        small += check_float32(positions, torch.tensor([f], dtype=torch.float64))
    assert small > 50


@pytest.mark.parametrize("base", [10000, 500000])
def test_golden(golden, base):
    right = golden[f"trig/pos131071_d128_b{base}"]["expected"]
    position = torch.tensor([131071])
    inv_freq = frequencies(128, base)
    tables = rope_table(position, inv_freq, dtype=torch.float64)
    singles = rope_table(position, inv_freq)
    given = zip(*true_values([131071], inv_freq.tolist())[0], strict=True)
    for name, table, single, true in zip(("cos", "sin"), tables, singles, given, strict=True):
        wanted = np.array([float(v) for v in right[name]])
        np.testing.assert_array_equal(single[0], wanted.astype(np.float32))
        # The golden angle has the exact frequency; ours the float64 one, which moves it by
        # 131071 * 2^-54. For the frequency as given, all digits are right.
        np.testing.assert_allclose(table[0], np.array(true, dtype=np.float64), rtol=1e-13)
        np.testing.assert_allclose(table[0], wanted, atol=2e-11, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_once(dtype):
    positions = torch.cat([torch.arange(700), torch.tensor([1e-9, 3.7e-6, 0.01]).int()])
    inv_freq = torch.cat([frequencies(70), torch.tensor([1e-7, 3e-12], dtype=torch.float64)])
    exact = rope_table(positions, inv_freq, attention_factor=1.19, dtype=torch.float64)
    tables = rope_table(positions, inv_freq, attention_factor=1.19, dtype=dtype)
    digits, least = {
        torch.float32: (24, -149),
        torch.float64: (53, -1074),
        torch.bfloat16: (8, -133),
        torch.float16: (11, -24),
    }[dtype]
    for wide, table in zip(exact, tables, strict=True):
        step = np.ldexp(1.0, np.maximum(np.frexp(wide.numpy())[1] - digits, least))
        right = torch.from_numpy(np.rint(wide.numpy() / step) * step)
        assert_bits(table.double(), right)


# However a table is built.


def by_single_rows(positions, inv_freq, **options):
    rows = [rope_table(torch.tensor([p]), inv_freq, **options) for p in positions]
    return tuple(torch.cat(tables) for tables in zip(*rows, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_each_other(dtype):
    """Ordered, shuffled, batched, repeated, in pieces, as int32, as float: the same row by row."""
    inv_freq = frequencies(48)
    positions = [*range(200), -70, -64, -1, 131071, 131072, LARGEST, -LARGEST, 2**53 - 1]
    right = by_single_rows(positions, inv_freq, dtype=dtype)

    def check(tables, order):
        for table, row in zip(tables, right, strict=True):
            assert_bits(table, row[order])

    everything = torch.arange(len(positions))
    at = torch.tensor(positions)
    check(rope_table(at, inv_freq, dtype=dtype), everything)
    check(rope_table(at.double(), inv_freq, dtype=dtype), everything)
    check(rope_table(200, inv_freq, dtype=dtype), everything[:200])
    shuffled = torch.randperm(len(positions), generator=torch.Generator().manual_seed(0))
    check(rope_table(at[shuffled], inv_freq, dtype=dtype), shuffled)
    grid = shuffled[:200].view(10, 20).t()
    check(rope_table(at[grid], inv_freq, dtype=dtype), grid)
    strided = at[:206].view(103, 2)[::3, 1]
    check(rope_table(strided, inv_freq, dtype=dtype), everything[:206].view(103, 2)[::3, 1])
    repeated = at[7].expand(3, 5)
    check(rope_table(repeated, inv_freq, dtype=dtype), everything[7].expand(3, 5))
    small = at[:206].int()
    check(rope_table(small, inv_freq, dtype=dtype), everything[:206])
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        check(rope_table(at[:129].to(kind), inv_freq, dtype=dtype), everything[:129])
    check(rope_table(at, inv_freq.expand(2, -1).t().contiguous()[:, 0], dtype=dtype), everything)
    check(rope_table(at[3], inv_freq, dtype=dtype), everything[3])


def test_frequencies_do_not_depend_on_each_other():
    inv_freq = frequencies(206)
    whole = rope_table(torch.tensor([3, 77, 4095]), inv_freq)
    for i in (0, 7, 8, 63, 64, 102):
        for table, column in zip(
            rope_table(torch.tensor([3, 77, 4095]), inv_freq[i : i + 1]), whole, strict=True
        ):
            assert_bits(table, column[:, i : i + 1])


@pytest.mark.parametrize("length", [1, 63, 1000, 5000])
def test_threads_and_pieces(length):
    inv_freq = frequencies(128, 5e5)
    with threads(1):
        one = rope_table(length, inv_freq)
    with threads(2):
        two = rope_table(length, inv_freq)
    pieces = [rope_table(part, inv_freq) for part in torch.arange(length).split(111)]
    for a, b, c in zip(one, two, zip(*pieces, strict=True), strict=True):
        assert_bits(a, b)
        assert_bits(a, torch.cat(c))


def fingerprints():
    """A hash of every kind of table that this process builds."""
    positions = {
        "whole": torch.cat([torch.arange(-300, 3000), torch.tensor([LARGEST, 2**53 - 1])]),
        "fractional": torch.linspace(-5000, 5000, 777, dtype=torch.float64),
        "special": torch.tensor([math.inf, -math.inf, math.nan, 1e300, 1e18, 5e-324, -0.0]),
    }
    found = {}
    for kind, at in positions.items():
        for dtype in DTYPES:
            for n in (1, 3, 8, 37, 64, 100):
                inv_freq = frequencies(2 * n)
                if kind != "special":
                    at = at[:: 1 if n == 64 else 7]
                tables = rope_table(at, inv_freq, attention_factor=1.1, dtype=dtype)
                found[f"{kind} {dtype} {n}"] = digest(*tables)
    return found


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=72)


if __name__ == "__main__":
    print_fingerprints(fingerprints())
