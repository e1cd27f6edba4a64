"""The kernels of tables of cos and sin, and of add_sinusoidal, against the CPU ops, bit for bit."""

import pytest
import torch
from rope_cases import DTYPES, VIEWS, assert_bits, name, uniform

CPU, CUDA = torch.ops.posenc_ext, torch.ops.posenc_cuda_source
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
# Around the packs of 2, 4 and 8 and the 32 frequencies of a tile.
COUNTS = [0, 1, 2, 3, 4, 8, 31, 32, 33, 64, 72]
both_orders = pytest.mark.parametrize("cos_first", [False, True], ids=["sin_first", "cos_first"])
both_layouts = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])

SHUFFLED = torch.randperm(200, generator=torch.Generator().manual_seed(0)) * 7 - 300
POSITIONS = {
    "none": torch.empty(0, dtype=torch.int64),
    "one": torch.tensor(70000),
    "row": torch.arange(130),  # more than the 64 offsets: they are shared
    "shuffled": SHUFFLED,
    "int32": SHUFFLED.int(),
    "strided": torch.arange(24).view(2, 3, 4)[..., ::2].transpose(0, 1),
    "expanded": torch.tensor([[5], [2**31 - 1]], dtype=torch.int32).expand(2, 3),
    "float": torch.tensor([0.0, -0.5, 63.0, 64.0, 1e6 + 0.25, 3e30]),
    "double": torch.tensor([0.1, -63.0, float("nan"), float("inf"), 2.0**53, 1e18]).double(),
    "bfloat16": torch.tensor([1.5, 96.0, -2.0]).bfloat16(),
    "float16": torch.tensor([1.5, 97.0, -2.0]).half(),
    "extreme": torch.tensor([-(2**63), 2**63 - 1, -1, 2**62]),
}


def frequencies(count, dim=128):
    return 10000.0 ** (torch.arange(count, dtype=torch.float64) * -2 / dim)


def check(op, *arguments):
    right, actual = (getattr(library, op)(*arguments) for library in (CPU, CUDA))
    single = isinstance(right, torch.Tensor)
    for a, r in zip([actual] if single else actual, [right] if single else right, strict=True):
        assert a.stride() == r.stride()
        assert_bits(a, r)


def widths(count):
    """Columns of rows with so many frequencies."""
    return sorted({max(2 * count - 1, 0), 2 * count, 2 * count + 1})


@each_dtype
@pytest.mark.parametrize("positions", POSITIONS)
def test_rope_table(positions, dtype):
    for count in COUNTS:
        check("rope_table", POSITIONS[positions], frequencies(count), 1.0, dtype)
    check("rope_table", POSITIONS[positions], frequencies(128)[::2], 0.1 * 3, dtype)
    check("rope_table", POSITIONS[positions], frequencies(1).expand(8), 1.0, dtype)


@both_orders
@both_layouts
@each_dtype
@pytest.mark.parametrize("positions", POSITIONS)
def test_sinusoidal_table(positions, dtype, interleaved, cos_first):
    for count in (0, 1, 3, 8, 32, 33):
        for dim in widths(count):
            check(
                "sinusoidal_table", POSITIONS[positions], frequencies(count), dim, interleaved,
                cos_first, dtype,
            )  # fmt: skip


@each_dtype
def test_tables_of_more_rows_than_one_run(dtype):
    """Rows that are shared out among blocks and walks, and more than 65535 of them."""
    check("rope_table", torch.arange(-65600, 65600), frequencies(4), 1.0, dtype)
    check("rope_table", torch.arange(4200), frequencies(72), 1.0, dtype)
    check("rope_table", torch.arange(1), frequencies(65600), 1.0, dtype)


@each_dtype
@pytest.mark.parametrize("count", [0, 1, 448, 449, 1000, 65600])
def test_sinusoidal_frequencies(count, dtype):
    check("sinusoidal_frequencies", torch.empty(2, dtype=dtype), count, 10000.0, 64.0)


