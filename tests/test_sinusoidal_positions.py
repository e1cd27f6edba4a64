"""Positions given to add_sinusoidal and its module, as the learned encoding takes them."""

import pytest
import torch
from rope_cases import DTYPES, assert_bits, name, uniform

from posenc_ext import SinusoidalPositionalEncoding, add_sinusoidal, sinusoidal_table


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 5)])
def test_values(dtype, shape):
    x = uniform((2, 5, 9), dtype)
    positions = torch.randint(-70, 2**30, shape)
    options = {"base": 500.0, "convention": "fairseq"}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    table = sinusoidal_table(positions, 9, dtype=wide, **options)
    right = (x.to(wide) * 3.0 + table).to(dtype)
    assert_bits(add_sinusoidal(x, positions=positions, scale=3.0, **options), right)
    module = SinusoidalPositionalEncoding(9, scale=3.0, **options)
    assert_bits(module(x, positions=positions), right)
    swapped = SinusoidalPositionalEncoding(9, scale=3.0, batch_first=False, **options)
    given = positions.t() if positions.dim() == 2 else positions
    assert_bits(swapped(x.transpose(0, 1), positions=given).transpose(0, 1), right)


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8), (2, 0, 8)])
def test_those_of_an_offset_give_its_bits(shape):
    x = uniform(shape)
    positions = torch.arange(7, 7 + shape[-2])
    assert_bits(add_sinusoidal(x, positions=positions), add_sinusoidal(x, offset=7))


def test_gradients_and_transforms():
    x = uniform((2, 3, 6), torch.float64).requires_grad_()
    positions = torch.tensor([[0.5, 7.0, 3.25], [1.0, -2.0, 9.0]], dtype=torch.float64)
    positions.requires_grad_()

    def f(x, positions):
        return add_sinusoidal(x, positions=positions, scale=1.5)

    assert torch.autograd.gradcheck(f, (x, positions), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (x, positions))
    x, positions = x.detach().float(), positions.detach().float()
    right = f(x, positions)
    assert_bits(torch.func.vmap(f)(x, positions), right)
    assert_bits(torch.compile(f, fullgraph=True, backend="aot_eager")(x, positions), right)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"positions": torch.arange(4)},
            ValueError,
            r"positions must have shape \[S\] or \[B, S\]",
        ),
        (
            {"positions": torch.arange(5), "offset": 1},
            ValueError,
            "positions must be None with off",
        ),
        ({"positions": [0, 1, 2, 3, 4]}, TypeError, "positions must be a tensor, got list"),
        ({"positions": torch.ones(5) > 0}, TypeError, "positions must be int32, int64 or floating"),
    ],
)
def test_refusals(options, kind, text):
    x = uniform((2, 5, 8))
    for call in (add_sinusoidal, SinusoidalPositionalEncoding(8)):
        with pytest.raises(kind, match=text):
            call(x, **options)


def test_max_len_and_padding():
    x, module = uniform((2, 5, 8)), SinusoidalPositionalEncoding(8, max_len=9)
    module(x, positions=torch.arange(4, 9))
    for positions in (torch.arange(5, 10), torch.arange(-1, 4)):
        with pytest.raises(IndexError, match="positions must be from 0 to max_len - 1 = 8"):
            module(x, positions=positions)
    padded = SinusoidalPositionalEncoding(8, padding_idx=1)
    with pytest.raises(ValueError, match="positions must be None with tokens"):
        padded(x, positions=torch.arange(5), tokens=torch.ones(2, 5).long())
