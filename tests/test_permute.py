"""The two orders of channels: inverse of each other, and the same rotation."""

import pytest
import torch
from rope_cases import DTYPES, assert_bits, name, table, uniform

import posenc_ext
from posenc_ext import apply_rope, half_to_interleaved, interleaved_to_half, rope


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("rotary", [0, 2, 6, 32, 40])
def test_rotation_commutes_with_the_order(rotary, dtype):
    x = uniform((2, 5, 3, 40), dtype)
    cos, sin = table(rotary // 2)
    interleaved = rope(x, cos, sin, interleaved=True)
    half = half_to_interleaved(rope(interleaved_to_half(x, rotary), cos, sin), rotary)
    assert_bits(interleaved, half)
    other = interleaved_to_half(
        rope(half_to_interleaved(x, rotary), cos, sin, interleaved=True), rotary
    )
    assert_bits(rope(x, cos, sin), other)


@pytest.mark.parametrize("rotary", [0, 2, 6, 8, 10])
def test_orders_undo_each_other_and_keep_the_tail(rotary):
    x = torch.arange(10)
    half = interleaved_to_half(x, rotary)
    pairs = list(range(rotary))
    assert half.tolist() == pairs[0::2] + pairs[1::2] + list(range(rotary, 10))
    assert half_to_interleaved(half, rotary).tolist() == x.tolist()
    assert interleaved_to_half(half_to_interleaved(x, rotary), rotary).tolist() == x.tolist()


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_any_axis_with_several_heads(dim):
    w = torch.randn(12, 12)
    moved = interleaved_to_half(w, 4, dim=dim, head_dim=6)
    heads = w.movedim(dim, -1).unflatten(-1, (2, 6))
    right = interleaved_to_half(heads, 4).flatten(-2).movedim(-1, dim)
    assert_bits(moved, right)


def test_a_projection_is_converted_by_its_rows():
    """An interleaved checkpoint, run by a model that rotates halves: the same scores."""
    heads, d, rotary = 3, 8, 6
    weight, bias = torch.randn(2, heads * d, 16), torch.randn(2, heads * d)
    x = torch.randn(2, 7, 16)
    cos, sin = table(rotary // 2)

    def scores(weight, bias, interleaved):
        q, k = ((x @ w.T + b).unflatten(-1, (heads, d)) for w, b in zip(weight, bias, strict=True))
        q, k = apply_rope(q, k, cos, sin, interleaved=interleaved)
        return torch.einsum("bqhd,bkhd->bhqk", q, k)

    rows = interleaved_to_half(weight, rotary, dim=1, head_dim=d)
    torch.testing.assert_close(
        scores(weight, bias, True),
        scores(rows, interleaved_to_half(bias, rotary, head_dim=d), False),
        rtol=1e-5,
        atol=1e-4,
    )


def test_gradient_is_the_inverse_order():
    x = torch.randn(3, 8, requires_grad=True)
    g = torch.randn(3, 8)
    interleaved_to_half(x, 6).backward(g)
    assert_bits(x.grad, half_to_interleaved(g, 6))


def test_deepseek_writes_halves(golden):
    case = golden["apply/deepseek_interleaved_in_half_out"]
    x = torch.tensor([case["inputs"]["x"]], dtype=torch.float64)
    cos, sin = posenc_ext.rope_table(
        4, posenc_ext.rope_frequencies(8).inv_freq, dtype=torch.float64
    )
    y = rope(interleaved_to_half(x, 8), cos, sin, layout="sd", offset=case["inputs"]["pos"])
    torch.testing.assert_close(
        y[0], torch.tensor(case["expected"], dtype=torch.float64), rtol=0, atol=1e-14
    )


def test_empty():
    assert interleaved_to_half(torch.empty(0, 8), 8).shape == (0, 8)
    assert half_to_interleaved(torch.empty(3, 0), 0).shape == (3, 0)


@pytest.mark.parametrize("op", [interleaved_to_half, half_to_interleaved])
def test_refusals(op):
    w = torch.zeros(2, 8)
    where = f"posenc_ext.{op.__name__}: "
    with pytest.raises(TypeError, match=where + "w must be a tensor, got list"):
        op([1], 0)
    with pytest.raises(TypeError, match=where + "rotary_dim must be an int, got float"):
        op(w, 2.0)
    for rotary in (3, 10, -2):
        with pytest.raises(ValueError, match=where + r"rotary_dim must be even.*8, got"):
            op(w, rotary)
    with pytest.raises(ValueError, match=where + r"dim must be an axis of w \[2, 8\], got 2"):
        op(w, 2, dim=2)
    with pytest.raises(ValueError, match=where + r"head_dim must divide axis -1 .* got 3"):
        op(w, 2, head_dim=3)
    with pytest.raises(ValueError, match=where + r"head_dim must divide axis -1 .* got 0"):
        op(w, 0, head_dim=0)
