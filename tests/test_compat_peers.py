"""Rotations of other libraries, on their own tables: the same to one rounding.

`make peers-test` installs them and runs this file.
"""

import importlib
import importlib.util
import sys
import types

import numpy as np
import pytest
import torch
from rope_cases import assert_bits, assert_close, expected, uniform

from posenc_ext import apply_rope, axial_rope_table, rope, rope_frequencies, rope_table, xpos_table

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
ULP = {torch.float32: 2**-23, torch.float64: 2**-52, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def assert_one_rounding(mine, right):
    """Sums of two products of values up to 2: an error of one ulp of 4 at most."""
    assert mine.dtype == right.dtype
    torch.testing.assert_close(mine, right, rtol=0, atol=4 * ULP[right.dtype])


def onnx_cases():
    """What the node tests of ONNX hand to their backends: (name, node, inputs, output)."""
    module = importlib.import_module("onnx.backend.test.case.node.rotaryembedding")
    cases = []

    def expect(node, inputs, outputs, name):
        cases.append((name, node, inputs, outputs[0]))

    kept, module.expect = module.expect, expect
    try:
        np.random.seed(0)
        for name in dir(module.RotaryEmbedding):
            if name.startswith("export_"):
                getattr(module.RotaryEmbedding, name)()
    finally:
        module.expect = kept
    return cases


def test_onnx():
    cases = onnx_cases()
    assert len(cases) >= 8
    for name, node, inputs, right in cases:
        given = {a.name: a.i for a in node.attribute}
        x, cos, sin, *positions = map(torch.from_numpy, inputs)
        layout, shape = "bhsd", x.shape
        if x.dim() == 3:
            x, layout = x.unflatten(-1, (given["num_heads"], -1)), "bshd"
        part = given.get("rotary_embedding_dim", 0) // 2 or cos.shape[-1]
        y = rope(
            x,
            cos[..., :part],
            sin[..., :part],
            layout=layout,
            positions=positions[0] if positions else None,
            interleaved=bool(given.get("interleaved", 0)),
        )
        assert_one_rounding(y.reshape(shape), torch.from_numpy(right))
        assert name.startswith("test_rotary_embedding")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotary_embedding_torch(dtype):
    from rotary_embedding_torch import RotaryEmbedding

    module = RotaryEmbedding(dim=12)
    x = uniform((2, 4, 40, 16), dtype)  # [B, H, S, D], interleaved pairs
    right = module.rotate_queries_or_keys(x)
    freqs = module.forward(torch.arange(40, dtype=dtype), seq_len=40)[:, ::2]
    y = rope(x, freqs.cos(), freqs.sin(), layout="bhsd", interleaved=True)
    assert_one_rounding(y, right)
    # Its angles, of positions and frequencies in float32, are ours of precision "float32".
    inv_freq = rope_frequencies(12, precision="float32").inv_freq
    cos, sin = rope_table(40, inv_freq, precision="float32")
    assert_close(rope(x, cos, sin, layout="bhsd", interleaved=True).float(), right.numpy())


def test_rotary_embedding_torch_with_an_offset():
    from rotary_embedding_torch import RotaryEmbedding

    module = RotaryEmbedding(dim=16)
    q, k = uniform((1, 4, 1, 16)), uniform((1, 4, 20, 16), seed=1)
    right = module.rotate_queries_with_cached_keys(q, k)
    cos, sin = rope_table(20, rope_frequencies(16).inv_freq)
    options = {"layout": "bhsd", "interleaved": True}
    ours = rope(q, cos, sin, offset=19, **options), rope(k, cos, sin, **options)
    for mine, wanted in zip(ours, right, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-5)  # float32 angles up to 19


@pytest.mark.parametrize("length", [20, 21])
def test_xpos_of_both(length):
    """The same centre as in flash-attn: half of the length, rounded down."""
    from rotary_embedding_torch import RotaryEmbedding
    from x_transformers.x_transformers import RotaryEmbedding as XRotary
    from x_transformers.x_transformers import apply_rotary_pos_emb

    q, k = uniform((1, 4, length, 16)), uniform((1, 4, length, 16), seed=1)
    table = xpos_table(length, rope_frequencies(16).inv_freq)
    options = {"layout": "bhsd", "interleaved": True}
    ours = rope(q, *table[:2], **options), rope(k, *table[2:], **options)
    theirs = RotaryEmbedding(dim=16, use_xpos=True).rotate_queries_and_keys(q, k)
    freqs, scale = XRotary(16, use_xpos=True).forward_from_seq_len(length)
    others = apply_rotary_pos_emb(q, freqs, scale), apply_rotary_pos_emb(k, freqs, 1 / scale)
    for mine, first, second in zip(ours, theirs, others, strict=True):
        torch.testing.assert_close(mine, first, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine, second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_x_transformers(dtype):
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    freqs, scale = RotaryEmbedding(12).forward_from_seq_len(40)
    assert scale == 1.0
    q, k = uniform((2, 4, 40, 16), dtype), uniform((2, 2, 40, 16), dtype, 1)
    cos, sin = freqs[0, :, ::2].cos(), freqs[0, :, ::2].sin()
    ours = apply_rope(q, k, cos, sin, layout="bhsd", interleaved=True)
    for mine, x in zip(ours, (q, k), strict=True):
        assert_one_rounding(mine, apply_rotary_pos_emb(x, freqs))


@pytest.fixture
def timm_rotary():
    """One file of timm, without the rest of it, which needs torchvision."""
    (folder,) = importlib.util.find_spec("timm").submodule_search_locations
    stubs = {"timm": folder, "timm.layers": f"{folder}/layers"}
    before = {name: module for name, module in sys.modules.items() if name.startswith("timm")}
    for name, path in stubs.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [path]
    yield importlib.import_module("timm.layers.pos_embed_sincos")
    for name in [name for name in sys.modules if name.startswith("timm")]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_timm(timm_rotary, dtype, half):
    """Sine comes first in its tables, which are full width."""
    module = timm_rotary.RotaryEmbeddingCat(
        16, in_pixels=False, feat_shape=[5, 7], rotate_half=half
    )
    embed = module.get_embed([5, 7])
    x = uniform((2, 4, 35, 16), dtype)
    right = timm_rotary.apply_rot_embed_cat(x, embed, half=half)
    sin, cos = (t[:, :8] if half else t[:, ::2] for t in embed.chunk(2, -1))
    y = rope(x, cos, sin, layout="bhsd", interleaved=not half)
    assert_one_rounding(y, right)
    if dtype == torch.float32:
        assert_close(y, expected("rope", x, cos, sin, layout="bhsd", interleaved=not half))


@pytest.mark.parametrize("grid", [(8, 8), (16, 16), (24, 24), (5, 7), (20, 14)], ids=str)
@pytest.mark.parametrize("dim", [16, 64, 88])
def test_tables_of_eva02(timm_rotary, dim, grid):
    """timm's own rotary table for EVA-02: the same bits, with a float32 angle."""
    right = timm_rotary.build_rotary_pos_embed(
        list(grid), dim=dim, in_pixels=False, ref_feat_shape=[16, 16]
    )
    exact = axial_rope_table(*grid, dim, "eva02")[:2]
    single = axial_rope_table(*grid, dim, "eva02", precision="float32")[:2]
    for theirs, mine, best in zip(right, reversed(single), reversed(exact), strict=True):
        assert_bits(mine, theirs[:, ::2].contiguous())
        torch.testing.assert_close(mine, best, rtol=0, atol=4e-6)


def test_gradients_are_theirs_too():
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    freqs, _ = RotaryEmbedding(16).forward_from_seq_len(9)
    cos, sin = freqs[0, :, ::2].cos(), freqs[0, :, ::2].sin()
    grads = []
    for rotate in (
        lambda x: apply_rotary_pos_emb(x, freqs),
        lambda x: rope(x, cos, sin, layout="bhsd", interleaved=True),
    ):
        x = uniform((2, 4, 9, 16)).requires_grad_()
        rotate(x).backward(uniform(x.shape, seed=1))
        grads.append(x.grad)
    assert_bits(grads[1], grads[0])