@both_orders
@both_layouts
@each_dtype
def test_add_sinusoidal_of_every_width(dtype, interleaved, cos_first):
    for count in (0, 1, 3, 8, 32, 33):
        for dim in widths(count):
            options = (frequencies(count), None, 3, 0.7, interleaved, cos_first)
            check("add_sinusoidal", uniform((3, 5, dim), dtype), *options)
            check("add_sinusoidal", uniform((67, dim), dtype, 1), *options)


@both_layouts
@each_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_add_sinusoidal_on_every_view(view, dtype, interleaved):
    for dim in (32, 30):
        x = VIEWS[view](uniform((2, 5, 3, dim), dtype))
        options = (frequencies(dim // 2), None, -2, 1.0, interleaved, False)
        check("add_sinusoidal", x[:, :, 1], *options)
        check("add_sinusoidal", x[1], *options)


@each_dtype
def test_add_sinusoidal_offsets(dtype):
    x = uniform((3, 70, 16), dtype)
    x[0, 0, :4] = torch.tensor([-0.0, float("nan"), float("inf"), -float("inf")], dtype=dtype)
    several = torch.tensor([5, -7, 2**62, 0, 1, 2])
    for offsets in (several[:3], several[::2], several[:2].int()[1:].expand(3), several[0]):
        check("add_sinusoidal", x, frequencies(8), offsets, 0, 1.0, True, False)
        check("add_sinusoidal", x, frequencies(16)[::2], offsets, 0, -3.5, False, True)


@pytest.mark.parametrize(
    "size", [(65600, 1, 4), (1, 65600, 4), (1, 1, 131300), (65600, 1, 3)], ids=str
)
def test_more_than_65535_of_everything(size):
    x, count = uniform(size, torch.float16), size[-1] // 2
    check("add_sinusoidal", x, frequencies(count), None, 9, 1.0, True, False)
    if size[0] < 65600:
        return
    offsets = torch.arange(size[0])
    check("add_sinusoidal", x[:2000], frequencies(count), offsets[:2000], 0, 1.0, False, False)


@each_dtype
def test_offsets_past_2_to_the_31(dtype):
    """In the stride of every dimension; only a few pages of the buffer are ever touched."""
    far = 2**31 + 64
    buffer = torch.empty(far + 4096, dtype=dtype)
    for size, strides in [
        ((2, 3, 16), (far, 16, 1)),
        ((1, 2, 16), (0, far, 1)),
        ((1, 3, 2), (0, 16, far)),
    ]:
        x = buffer.as_strided(size, strides)
        x.copy_(uniform(size, dtype))
        right = CPU.add_sinusoidal(x.clone(), frequencies(size[-1] // 2), None, 1, 1.0, True, True)
        actual = CUDA.add_sinusoidal(x, frequencies(size[-1] // 2), None, 1, 1.0, True, True)
        assert_bits(actual, right)


def test_offsets_out_of_range_stop_the_kernel():
    x = torch.ones(2, 3, 8)
    for offsets in (torch.tensor([0, 2**62 + 1]), torch.tensor([-(2**62) - 1, 0])):
        with pytest.raises(RuntimeError, match=r"offset must be between -2\^62 and 2\^62"):
            CUDA.add_sinusoidal(x, frequencies(4), offsets, 0, 1.0, True, False)
    with pytest.raises(ValueError, match=r"offset must be between -2\^62 and 2\^62"):
        CUDA.add_sinusoidal(x, frequencies(4), None, 2**62 + 1, 1.0, True, False)


@each_dtype
def test_bytes_moved_are_the_fewest(dtype):
    """Outputs once, and x once; positions and frequencies once for each thread that needs them."""

    def moved(op, *arguments):
        CUDA.traffic()
        getattr(CUDA, op)(*arguments)
        return CUDA.traffic()

    table = 2 * 2048 * 64 * torch.empty(0, dtype=dtype).element_size()
    read, written = moved("rope_table", torch.arange(2048), frequencies(64), 1.0, dtype)
    assert written == table
    x = uniform((16, 256, 128), dtype)
    read, written = moved("add_sinusoidal", x, frequencies(64), None, 0, 1.0, True, False)
    assert written == x.nbytes
    assert x.nbytes <= read <= x.nbytes + 3 * 256 * 64 * 8 < 2 * x.nbytes
