"""relative_gather, relative_scatter and rel_shift against the oracle."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from relative_cases import (
    KINDS,
    LENGTHS,
    assert_close,
    expected,
    in_parts,
    index_of,
    large,
    pieced_index,
)
from rope_cases import DTYPES, VIEWS, assert_bits, double, name, threads, uniform

import posenc_ext

every_kind = pytest.mark.parametrize("kind", KINDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
every_view = pytest.mark.parametrize("view", VIEWS)
NAN, INF = float("nan"), float("inf")


def check_gather(x, index, **options):
    before = x.clone()
    out = posenc_ext.relative_gather(x, index, **options)
    assert out.dtype == x.dtype
    assert_bits(out, torch.from_numpy(expected("relative_gather", x, index)).to(x.dtype))
    assert out.is_contiguous()
    assert_bits(x, before)
    return out


def check_scatter(y, index, size):
    before = y.clone()
    out = posenc_ext.relative_scatter(y, index, size)
    assert out.dtype == y.dtype
    assert_close(out, expected("relative_scatter", y, index, size))
    assert_bits(out, in_parts(y, index, size))
    assert_bits(y, before)
    return out


@every_kind
@every_dtype
def test_lengths(dtype, kind):
    for lengths in LENGTHS:
        index, size = index_of(kind, *lengths)
        check_gather(uniform((2, lengths[0], size), dtype), index)
        check_scatter(uniform((2, *lengths), dtype), index, size)


@every_view
@every_kind
@every_dtype
def test_strides(dtype, kind, view):
    index, size = index_of(kind, 6, 11, torch.int32)
    check_gather(VIEWS[view](uniform((2, 3, 6, size), dtype)), index)
    check_scatter(VIEWS[view](uniform((2, 3, 6, 11), dtype)), index, size)


@every_kind
def test_a_table_shared_by_all_queries_is_read_in_place(kind):
    index, size = index_of(kind, 6, 11)
    table = uniform((size, 3)).t()
    check_gather(table[:, None].expand(3, 6, size), index)
    gradient = torch.ones(()).expand(3, 6, 11)
    check_scatter(gradient, index, size)


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_ranks(rank):
    index, size = index_of("clipped", 4, 7)
    batch = (2, 1, 3)[: rank - 2]
    check_gather(uniform((*batch, 4, size)), index)
    check_scatter(uniform((*batch, 4, 7)), index, size)


@pytest.mark.parametrize("step", [1, 2, -1], ids=["dense", "stride_2", "reversed"])
def test_strides_of_the_index(step):
    index, size = index_of("waves", 5, 12)
    if step == 2:
        buffer = torch.full((2 * index.numel(),), 99)
        index = buffer[::2].copy_(index)
    elif step == -1:
        index = torch.from_numpy(index.numpy()[::-1].copy()).flip(0)
    check_gather(uniform((2, 5, size)), index)
    check_scatter(uniform((2, 5, 12)), index, size)


@pytest.mark.parametrize(("q_len", "k_len"), [(0, 4), (4, 0), (0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("batch", [(), (2, 3), (0, 3)])
def test_empty(batch, q_len, k_len):
    index = torch.zeros(max(q_len + k_len - 1, 0), dtype=torch.int64)
    out = posenc_ext.relative_gather(torch.ones(*batch, q_len, 3), index, k_len)
    assert out.shape == (*batch, q_len, k_len)
    out = posenc_ext.relative_scatter(torch.ones(*batch, q_len, k_len), index, 3)
    assert out.shape == (*batch, q_len, 3)
    assert not out.any()
    out = posenc_ext.relative_scatter(torch.ones(*batch, q_len, k_len), index - 1, 0)
    assert out.shape == (*batch, q_len, 0)


def test_a_table_without_columns_gives_zeros():
    index = torch.full((6,), -1)
    assert not posenc_ext.relative_gather(torch.ones(2, 3, 0), index).any()


def test_k_len_is_what_the_index_is_long_enough_for():
    index, size = index_of("random", 3, 5)
    x = uniform((3, size))
    assert_bits(posenc_ext.relative_gather(x, index), posenc_ext.relative_gather(x, index, 5))


@every_dtype
def test_special_values_are_copied_and_summed(dtype):
    special = torch.tensor([NAN, INF, -INF, -0.0, 0.0, 6e-8, -6e-8, 65504.0], dtype=dtype)
    index = torch.arange(8)
    assert_bits(posenc_ext.relative_gather(special[None], index), special[None])
    right = special.clone()
    right[3] = 0.0  # a sum starts from +0
    for order in (index, index.flip(0), torch.tensor([1, 0, 3, 2, 5, 4, 7, 6])):
        out = posenc_ext.relative_scatter(special[None], order, 8)
        assert_bits(out[0, order], right)
    zero = torch.zeros(1, 1, dtype=dtype)
    pair = torch.tensor([[-0.0, -0.0]], dtype=dtype)
    assert_bits(posenc_ext.relative_scatter(pair, index[:1].expand(2), 1), zero)


@every_dtype
def test_masked_columns_do_not_see_nan(dtype):
    """Only cells of a column enter its sum: no 0 * NaN."""
    y = torch.full((1, 1, 20), NAN, dtype=dtype)
    y[..., 10:] = 1.0
    index = torch.tensor([-1] * 10 + [0] * 10)
    assert_bits(posenc_ext.relative_scatter(y, index, 1), torch.full((1, 1, 1), 10.0, dtype=dtype))


@every_dtype
def test_threads_are_bit_equal(dtype):
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(large(dtype))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_bits(b, a)


@every_kind
def test_each_is_the_adjoint_of_the_other(kind):
    """<gather(x), y> = <x, scatter(y)>."""
    for lengths in LENGTHS:
        index, size = index_of(kind, *lengths)
        x = uniform((2, lengths[0], size), torch.float64, 1)
        y = uniform((2, *lengths), torch.float64, 2)
        left = (posenc_ext.relative_gather(x, index) * y).sum()
        right = (x * posenc_ext.relative_scatter(y, index, size)).sum()
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@every_dtype
def test_any_index(dtype):
    rng = np.random.default_rng(11)
    for _ in range(60):
        q_len, k_len, size = (int(n) for n in rng.integers(1, (12, 50, 30)))
        index = pieced_index(rng, q_len + k_len - 1, size)
        check_gather(uniform((2, q_len, size), dtype), index)
        check_scatter(uniform((2, q_len, k_len), dtype), index, size)


PEAK = """if True:
    import sys, torch, posenc_ext

    def kilobytes(what):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(what + ":"))

    torch.set_num_threads(2)
    length, size = 2048, 129
    index = posenc_ext.clipped_relative_index(length, left=64)
    gather = lambda x: posenc_ext.relative_gather(x, index)
    scatter = lambda y: posenc_ext.relative_scatter(y, index, size)
    x = torch.ones(1, 1, length, size)
    scatter(gather(x))  # threads, code and stacks
    y = torch.ones(1, 8, length, length)  # and the peak so far is now
    x, op = (x.expand(1, 8, -1, -1), gather) if sys.argv[1] == "gather" else (y, scatter)
    before, code = kilobytes("VmRSS"), kilobytes("RssFile")
    result = op(x)
    dropped = max(0, code - kilobytes("RssFile"))  # pages of libraries, when memory is short
    print(kilobytes("VmHWM") - before + dropped - result.nbytes // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_peak_memory_is_the_result(op):
    """8 heads of 2048 x 2048: a table for each pair would be 64 times more."""
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(posenc_ext.__file__).parent.parent)}
    extra = int(subprocess.check_output([sys.executable, "-c", PEAK, op], env=env, text=True))
    assert -1024 < extra < 1024


