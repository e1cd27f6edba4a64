"""Positions with several axes: M-RoPE and vision grids."""

import math

import numpy as np
import oracle
import pytest
import torch
from rope_cases import assert_bits, double, uniform

from posenc_ext import (
    apply_rope,
    axial_frequencies,
    axial_positions,
    axial_rope_table,
    mrope_axes,
    mrope_position_ids,
    rope_frequencies,
    rope_table,
)

CHUNKED = [16, 24, 24]
WOVEN = mrope_axes([24, 20, 20], "interleaved")
INV_FREQ = rope_frequencies(128, 1e6).inv_freq


def letters(axes):
    return "".join("THW"[a] for a in axes.tolist())


def test_axis_maps(golden):
    for case, order in (
        ("chunked", "chunked"),
        ("interleaved", "interleaved"),
        ("interleaved_qwen3.5", "interleaved"),
    ):
        case = golden[f"mrope/axis_map_{case}"]
        assert letters(mrope_axes(case["inputs"]["mrope_section"], order)) == case["expected"]
    ernie = letters(mrope_axes([22, 22, 20], "ernie"))
    assert ernie == "HW" * 22 + "T" * 20


@pytest.mark.parametrize("precision", ["exact", "float32"])
@pytest.mark.parametrize(
    "sections",
    [CHUNKED, WOVEN, mrope_axes([22, 22, 20], "ernie")],
    ids=["chunked", "woven", "ernie"],
)
def test_text_has_the_bits_of_one_axis(sections, precision):
    positions = torch.tensor([[0, 1, 2, 131071], [7, 2**31 - 1, 5, 3]])
    mixed = rope_table(positions.expand(3, 2, 4), INV_FREQ, sections=sections, precision=precision)
    for actual, right in zip(
        mixed, rope_table(positions, INV_FREQ, precision=precision), strict=True
    ):
        assert_bits(actual, right)


@pytest.mark.parametrize("sections", [CHUNKED, WOVEN], ids=["chunked", "woven"])
def test_each_frequency_takes_its_axis(sections):
    positions = torch.randint(0, 1000, (3, 2, 5), generator=torch.Generator().manual_seed(0))
    cos, sin = rope_table(positions, INV_FREQ, sections=sections, dtype=torch.float64)
    axes = sections if isinstance(sections, torch.Tensor) else mrope_axes(sections)
    chosen = double(positions)[axes.numpy()].transpose(1, 2, 0)  # [B, S, R/2]
    angle = chosen * double(INV_FREQ)
    np.testing.assert_allclose(double(cos), np.cos(angle), rtol=0, atol=1e-12)
    np.testing.assert_allclose(double(sin), np.sin(angle), rtol=0, atol=1e-12)
    q = uniform((2, 5, 3, 128))
    rotated, _ = apply_rope(q, None, cos.float(), sin.float())
    right = oracle.rope(double(q), double(cos.float()), double(sin.float()))
    np.testing.assert_allclose(double(rotated), right, rtol=0, atol=4e-7)


def test_gradients_reach_frequencies_and_positions():
    f = rope_frequencies(8).inv_freq.requires_grad_()
    p = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for sections in ([1, 1, 2], mrope_axes([2, 1, 1], "interleaved")):
        assert torch.autograd.gradcheck(
            lambda p, f, s=sections: rope_table(p, f, sections=s, dtype=torch.float64), (p, f)
        )


def test_compiled():
    def build(positions):
        return rope_table(positions, INV_FREQ, sections=CHUNKED)

    positions = torch.arange(12).view(3, 1, 4)
    compiled = torch.compile(build, fullgraph=True, backend="eager")(positions)
    for actual, right in zip(compiled, build(positions), strict=True):
        assert_bits(actual, right)


