"""add_sinusoidal: values, views, offsets, gradients of every kind."""

import math

import numpy as np
import oracle_sinusoidal as oracle
import pytest
import torch
from rope_cases import DTYPES, VIEWS, assert_bits, double, name, threads, uniform
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from posenc_ext import add_sinusoidal, sinusoidal_table

every_convention = pytest.mark.parametrize("convention", oracle.CONVENTIONS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
# x in [-2, 2], scale 1.5, table in [-1, 1]: one product and one sum below 4, then one rounding.
TOLERANCE = {
    "float64": (0, 1e-13),
    "float32": (0, 6e-7),
    "float16": (2**-11, 6e-7),
    "bfloat16": (2**-8, 6e-7),
}


def eager(x, offset=0, scale=1.0, **options):
    """x * scale + table in float32 (float64 for float64 x), rounded to the dtype of x."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    steps = torch.arange(x.shape[-2])
    positions = (
        offset + steps if isinstance(offset, int) or not offset.dim() else (offset[:, None] + steps)
    )
    table = sinusoidal_table(positions, x.shape[-1], dtype=wide, **options)
    return (x.to(wide) * scale + table).to(x.dtype)


@every_convention
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 8, 29, 64, 127, 128])
@every_dtype
def test_oracle_and_eager(dtype, dim, convention):
    for shape, offset in (((2, 5, dim), 3), ((5, dim), -2)):
        x = uniform(shape, dtype)
        y = add_sinusoidal(x, offset=offset, scale=1.5, convention=convention)
        right = oracle.add_sinusoidal(double(x), offset=offset, scale=1.5, convention=convention)
        rtol, atol = TOLERANCE[name(dtype)]
        np.testing.assert_allclose(double(y), right, rtol=rtol, atol=atol)
        assert_bits(y, eager(x, offset, 1.5, convention=convention))


@pytest.mark.parametrize("view", VIEWS)
@every_dtype
def test_views(dtype, view):
    for dim in (7, 64):
        x = VIEWS[view](uniform((3, 9, dim), dtype))
        y = add_sinusoidal(x, offset=60, scale=0.3)
        assert_bits(y, eager(x.contiguous(), 60, 0.3))
        if view in ("contiguous", "transposed", "permuted", "odd_offset"):  # the dense ones
            assert y.stride() == x.stride()


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0), (0, 8)], ids=str)
def test_empty(shape):
    x = torch.zeros(shape, requires_grad=True)
    y = add_sinusoidal(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize(
    "offset",
    [
        torch.tensor([3, 100, -70]),
        torch.tensor([3, 0, 2**31 - 1], dtype=torch.int32),
        torch.tensor([1, 9, 2, 9, 3, 9])[::2],
        torch.tensor(5),
        2**40,
        -(2**40),
    ],
    ids=str,
)
def test_offsets(offset):
    x = uniform((3, 70, 24))
    y = add_sinusoidal(x, offset=offset)
    assert_bits(y, eager(x, offset))
    for b in range(3):
        start = offset if isinstance(offset, int) else int(offset.expand(3)[b])
        assert_bits(y[b, 30:31], add_sinusoidal(x[b, 30:31], offset=start + 30))


def test_a_batch_of_one_and_scale_of_the_article():
    x = uniform((1, 7, 512))
    assert_bits(add_sinusoidal(x, scale=math.sqrt(512)), eager(x, scale=math.sqrt(512)))
    assert_bits(add_sinusoidal(x, offset=torch.tensor([4])), eager(x, 4))
    assert_bits(add_sinusoidal(x, base=500000.0), eager(x, base=500000.0))


@pytest.mark.parametrize("shape", [(2, 1500, 48), (3, 40, 2500), (2500, 9)], ids=str)
@every_dtype
def test_long_and_wide(shape, dtype):
    """Several tiles of rows, several threads, and the rows of offsets made beforehand."""
    x = uniform(shape, dtype)
    right = eager(x, 33)
    for count in (1, 2, 3):
        with threads(count):
            assert_bits(add_sinusoidal(x, offset=33), right)


def test_input_is_left_alone():
    x = uniform((2, 5, 8))
    before, version = x.clone(), x._version
    y = add_sinusoidal(x)
    assert_bits(x, before)
    assert x._version == version
    assert y.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("grad", ["dense", "expanded", "transposed"])
@every_dtype
def test_gradient(dtype, grad):
    x = uniform((2, 5, 6), dtype).requires_grad_()
    y = add_sinusoidal(x, scale=1.5)
    upstream = {
        "dense": uniform((2, 5, 6), dtype, 1),
        "expanded": torch.ones((), dtype=dtype).expand(2, 5, 6),
        "transposed": uniform((2, 6, 5), dtype, 1).transpose(1, 2),
    }[grad]
    (dx,) = torch.autograd.grad(y, x, upstream)
    assert_bits(dx, upstream * 1.5)


def test_gradients_of_every_order():
    x = uniform((2, 3, 5), torch.float64).requires_grad_()
    call = lambda x: add_sinusoidal(x, scale=1.5, offset=torch.tensor([1, 9]))  # noqa: E731
    assert gradcheck(call, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda x: call(x) ** 3, x)


def test_forward_mode_and_torch_func():
    x, dx = uniform((2, 3, 5)), uniform((2, 3, 5), seed=1)
    with forward_ad.dual_level():
        y, dy = forward_ad.unpack_dual(add_sinusoidal(forward_ad.make_dual(x, dx), scale=2.0))
        assert_bits(y, eager(x, scale=2.0))
        assert_bits(dy, dx * 2)
    y, dy = torch.func.jvp(lambda x: add_sinusoidal(x, scale=2.0), (x,), (dx,))
    assert_bits(y, eager(x, scale=2.0))
    assert_bits(dy, dx * 2)
    grad = torch.func.grad(lambda x: (add_sinusoidal(x, scale=2.0) ** 2).sum())(x)
    assert_bits(grad, 4 * eager(x, scale=2.0))


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_vmap(batch):
    x = uniform((3, *batch, 4, 6))
    assert_bits(torch.vmap(add_sinusoidal)(x), torch.stack([add_sinusoidal(e) for e in x]))
    back = torch.vmap(add_sinusoidal, in_dims=-1)(x.movedim(0, -1))
    assert_bits(back, torch.stack([add_sinusoidal(e) for e in x]))
    offsets = torch.arange(3 * math.prod(batch)).view(3, *batch) * 7
    call = lambda x, offset: add_sinusoidal(x, offset=offset)  # noqa: E731
    each = torch.stack([call(e, o) for e, o in zip(x, offsets, strict=True)])
    assert_bits(torch.vmap(call)(x, offsets), each)
    one = torch.stack([call(x[0], o) for o in offsets])
    assert_bits(torch.vmap(call, in_dims=(None, 0))(x[0], offsets), one)
    per_sample = torch.vmap(torch.func.grad(lambda x: (add_sinusoidal(x) ** 2).sum()))(x)
    assert_bits(per_sample, 2 * torch.stack([add_sinusoidal(e) for e in x]))


@every_convention
@pytest.mark.parametrize("dim", [1, 5, 6])
def test_gradient_of_positions(dim, convention):
    positions = torch.tensor([0.5, -3.0, 70.25], dtype=torch.float64, requires_grad=True)
    call = lambda p: sinusoidal_table(p, dim, dtype=torch.float64, convention=convention)  # noqa: E731
    assert_bits(call(positions).detach(), call(positions.detach()))
    assert gradcheck(call, positions, check_forward_ad=True)
    assert gradgradcheck(call, positions)


@every_convention
@every_dtype
def test_both_ways_to_a_table_give_the_same_bits(dtype, convention):
    """With a gradient the table is put together from that of rope."""
    positions = torch.arange(-70.0, 70.0)
    for dim in (0, 1, 2, 7, 64):
        call = {"dim": dim, "convention": convention, "dtype": dtype}
        kernel = sinusoidal_table(positions, **call)
        composed = sinusoidal_table(positions.clone().requires_grad_(), **call)
        assert_bits(composed.detach(), kernel)
        assert composed.stride() == kernel.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rows_that_a_thread_keeps_are_those_of_the_call(dtype):
    """Other widths, conventions and places by turns; step by step; back; far off; negative."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    calls = [(0, 4), (0, 4), (2, 1), (3, 1), (4, 1), (5, 1), (36, 1), (37, 3), (0, 70), (-5, 9)]
    calls += [(2**40, 2), (1, 4), (40, 2)]
    for offset, length in calls:
        for dim, convention in ((8, "interleaved"), (7, "fairseq"), (8, "fairseq"), (6, "musicgen"),
                                (9, "interleaved")):  # fmt: skip
            x = torch.randn(2, length, dim, dtype=torch.float64).to(dtype)
            at = torch.arange(length) + offset
            rows = sinusoidal_table(at, dim, convention=convention, dtype=wide)
            for given in (offset, torch.tensor(offset)):
                y = add_sinusoidal(x, offset=given, scale=2.5, convention=convention)
                assert torch.equal(y, (x.to(wide) * 2.5 + rows).to(dtype))
