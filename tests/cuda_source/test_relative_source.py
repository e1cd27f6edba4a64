"""The relative kernels against the CPU ops, bit for bit."""

import pytest
import torch
from relative_cases import KINDS, LENGTHS, index_of
from rope_cases import DTYPES, VIEWS, assert_bits, name, uniform

CPU, CUDA = torch.ops.posenc_ext, torch.ops.posenc_cuda_source
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
EMPTY = [(0, 5), (5, 0), (0, 0), (0, 1)]


def check(op, *arguments):
    right, actual = (getattr(library, op)(*arguments) for library in (CPU, CUDA))
    assert actual.stride() == right.stride()
    assert_bits(actual, right)


def check_both(rows, k_len, index, size, dtype, view=torch.clone):
    """rows: [..., Q]."""
    check("relative_gather", view(uniform((*rows, size), dtype)), index, k_len)
    check("relative_scatter", view(uniform((*rows, k_len), dtype, 1)), index, size)


@each_dtype
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", LENGTHS + EMPTY, ids=str)
def test_every_index_and_length(lengths, kind, dtype):
    q_len, k_len = lengths
    index, size = index_of(kind, q_len, k_len)
    check_both((2, 3, q_len), k_len, index, size, dtype)
    check_both((q_len,), k_len, index.int(), size, dtype)
    check_both((0, q_len), k_len, index.repeat_interleave(2)[::2], size, dtype)


@each_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_every_view(view, dtype):
    for k_len in (16, 13):
        index, size = index_of("waves", 5, k_len)
        check_both((2, 3, 5), k_len, index, size, dtype, VIEWS[view])


@each_dtype
def test_more_columns_than_a_block_holds(dtype):
    """512 of them, 256 in double; and rows in groups of every size."""
    for k_len in (256, 255, 600, 1100):
        index, size = index_of("shifted", 3, k_len)
        check_both((2, 3), k_len, index, size, dtype)
        check_both((2, 3), k_len, index % 7, size, dtype)
    for size in (32, 33, 100, 511, 512, 513):
        check_both((3, 7), 40, torch.arange(46) * 13 % size, size, dtype)


@each_dtype
def test_no_columns(dtype):
    none = torch.full((6,), -1)
    check("relative_gather", uniform((2, 3, 0), dtype), none, 4)
    check("relative_scatter", uniform((2, 3, 4), dtype), none, 0)


@pytest.mark.parametrize("rows", [(65600, 1, 1), (1, 65600, 1), (65600,)], ids=str)
def test_more_than_65535_of_everything(rows):
    check_both(rows, 3, torch.arange(rows[-1] + 2) % 5, 5, torch.float16)


def test_more_than_65535_keys_and_columns():
    index = torch.arange(65602)
    check("relative_gather", uniform((2, 65602), torch.bfloat16), index, 65601)
    check("relative_scatter", uniform((2, 65601), torch.bfloat16), index % 6, 6)


@each_dtype
def test_offsets_past_2_to_the_31(dtype):
    """In the stride of every dimension; only a few pages of the buffer are ever touched."""
    far = 2**31 + 64
    buffer = torch.empty(far + 4096, dtype=dtype)
    for size, strides in [
        ((2, 3, 8), (far, 8, 1)),
        ((1, 2, 8), (0, far, 1)),
        ((3, 1, 2), (8, 0, far)),
    ]:
        x = buffer.as_strided(size, strides)
        x.copy_(uniform(size, dtype))
        index = torch.arange(size[1] + size[2] - 1) % size[2]
        check("relative_gather", x, index, size[2])
        check("relative_scatter", x, index, size[2])


@each_dtype
def test_special_values(dtype):
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3.0, -3.0])
    x = special.to(dtype).repeat(3, 1)
    index = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 1, 1])
    check("relative_gather", x, index, 8)
    check("relative_scatter", x, index, 8)
    check("relative_scatter", x[:, 1:3], index[:4], 8)


def test_rows_of_many_dimensions():
    """More than six dimensions that do not follow from each other are copied first."""
    x = uniform((2,) * 7 + (3, 4), torch.float32)
    for dims in (range(7), reversed(range(7)), (2, 0, 1, 5, 4, 6, 3)):
        view = x.permute(*dims, 7, 8)[..., ::2, :]
        check("relative_gather", view, torch.tensor([0, 3, -1, 2, 1]), 4)
        check("relative_scatter", view, torch.tensor([0, 3, -1, 2, 1]), 5)


@pytest.mark.parametrize("bad", [-2, 4, 2**40])
def test_an_index_outside_the_table_stops_the_kernel(bad):
    index = torch.tensor([0, 1, bad, 2, 3])
    x = uniform((2, 3, 4), torch.float32)
    for call in (
        lambda: CUDA.relative_gather(x, index, 3),
        lambda: CUDA.relative_scatter(x[..., :3], index, 4),
    ):
        with pytest.raises(RuntimeError, match="index must be from -1 to T - 1"):
            call()


@each_dtype
def test_bytes_moved_are_the_fewest(dtype):
    """A result is written once, and the y of a scatter read once. Besides, an index for each cell
    of a scatter, of one head for a gather; and the column it names, which is in the caches."""
    index, size = index_of("buckets", 64, 128)
    x, y = uniform((4, 64, size), dtype), uniform((4, 64, 128), dtype)
    cells = y.numel()

    def moved(op, *arguments):
        CUDA.traffic()
        getattr(CUDA, op)(*arguments)
        return CUDA.traffic()

    assert moved("relative_gather", x, index, 128) == (2 * cells + y.nbytes, y.nbytes)
    assert moved("relative_scatter", y, index, size) == (8 * cells + y.nbytes, x.nbytes)
