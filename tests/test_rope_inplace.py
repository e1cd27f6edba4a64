"""Where results are stored: in place, out=, aliasing, version counters, canaries."""

import pytest
import torch
from rope_cases import DTYPES, LAYOUTS, VIEWS, assert_bits, name, shape, table, uniform
from torch.utils.checkpoint import checkpoint

import posenc_ext

WRITABLE = [view for view in VIEWS if view != "expanded"]
CANARY = 7.0
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])


@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("view", WRITABLE)
def test_inplace_writes_x_and_returns_it(view, dtype, interleaved, device):
    cos, sin = table(16, device=device)
    x = VIEWS[view](uniform(shape("bshd"), dtype, device=device))
    right = posenc_ext.rope(x, cos, sin, interleaved=interleaved)
    version = x._version
    assert posenc_ext.rope(x, cos, sin, interleaved=interleaved, inplace=True) is x
    assert x._version > version
    assert_bits(x, right)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inplace_layouts_and_back(layout, device):
    cos, sin = table(16, torch.float64, device=device)
    x = uniform(shape(layout), torch.float64, device=device)
    before = x.clone()
    right = posenc_ext.rope(x, cos, sin, layout=layout)
    assert_bits(posenc_ext.rope(x, cos, sin, layout=layout, inplace=True), right)
    posenc_ext.rope(x, cos, sin, layout=layout, inplace=True, inverse=True)
    torch.testing.assert_close(x, before, rtol=0, atol=2e-15)


@pytest.mark.parametrize("view", WRITABLE)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_out(dtype, view, device):
    cos, sin = table(16, device=device)
    x = uniform(shape("bshd"), dtype, device=device)
    before = x.clone()
    right = posenc_ext.rope(x, cos, sin)
    out = VIEWS[view](torch.full_like(x, CANARY))
    strides, version = out.stride(), out._version
    assert posenc_ext.rope(x, cos, sin, out=out) is out
    assert out.stride() == strides
    assert out._version > version
    assert_bits(out, right)
    assert_bits(x, before)
    assert posenc_ext.rope(x, cos, sin, out=x) is x
    assert_bits(x, right)


def test_out_may_lie_between_the_elements_of_x(device):
    cos, sin = table(8, device=device)
    buffer = uniform((2, 5, 3, 2, 16), device=device)
    x, out = buffer.unbind(3)
    right, before = posenc_ext.rope(x, cos, sin), x.clone()
    assert_bits(posenc_ext.rope(x, cos, sin, out=out), right)
    assert_bits(x, before)


@pytest.mark.parametrize("inplace", [False, True])
def test_apply_rope_on_slices_of_one_qkv(inplace, device):
    cos, sin = table(16, device=device)
    qkv = uniform((2, 5, 3, 4, 32), device=device)
    before = qkv.clone()
    right = [posenc_ext.rope(qkv[:, :, i], cos, sin) for i in (0, 1)]
    q, k = qkv[:, :, 0], qkv[:, :, 1]
    outs = posenc_ext.apply_rope(q, k, cos, sin, inplace=inplace)
    for y, r in zip(outs, right, strict=True):
        assert_bits(y, r)
    assert_bits(qkv[:, :, 2], before[:, :, 2])
    if inplace:
        assert outs[0] is q
        assert outs[1] is k
        assert qkv._version > 0
        assert_bits(qkv[:, :, :2], torch.stack(right, 2))
    else:
        assert qkv._version == 0
        assert_bits(qkv, before)


@pytest.mark.parametrize("inplace", [False, True])
def test_q_and_k_may_interleave_in_memory(inplace, device):
    """Their address ranges overlap, their elements do not."""
    cos, sin = table(8, device=device)
    for pick in (lambda t: (t[:, :, ::2], t[:, :, 1::2]), lambda t: (t[:, :, :4], t[:, :, 4:])):
        q, k = pick(uniform((2, 5, 6, 16), device=device))
        right = posenc_ext.apply_rope(q.clone(), k.clone(), cos, sin)
        for y, r in zip(posenc_ext.apply_rope(q, k, cos, sin, inplace=inplace), right, strict=True):
            assert_bits(y, r)


