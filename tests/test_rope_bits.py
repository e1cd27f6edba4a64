"""Bit equality: with eager torch, across dtypes, views, thread counts and instruction sets."""

import pytest
import torch
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from rope_cases import (
    DTYPES,
    LAYOUTS,
    VIEWS,
    assert_bits,
    bshd,
    eager,
    name,
    shape,
    table,
    threads,
    uniform,
)

import posenc_ext

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
HALF_DTYPES = (torch.bfloat16, torch.float16)
ROTARY_DIMS = (2, 6, 16, 24, 30, 42, 48, 62, 64, 66, 72, 80, 96, 112, 128, 130, 160, 256)
SPECIAL = [
    0.0,
    -0.0,
    1e-40,
    -1e-45,
    1e-38,
    3e38,
    -3e38,
    float("inf"),
    -float("inf"),
    float("nan"),
    1.0,
    -2.0,
]


@both_pairings
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
@pytest.mark.parametrize("rotary", ROTARY_DIMS)
def test_equals_eager(rotary, dtype, inverse, interleaved, device):
    cos, sin = table(rotary // 2, dtype, device=device)
    x = uniform(shape("bshd", s=40, d=rotary + 3), dtype, device=device)
    right = torch.cat([eager(x[..., :rotary], cos, sin, interleaved, inverse), x[..., rotary:]], -1)
    assert_bits(posenc_ext.rope(x, cos, sin, interleaved=interleaved, inverse=inverse), right)


@both_pairings
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
@pytest.mark.parametrize("d", [8, 22, 64])
def test_special_values_equal_eager(d, dtype, interleaved, device):
    values = torch.tensor(SPECIAL, dtype=dtype, device=device)
    x = values.repeat(d * 4).view(-1, 4, d)[None]
    cos, sin = (t.repeat(1, 1) for t in table(d // 2, dtype, length=x.shape[1], device=device))
    cos[0], sin[0] = 1, 0
    cos[1], sin[1] = 0, 1
    cos[2], sin[2] = -1, -0.0
    assert_bits(
        posenc_ext.rope(x, cos, sin, interleaved=interleaved), eager(x, cos, sin, interleaved)
    )


@both_pairings
@pytest.mark.parametrize("table_dtype", ["float32", "own"])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=name)
@pytest.mark.parametrize("rotary", ROTARY_DIMS)
def test_half_types_are_rounded_once(rotary, dtype, table_dtype, interleaved, device):
    cos, sin = table(
        rotary // 2, torch.float32 if table_dtype == "float32" else dtype, device=device
    )
    x = uniform(shape("bshd", s=40, d=rotary + 3), dtype, device=device)
    right = posenc_ext.rope(x.float(), cos.float(), sin.float(), interleaved=interleaved).to(dtype)
    assert_bits(posenc_ext.rope(x, cos, sin, interleaved=interleaved), right)


@both_pairings
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=name)
def test_every_half_value(dtype, interleaved, device):
    """All 65536 inputs: infinities, NaN and subnormals too; results overflow and underflow."""
    x = (
        torch.arange(-(2**15), 2**15, dtype=torch.int16, device=device)
        .view(dtype)
        .view(1, 2048, 1, 32)
    )
    cos, sin = table(16, length=2048, device=device)
    right = posenc_ext.rope(x.float(), cos, sin, interleaved=interleaved).to(dtype)
    assert_bits(posenc_ext.rope(x, cos, sin, interleaved=interleaved), right)


def test_float64_with_float32_table(device):
    cos, sin = table(16, device=device)
    x = uniform(shape("bshd", d=32), torch.float64, device=device)
    assert_bits(posenc_ext.rope(x, cos, sin), eager(x, cos.double(), sin.double()))


@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("d", [38, 64])
def test_views_are_bit_equal(d, view, dtype, interleaved, device):
    cos, sin = table(16, device=device)
    x = VIEWS[view](uniform(shape("bshd", s=9, d=d), dtype, device=device))
    right = posenc_ext.rope(x.contiguous(), cos, sin, interleaved=interleaved)
    assert_bits(posenc_ext.rope(x, cos, sin, interleaved=interleaved), right)
    q, k = posenc_ext.apply_rope(x, x[:, :, 1:], cos, sin, interleaved=interleaved)
    assert_bits(q, right)
    assert_bits(k, right[:, :, 1:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_bit_equal(layout, device):
    cos, sin = table(16, device=device)
    x = uniform(shape(layout), device=device)
    right = posenc_ext.rope(bshd(x, layout).contiguous(), cos, sin)
    assert_bits(bshd(posenc_ext.rope(x, cos, sin, layout=layout), layout), right)


def large(options, dtype=torch.float32):
    """Outputs, and gradients if asked, of a call large enough to be shared out among threads."""
    q, k = uniform((2, 300, 16, 64), dtype, 1), uniform((2, 300, 4, 64), dtype, 2)
    cos, sin = table(30, length=300)
    for tensor in (q, k, cos, sin):
        tensor.requires_grad_(options["grad"])
    outs = posenc_ext.apply_rope(q, k, cos, sin, interleaved=options["interleaved"])
    if options["grad"]:
        upstream = [uniform(y.shape, dtype, 3) for y in outs]
        outs += torch.autograd.grad(outs, (q, k, cos, sin), upstream)
    return [y.detach() for y in outs]


@both_pairings
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_threads_are_bit_equal(dtype, grad, interleaved):
    options = {"grad": grad, "interleaved": interleaved}
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(large(options, dtype))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_bits(b, a)


@both_pairings
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_large_results_equal_small_ones(dtype, layout, interleaved):
    # From 32 MB on, results are written past the caches; a quarter of that is not.
    tokens = 2**25 // dtype.itemsize // (16 * 128) // 4 + 3
    x = torch.empty(shape(layout, b=4, s=tokens, h=16, d=160), dtype=dtype)
    x.uniform_(-2, 2, generator=torch.Generator().manual_seed(0))
    cos, sin = table(64, length=tokens)
    options = {"layout": layout, "interleaved": interleaved}
    y = posenc_ext.rope(x, cos, sin, **options)
    assert y[..., :128].numel() * dtype.itemsize >= 2**25 > y[:1].nbytes
    for i in range(4):
        assert_bits(y[i : i + 1], posenc_ext.rope(x[i : i + 1], cos, sin, **options))
    shifted = torch.zeros(x.numel() + 1, dtype=dtype)[1:].view(x.shape)
    assert_bits(posenc_ext.rope(x, cos, sin, out=shifted, **options), y)


def fingerprints():
    """{case: hash} of a fixed set of calls; every instruction set must print the same."""
    found = {}
    for dtype in DTYPES:
        for interleaved in (False, True):
            for rotary in ROTARY_DIMS:
                cos, sin = (t.requires_grad_() for t in table(rotary // 2))
                x = uniform(shape("bshd", s=7, d=rotary + 5), dtype).requires_grad_()
                y = posenc_ext.rope(x, cos, sin, interleaved=interleaved, offset=11)
                grads = torch.autograd.grad(y, (x, cos, sin), uniform(y.shape, dtype, 1))
                found[f"{dtype} {interleaved} {rotary}"] = digest(y.detach(), *grads)
                orders = {"interleaved": interleaved, "interleaved_out": not interleaved}
                y = posenc_ext.rope(x, cos, sin, **orders)
                grads = torch.autograd.grad(y, (x, cos, sin), uniform(y.shape, dtype, 1))
                found[f"{dtype} {interleaved} reordered {rotary}"] = digest(y.detach(), *grads)
            for view in VIEWS:
                cos, sin = table(16)
                x = VIEWS[view](uniform(shape("bshd"), dtype))
                found[f"{dtype} {interleaved} {view}"] = digest(
                    posenc_ext.rope(x, cos, sin, interleaved=interleaved)
                )
            x = torch.tensor(SPECIAL, dtype=dtype).repeat(96).view(1, 8, 4, 36)
            found[f"{dtype} {interleaved} special"] = digest(
                posenc_ext.rope(x, *table(18), interleaved=interleaved)
            )
            found[f"{dtype} {interleaved} large"] = digest(
                *large({"grad": True, "interleaved": interleaved}, dtype)
            )
    return found


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=100)


if __name__ == "__main__":
    print_fingerprints(fingerprints())
