"""SinusoidalPositionalEncoding: values, lengths, state dicts, dtypes, copies."""

import copy
import pickle
import re

import numpy as np
import oracle_sinusoidal as oracle
import pytest
import torch
from rope_cases import DTYPES, assert_bits, double, name, uniform

from posenc_ext import SinusoidalPositionalEncoding, add_sinusoidal


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_values(dtype):
    x = uniform((2, 5, 9), dtype)
    module = SinusoidalPositionalEncoding(9, scale=3.0, base=500.0, convention="fairseq")
    right = add_sinusoidal(x, scale=3.0, base=500.0, convention="fairseq", offset=4)
    assert_bits(module(x, offset=4), right)
    assert_bits(module.to(dtype)(x, offset=4), right)  # nothing in it to lose precision
    assert_bits(SinusoidalPositionalEncoding(9)(x[0]), add_sinusoidal(x[0]))


def test_sequence_first():
    x = uniform((5, 2, 8))
    y = SinusoidalPositionalEncoding(8, batch_first=False)(x, offset=torch.tensor([0, 70]))
    right = add_sinusoidal(x.transpose(0, 1), offset=torch.tensor([0, 70])).transpose(0, 1)
    assert_bits(y, right)
    assert y.stride() == x.stride()


def test_dropout_comes_after_the_sum():
    x = torch.zeros(4, 50, 16)
    module = SinusoidalPositionalEncoding(16, dropout=0.5)
    torch.manual_seed(0)
    y = module(x)
    torch.manual_seed(0)
    assert_bits(y, torch.nn.functional.dropout(add_sinusoidal(x), 0.5))
    assert_bits(module.eval()(x), add_sinusoidal(x))


def refused(module, *args, **options):
    with pytest.raises(IndexError, match=r"posenc_ext\.\w+: \w+ must .+, got .+") as caught:
        module(*args, **options)
    return str(caught.value)


def test_max_len_names_both_numbers():
    module = SinusoidalPositionalEncoding(8, max_len=1024)
    assert module(torch.zeros(1, 1024, 8)).shape == (1, 1024, 8)
    assert module(torch.zeros(1, 10, 8), offset=1014).shape == (1, 10, 8)
    for length, offset, end in (
        (1025, 0, 1025),
        (10, 1020, 1030),
        (10, torch.tensor([3, 1020]), 1030),
    ):
        text = refused(module, torch.zeros(2, length, 8), offset=offset)
        assert re.search(rf"\b1024\b.*\b{end}\b", text), text
        refused(module, torch.zeros(2, length, 8, device="meta"), offset=offset)
    assert "-1" in refused(module, torch.zeros(1, 2, 8), offset=-1)
    assert module(torch.zeros(1, 0, 8), offset=2000).numel() == 0


def test_no_limit_without_max_len():
    x = uniform((1, 3, 8))
    assert_bits(SinusoidalPositionalEncoding(8)(x, offset=10**7), add_sinusoidal(x, offset=10**7))


@pytest.mark.parametrize("key", ["pe", "weight", "weights", "_float_tensor"])
def test_old_checkpoints_load(key):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), SinusoidalPositionalEncoding(8))
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    old = model.state_dict() | {f"1.{key}": torch.zeros(100, 8)}
    model.load_state_dict(old, strict=True)
    assert f"1.{key}" in old
    with pytest.raises(RuntimeError, match="Unexpected"):
        model.load_state_dict(old | {"1.other": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="Unexpected"):
        model.load_state_dict(old | {f"0.{'pe'}": torch.zeros(1)})


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double"])
def test_casts_keep_it_exact(cast):
    x = uniform((1, 3000, 16))
    assert_bits(getattr(SinusoidalPositionalEncoding(16), cast)()(x), add_sinusoidal(x))


def test_copies_and_meta_construction():
    x = uniform((2, 5, 8))
    with torch.device("meta"):
        module = SinusoidalPositionalEncoding(8, max_len=16, scale=2.0)
    right = add_sinusoidal(x, scale=2.0)
    for other in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_bits(other(x), right)
        assert_bits(other.to_empty(device="cpu")(x), right)
    assert "max_len=16" in repr(module)


def test_inference_mode_then_training():
    module = SinusoidalPositionalEncoding(8)
    with torch.inference_mode():
        module(torch.zeros(1, 5, 8))
    x = torch.zeros(1, 5, 8, requires_grad=True)
    module(x).sum().backward()
    assert_bits(x.grad, torch.ones(1, 5, 8))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_padding(dtype, batch_first):
    """Positions and rows as fairseq has them; `offset` is the number of tokens before."""
    tokens = torch.tensor([[5, 6, 7, 1, 1], [1, 1, 5, 6, 7], [5, 1, 6, 7, 8]])
    positions = np.array([[2, 3, 4, 1, 1], [1, 1, 2, 3, 4], [2, 1, 3, 4, 5]])
    module = SinusoidalPositionalEncoding(
        8, convention="fairseq", padding_idx=1, batch_first=batch_first, scale=2.0, max_len=20
    )
    x = uniform((3, 5, 8), dtype).requires_grad_()
    for offset in (0, 10, torch.tensor([0, 3, 10])):
        shift = offset.numpy()[:, None] if isinstance(offset, torch.Tensor) else offset
        shifted = np.where(positions == 1, 1, positions + shift)
        table = oracle.sinusoidal_table(shifted, 8, convention="fairseq", padding_idx=1)
        if batch_first:
            y = module(x, offset=offset, tokens=tokens)
        else:
            y = module(x.transpose(0, 1), offset=offset, tokens=tokens.T).transpose(0, 1)
        assert y.dtype == dtype
        rtol = {"bfloat16": 2**-8, "float16": 2**-11}.get(name(dtype), 0)
        right = double(x) * 2 + table
        np.testing.assert_allclose(double(y), right, rtol=rtol, atol=1e-6)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert_bits(dx, torch.full_like(x, 2.0))
    short, ids = (x, tokens) if batch_first else (x.transpose(0, 1), tokens.T)
    text = refused(module, short, offset=14, tokens=ids)
    assert re.search(r"\b20\b.*\b21\b", text), text