@pytest.mark.parametrize("where", ["new", "inplace", "out"])
@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    "rotary", [2, 6, 14, 16, 18, 22, 30, 34, 48, 62, 66, 72, 80, 96, 126, 130, 160]
)
def test_canaries(rotary, dtype, interleaved, where, device):
    """Rows of an odd pitch at storage offset 1: whatever lies between and around them must stay."""
    cos, sin = table(rotary // 2, device=device)
    s, h, pitch = 5, 3, rotary + 3

    def guarded():
        buffer = torch.full((1 + s * h * pitch + 16,), CANARY, dtype=dtype, device=device)
        return buffer, buffer[1 : 1 + s * h * pitch].view(s, h, pitch)[..., :rotary]

    (x_buffer, x), (out_buffer, out) = guarded(), guarded()
    x.copy_(uniform((s, h, rotary), dtype, device=device))
    right = posenc_ext.rope(x.contiguous(), cos, sin, layout="shd", interleaved=interleaved)
    storage = {"new": {}, "inplace": {"inplace": True}, "out": {"out": out}}[where]
    y = posenc_ext.rope(x, cos, sin, layout="shd", interleaved=interleaved, **storage)
    assert_bits(y, right)
    for buffer, inside in ((x_buffer, x), (out_buffer, out)):
        inside.fill_(CANARY)
        assert bool((buffer == CANARY).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_table_at_an_odd_offset(dtype, device):
    """The last row of a table whose buffer ends with it."""
    x = uniform(shape("bshd", s=3, d=34), dtype, device=device)
    cos, sin = table(17, length=3, device=device)
    odd = [torch.cat([t.new_full((1,), CANARY), t.flatten()])[1:].view(3, 17) for t in (cos, sin)]
    assert_bits(posenc_ext.rope(x, *odd), posenc_ext.rope(x, cos, sin))


def through_a_layer(rotate):
    """Gradients of x, w, cos and sin through q = x @ w, a rotation, and a second use of q."""
    x, w = (
        uniform(s, torch.float64, i).requires_grad_() for i, s in enumerate(((2, 5, 8), (8, 96)))
    )
    cos, sin = (t.requires_grad_() for t in table(8, torch.float64))
    loss = rotate((x @ w).view(2, 5, 3, 2, 16), cos, sin)
    return torch.autograd.grad(loss, (x, w, cos, sin))


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_inplace_gradients_equal_out_of_place_ones():
    def rotate(inplace):
        def call(qkv, cos, sin):
            q, k = qkv[:, :, 0], qkv[:, :, 1]
            q, k = (q.clone(), k.clone()) if inplace else (q, k)
            q, k = posenc_ext.apply_rope(q, k, cos, sin, inplace=inplace)
            return (q**3).sum() + (q * k).sum()

        return call

    same(through_a_layer(rotate(True)), through_a_layer(rotate(False)))


def test_inplace_on_a_view_reaches_its_base():
    def inplace(qkv, cos, sin):
        posenc_ext.rope(qkv[:, :, 0], cos, sin, inplace=True)
        return (qkv**2).sum() + qkv[:, :, 0].sum()

    def new(qkv, cos, sin):
        q = posenc_ext.rope(qkv[:, :, 0], cos, sin)
        return (q**2).sum() + (qkv[:, :, 1:] ** 2).sum() + q.sum()

    same(through_a_layer(inplace), through_a_layer(new))


def test_a_value_saved_before_the_rotation_is_not_used_after_it():
    def rotate(qkv, cos, sin):
        q = qkv.sum(2)
        before = (q**2).sum()
        return before + posenc_ext.rope(q, cos, sin, inplace=True).sum()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        through_a_layer(rotate)


def test_tables_changed_before_backward_are_noticed():
    x = uniform(shape("bshd"), torch.float64).requires_grad_()
    cos, sin = table(16, torch.float64)
    y = posenc_ext.rope(x, cos, sin)
    sin.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_checkpoint(inplace, reentrant):
    def block(qkv, cos, sin):
        q, k = posenc_ext.apply_rope(qkv.sum(2), qkv.mean(2), cos, sin, inplace=inplace)
        return (q * k).sum()

    def checkpointed(*tensors):
        return checkpoint(block, *tensors, use_reentrant=reentrant)

    same(through_a_layer_backward(checkpointed), through_a_layer_backward(block))


def through_a_layer_backward(rotate):
    """As through_a_layer, by backward(), which is all that reentrant checkpoints allow."""
    x = uniform((2, 5, 3, 2, 16), torch.float64).requires_grad_()
    cos, sin = (t.requires_grad_() for t in table(8, torch.float64))
    rotate(x * 1.5, cos, sin).backward()
    return x.grad, cos.grad, sin.grad


def test_a_leaf_may_be_rotated_without_grad_mode():
    cos, sin = table(16)
    x = uniform(shape("bshd")).requires_grad_()
    with torch.no_grad():
        right = posenc_ext.rope(x, cos, sin)
        assert posenc_ext.rope(x, cos, sin, inplace=True) is x
        assert_bits(x, right)
        assert_bits(posenc_ext.rope(x, cos, sin, out=x), x)
    assert x.requires_grad
    assert x.is_leaf


def test_a_tensor_without_gradient_takes_the_graph_of_the_tables():
    cos, sin = (t.requires_grad_() for t in table(16))
    x = uniform(shape("bshd"))
    y = posenc_ext.rope(x, cos, sin, inplace=True)
    assert y is x
    assert x.requires_grad
    assert not x.is_leaf
    x.sum().backward()
    assert cos.grad.abs().sum() > 0
    assert sin.grad.abs().sum() > 0


def test_inference_tensors():
    with torch.inference_mode():
        cos, sin = table(16)
        x = uniform(shape("bshd"))
        right = posenc_ext.rope(x, cos, sin)
        assert_bits(posenc_ext.rope(x, cos, sin, inplace=True), right)