def test_position_ids(golden):
    case = golden["mrope/position_ids"]
    given = case["inputs"]
    ids, delta = mrope_position_ids(
        [given["text"], given["image_grid_thw"], given["text2"]],
        spatial_merge_size=given["spatial_merge_size"],
    )
    assert ids.dtype == torch.int64
    assert ids.tolist() == case["expected"]["position_ids"]
    assert delta == case["expected"]["delta"]


def test_position_ids_of_video():
    ids, delta = mrope_position_ids([1, (3, 2, 2)], time_interval=1.5)
    assert ids[0].tolist() == [0] + [1] * 4 + [2] * 4 + [4] * 4
    assert ids[1].tolist() == [0] + [1, 1, 2, 2] * 3
    assert delta == 5 - 13
    assert mrope_position_ids([])[0].shape == (3, 0)


def test_refusals():
    p = torch.zeros(3, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"sections must cover R/2 = 64 frequencies, got 60"):
        rope_table(p, INV_FREQ, sections=[20, 20, 20])
    with pytest.raises(ValueError, match=r"positions must be a tensor \[3, ...\].*got \[2, 4\]"):
        rope_table(p[:2], INV_FREQ, sections=CHUNKED)
    with pytest.raises(ValueError, match=r"positions must be a tensor \[3, ...\].*got 5"):
        rope_table(5, INV_FREQ, sections=CHUNKED)
    with pytest.raises(ValueError, match=r"sections must be sizes.*got torch.float32 \[64\]"):
        rope_table(p, INV_FREQ, sections=torch.zeros(64))
    with pytest.raises(ValueError, match=r"sections must name axes from 0 on, got -1"):
        rope_table(p, INV_FREQ, sections=WOVEN - 1)
    with pytest.raises(TypeError, match="sections must be a list of sizes or a tensor, got str"):
        rope_table(p, INV_FREQ, sections="thw")
    with pytest.raises(ValueError, match="order must be one of"):
        mrope_axes([1], "woven")
    with pytest.raises(ValueError, match=r"room to interleave axis 1, got \[1, 3, 0\]"):
        mrope_axes([1, 3, 0], "interleaved")
    with pytest.raises(ValueError, match=r"\[h, w, t\] with h = w"):
        mrope_axes([1, 3, 0], "ernie")
    with pytest.raises(ValueError, match=r"h and w divided by 2, got \[1, 3, 4\]"):
        mrope_position_ids([(1, 3, 4)], spatial_merge_size=2)
    with pytest.raises(ValueError, match="segments must not be negative, got -1"):
        mrope_position_ids([-1])
    for wrong in (None, 5, "12"):
        with pytest.raises(TypeError, match=r"posenc_ext\.mrope_axes: sections must be a list"):
            mrope_axes(wrong)
        with pytest.raises(TypeError, match=r"posenc_ext\.mrope_position_ids: segments must "):
            mrope_position_ids(wrong)


# Vision grids.


def angles(positions, inv_freq):
    n = len(inv_freq) // 2
    return torch.cat(
        [p.double().unsqueeze(-1) * f for p, f in zip(positions, inv_freq.split(n), strict=True)],
        -1,
    )


def check(positions, inv_freq, right):
    right = torch.tensor(right, dtype=torch.float64)
    torch.testing.assert_close(angles(positions, inv_freq), right, rtol=1e-13, atol=1e-15)