# ---- rel_shift ----


@every_dtype
@pytest.mark.parametrize("options", [{}, {"k_len": 4}, {"k_len": 9, "start": 5}, {"start": -2},
                                     {"start": 2**63 - 1}, {"start": -(2**63)}])  # fmt: skip
@pytest.mark.parametrize("view", ["contiguous", "permuted", "last_stride_2"])
def test_rel_shift(dtype, options, view):
    for q_len, size in [(5, 5), (1, 7), (7, 1), (3, 12), (5, 0)]:
        x = VIEWS[view](uniform((2, 3, q_len, size), dtype))
        right = expected("rel_shift", x, **options)
        assert_bits(posenc_ext.rel_shift(x, **options), torch.from_numpy(right).to(dtype))


def test_rel_shift_golden(golden):
    def case(key):
        x = torch.tensor(golden[key]["inputs"]["x"], dtype=torch.float32)
        return x, np.array(golden[key]["expected"], dtype=np.float64)

    x, right = case("transformer_xl/rel_shift_3x4")
    hidden = np.triu(np.ones((3, 4), bool), 2)  # what the causal mask of one memory step hides
    assert hidden.sum() == 3
    np.testing.assert_array_equal(double(posenc_ext.rel_shift(x)), np.where(hidden, 0, right))
    x, right = case("xlnet/rel_shift_q2_p4_k2")
    np.testing.assert_array_equal(double(posenc_ext.rel_shift(x, 2, start=2)), right)
    x, right = case("conformer/rel_shift_T3")
    np.testing.assert_array_equal(double(posenc_ext.rel_shift(x, 3)), right)


def test_rel_shift_is_pad_and_reshape_under_the_mask():
    """As Transformer-XL writes it: a column of zeros, seen with rows one shorter."""
    q_len, memory = 6, 4
    x = uniform((2, 3, q_len, q_len + memory))
    padded = torch.cat([torch.zeros(2, 3, q_len, 1), x], -1)
    view = padded.view(2, 3, q_len + memory + 1, q_len)[:, :, 1:].reshape(x.shape)
    assert_bits(posenc_ext.rel_shift(x), view.tril(memory))


def fingerprints():
    """{case: hash} of a fixed set of calls; every instruction set must print the same."""
    found = {}
    for dtype in DTYPES:
        for kind in KINDS:
            for lengths in LENGTHS:
                index, size = index_of(kind, *lengths)
                x, y = uniform((2, lengths[0], size), dtype), uniform((2, *lengths), dtype, 1)
                found[f"{dtype} {kind} {lengths}"] = digest(
                    posenc_ext.relative_gather(x, index),
                    posenc_ext.relative_scatter(y, index, size),
                )
        found[f"{dtype} large"] = digest(*large(dtype))
    return found


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=300)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_fingerprints(fingerprints())
