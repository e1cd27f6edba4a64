"""interleaved_out: pairs read in one order of channels and written in the other, in one pass."""

import pytest
import torch
from rope_cases import (
    DTYPES,
    LAYOUTS,
    VIEWS,
    assert_bits,
    check_rope,
    name,
    shape,
    table,
    uniform,
)
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import posenc_ext
from posenc_ext.compat.hf_rotations import Form, rotate

# (interleaved, interleaved_out), and the permutation of the result that comes to the same.
ORDERS = {
    "interleaved_to_half": ((True, False), posenc_ext.interleaved_to_half),
    "half_to_interleaved": ((False, True), posenc_ext.half_to_interleaved),
}
each_order = pytest.mark.parametrize("order", ORDERS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def options_of(order):
    return dict(zip(("interleaved", "interleaved_out"), ORDERS[order][0], strict=True))


def in_two_passes(order, x, cos, sin, **options):
    (interleaved, _), permute = ORDERS[order]
    y = posenc_ext.rope(x, cos, sin, interleaved=interleaved, **options)
    return permute(y, 2 * cos.shape[-1])


@each_order
@each_dtype
@pytest.mark.parametrize("rotary", [2, 6, 16, 30, 34, 64, 66, 128, 130])
def test_bits_of_rotating_and_then_permuting(rotary, dtype, order, device):
    cos, sin = table(rotary // 2, device=device)
    for tail in (0, 3):
        x = uniform(shape("bshd", d=rotary + tail), dtype, device=device)
        right = in_two_passes(order, x, cos, sin, offset=1, inverse=bool(tail))
        options = {**options_of(order), "offset": 1, "inverse": bool(tail)}
        assert_bits(posenc_ext.rope(x, cos, sin, **options), right)
        out = torch.empty_like(x)
        assert_bits(posenc_ext.rope(x, cos, sin, out=out, **options), right)
        same = x.clone()
        assert_bits(posenc_ext.rope(same, cos, sin, out=same, **options), right)
        assert posenc_ext.rope(x, cos, sin, inplace=True, **options) is x
        assert_bits(x, right)


@each_order
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_views(layout, view, order, device):
    cos, sin = table(15, device=device)
    x = VIEWS[view](uniform(shape(layout), torch.bfloat16, device=device))
    options = {**options_of(order), "layout": layout}
    right = in_two_passes(order, x, cos, sin, layout=layout)
    assert_bits(posenc_ext.rope(x, cos, sin, **options), right)
    if view != "expanded":
        assert_bits(posenc_ext.rope(x, cos, sin, inplace=True, **options), right)


@each_order
@each_dtype
def test_both_tensors_of_apply_rope(dtype, order, device):
    cos, sin = table(16, device=device)
    x = uniform((2, 40, 6, 40), dtype, device=device)
    right = in_two_passes(order, x, cos, sin)
    for inplace in (False, True):
        q, k = x[:, :, :4], x[:, :, 4:]
        q, k = posenc_ext.apply_rope(q, k, cos, sin, inplace=inplace, **options_of(order))
        assert_bits(q, right[:, :, :4])
        assert_bits(k, right[:, :, 4:])


@each_order
def test_against_the_oracle(order):
    check_rope(uniform(shape("bshd")), *table(16), **options_of(order), offset=3)


@each_order
def test_large_results(order):
    """Written past the caches, by several threads."""
    x = uniform((1, 1024, 64, 128))
    assert x.nbytes >= 2**25
    cos, sin = table(64, length=1024)
    right = in_two_passes(order, x, cos, sin)
    assert_bits(posenc_ext.rope(x, cos, sin, **options_of(order)), right)
    assert_bits(posenc_ext.rope(x, cos, sin, inplace=True, **options_of(order)), right)


def test_a_complex_table_reads_neighbours_and_writes_halves():
    x, (freqs_cis, _) = uniform(shape("bshd")), table(16, torch.complex64)
    right = in_two_passes("interleaved_to_half", x, freqs_cis.real, freqs_cis.imag)
    assert_bits(posenc_ext.rope(x, freqs_cis, interleaved_out=False), right)


@each_order
def test_vmap(order):
    cos, sin = table(4)
    x = uniform((3, 2, 5, 2, 8))
    options = options_of(order)
    right = torch.stack([posenc_ext.rope(each, cos, sin, **options) for each in x])
    assert_bits(vmap(lambda x: posenc_ext.rope(x, cos, sin, **options))(x), right)


def test_the_transposed_pair_of_layouts_undoes_it():
    x, (cos, sin) = uniform(shape("bshd"), torch.float64), table(16, torch.float64)
    y = posenc_ext.rope(x, cos, sin, interleaved=True, interleaved_out=False)
    back = posenc_ext.rope(y, cos, sin, interleaved_out=True, inverse=True)
    torch.testing.assert_close(back, x, rtol=0, atol=2e-15)


@pytest.mark.parametrize("value", ["half", 1.0, torch.tensor(True)], ids=str)
@pytest.mark.parametrize("op", ["rope", "apply_rope"])
def test_what_is_no_bool_is_refused(op, value):
    x = uniform(shape("bshd"))
    with pytest.raises(TypeError, match=rf"posenc_ext.{op}: interleaved_out must be a bool, got "):
        getattr(posenc_ext, op)(
            *[x] * (1 + (op == "apply_rope")), *table(16), interleaved_out=value
        )


class Ops(TorchDispatchMode):
    """The names of the ops that run."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.called.append(op.name())
        return op(*args, **(kwargs or {}))


def test_deepseek_takes_one_pass():
    q, k = uniform((2, 3, 5, 16)), uniform((2, 1, 5, 16))
    cos, sin = (torch.cat([t, t], -1)[None, :5].repeat(2, 1, 1) for t in table(8))
    with Ops() as ops:
        rotate("apply_rotary_pos_emb", Form("tiled", halved=True), "bhsd", q, k, cos, sin)
    assert [op for op in ops.called if op != "aten::slice.Tensor"] == ["posenc_ext::apply_rope"]