def test_axial_golden(golden):
    def at(variant, height, width, index, **options):
        return axial_positions(height, width, variant, **options)[:, index]

    wanted = golden["axial/qwen2vl_vision_d8"]["expected"]["angles_half"]
    check(at("qwen2_vl", 4, 6, 2 * 6 + 3), axial_frequencies(8), wanted)
    wanted = golden["axial/pixtral_d8"]["expected"]["angles_half"]
    check(at("pixtral", 4, 6, 2 * 6 + 3), axial_frequencies(8, "pixtral"), wanted)
    wanted = golden["axial/llama4_vision_d8_grid4"]["expected"]["angles_pairs"]
    check(at("llama4", 4, 4, 6), axial_frequencies(8, "llama4"), wanted)
    wanted = golden["axial/sam2_d8_4x3"]["expected"]["angles_pairs"]
    check(at("sam2", 3, 4, 7), axial_frequencies(8, "sam2"), wanted)
    wanted = golden["axial/eva02_d8_pt16_ft24"]["expected"]["angles_pairs"]
    check(at("eva02", 24, 24, 2 * 24 + 3), axial_frequencies(8, "eva02"), wanted)
    wanted = golden["axial/dinov3_d8_2x3"]["expected"]["angles_half"]
    check(axial_positions(2, 3, "dinov3"), axial_frequencies(8, "dinov3"), wanted)
    wanted = golden["axial/pixel_freqs"]["expected"]
    frequencies = axial_frequencies(16, "pixel", base=10)
    np.testing.assert_allclose(frequencies[:4], wanted, rtol=1e-13)
    np.testing.assert_allclose(frequencies[4:], wanted, rtol=1e-13)


def test_axial_table_and_tokens_that_do_not_rotate():
    cos, sin, _ = axial_rope_table(3, 4, 8, "llama4", before=2, after=1, dtype=torch.float64)
    assert cos.shape == sin.shape == (15, 4)
    still = [0, 1, 14]
    assert cos[still].eq(1).all()
    assert sin[still].eq(0).all()
    angle = angles(axial_positions(3, 4, "llama4"), axial_frequencies(8, "llama4"))
    torch.testing.assert_close(cos[2:14], angle.cos(), rtol=0, atol=1e-15)
    torch.testing.assert_close(sin[2:14], angle.sin(), rtol=0, atol=1e-15)
    x = torch.randn(15, 2, 8)
    assert_bits(apply_rope(x, None, cos.float(), sin.float(), layout="shd")[0][still], x[still])


def test_merge_blocks():
    rows, columns = axial_positions(4, 4, merge_size=2).tolist()
    assert rows == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]
    assert columns == [0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3]


def test_dinov3_normalization():
    largest = axial_positions(2, 4, "dinov3", normalize="max")
    smallest = axial_positions(2, 4, "dinov3", normalize="min")
    assert largest[0, 0] / (2 * math.pi) == 2 * 0.5 / 4 - 1
    assert smallest[1, 3] / (2 * math.pi) == 2 * 3.5 / 2 - 1


def test_axial_refusals():
    with pytest.raises(ValueError, match="axial_positions: variant must be one of"):
        axial_rope_table(2, 2, 8, "dino")
    with pytest.raises(ValueError, match="axial_positions: variant must be one of"):
        axial_rope_table(2, 2, 8, ["pixel"])
    with pytest.raises(ValueError, match="dim must be a positive multiple of 4, got 6"):
        axial_rope_table(2, 2, 6)
    with pytest.raises(ValueError, match=r"merge_size must divide the grid \[3, 2\], got 2"):
        axial_positions(3, 2, merge_size=2)
    with pytest.raises(
        ValueError, match="normalize must be 'separate', 'max' or 'min', got 'mean'"
    ):
        axial_positions(3, 2, "dinov3", normalize="mean")
    with pytest.raises(ValueError, match="after must be at least 0, got -1"):
        axial_rope_table(2, 2, 8, after=-1)
    with pytest.raises(ValueError, match="base must be positive, got 0"):
        axial_frequencies(8, base=0.0)


@pytest.mark.parametrize("variant", ["qwen2_vl", "pixtral", "dinov3"])
def test_an_axial_table_knows_half_pairs(variant):
    assert axial_rope_table(2, 2, 8, variant).interleaved is False


@pytest.mark.parametrize("variant", ["llama4", "sam2", "eva02", "pixel"])
def test_an_axial_table_knows_interleaved_pairs(variant):
    table = axial_rope_table(2, 2, 8, variant)
    assert table.interleaved is True
    with pytest.raises(ValueError, match="unpack"):  # not forgotten without a word
        _cos, _sin = table
