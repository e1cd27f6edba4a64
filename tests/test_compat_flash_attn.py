"""The functions of flash_attn.layers.rotary: its semantics, against the oracle."""

import pytest
import torch
from rope_cases import assert_bits, assert_close, expected, table, uniform

from posenc_ext import rope, rope_frequencies, xpos_table
from posenc_ext.compat.flash_attn import (
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
)

COS, SIN = table(6)
OFFSETS = torch.tensor([3, 50], dtype=torch.int32)
CU = torch.tensor([0, 4, 4, 11], dtype=torch.int32)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0, 7, OFFSETS])
def test_apply_rotary_emb(offset, interleaved, inplace):
    x = uniform((2, 5, 3, 16))
    right = expected("rope", x, COS, SIN, offset=offset, interleaved=interleaved)
    y = apply_rotary_emb(x, COS, SIN, interleaved, inplace, offset)  # by place, in their order
    assert (y is x) == inplace
    assert_close(y, right)


@pytest.mark.parametrize("offset", [0, 7, torch.tensor([1, 2, 3])])
def test_packed(offset):
    x = uniform((11, 3, 16))
    right = expected("rope", x, COS, SIN, layout="thd", cu_seqlens=CU, offset=offset)
    y = apply_rotary_emb(x, COS, SIN, seqlen_offsets=offset, cu_seqlens=CU, max_seqlen=7)
    assert_close(y, right)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tables_of_any_dtype_are_read_in_float32(dtype, kind):
    x = uniform((2, 5, 3, 16), dtype)
    cos, sin = COS.to(kind), SIN.to(kind)
    right = rope(x.float(), cos.float(), sin.float()).to(dtype)
    assert_bits(apply_rotary_emb(x, cos, sin), right)
    qkv = torch.stack([x, x, x], 2)
    assert_bits(apply_rotary_emb_qkv_(qkv, cos, sin)[:, :, 1], right)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [7, OFFSETS])
def test_qkv(offset, interleaved):
    qkv = uniform((2, 5, 3, 4, 16))
    before = qkv.clone()
    options = {"interleaved": interleaved, "offset": offset}
    assert apply_rotary_emb_qkv_(qkv, COS, SIN, None, None, interleaved, offset) is qkv
    for i in range(2):
        assert_close(qkv[:, :, i], expected("rope", before[:, :, i], COS, SIN, **options))
    assert_bits(qkv[:, :, 2], before[:, :, 2])


def test_qkv_of_grouped_queries():
    qkv = uniform((2, 5, 4 + 2 * 2, 16))
    before = qkv.clone()
    assert apply_rotary_emb_qkv_(qkv, COS, SIN, seqlen_offsets=2, num_heads_q=4) is qkv
    assert_close(qkv[:, :, :6], expected("rope", before[:, :, :6], COS, SIN, offset=2))
    assert_bits(qkv[:, :, 6:], before[:, :, 6:])


@pytest.mark.parametrize("grouped", [False, True])
def test_xpos(grouped):
    """Its tables: a power of zeta from the middle of the table on, the inverse for the key."""
    inv_freq = rope_frequencies(12).inv_freq
    tables = xpos_table(32, inv_freq)
    angle = torch.arange(32).double()[:, None] * inv_freq
    scale = (torch.arange(0, 12, 2).double() + 0.4 * 12) / (1.4 * 12)
    power = scale ** ((torch.arange(32) - 16)[:, None] / 512)
    qkv = uniform((2, 5, 8 if grouped else 3, *([] if grouped else [4]), 16))
    before = qkv.clone()
    options = {"num_heads_q": 4} if grouped else {}
    apply_rotary_emb_qkv_(qkv, *tables, seqlen_offsets=3, **options)
    q, k = (slice(0, 4), slice(4, 6)) if grouped else (0, 1)
    for part, p in ((q, power), (k, 1 / power)):
        right = expected("rope", before[:, :, part], angle.cos() * p, angle.sin() * p, offset=3)
        assert_close(qkv[:, :, part], right)


def test_kv():
    kv = uniform((2, 5, 2, 4, 16))
    before = kv.clone()
    assert apply_rotary_emb_kv_(kv, COS, SIN, True, OFFSETS) is kv
    right = expected("rope", before[:, :, 0], COS, SIN, interleaved=True, offset=OFFSETS)
    assert_close(kv[:, :, 0], right)
    assert_bits(kv[:, :, 1], before[:, :, 1])


def test_gradients_through_a_packed_projection():
    leaf = uniform((2, 5, 3, 4, 16)).requires_grad_()
    grad = uniform(leaf.shape, seed=1)
    apply_rotary_emb_qkv_(leaf * 1, COS, SIN).backward(grad)
    right = grad.clone()
    for i in range(2):
        right[:, :, i] = rope(grad[:, :, i], COS, SIN, inverse=True)
    assert_bits(leaf.grad, right)


@pytest.mark.parametrize("offset", [torch.tensor([0, -3]), torch.tensor([-9, 7]), -2])
def test_tokens_at_negative_positions_stay(offset):
    x = uniform((2, 5, 3, 16))
    offsets = offset if isinstance(offset, torch.Tensor) else torch.tensor([offset] * 2)
    positions = offsets[:, None] + torch.arange(5)
    right = expected("rope", x, COS, SIN, positions=positions.clamp(min=0))
    right[positions < 0] = x[positions < 0].double().numpy()
    assert_close(apply_rotary_emb(x, COS, SIN, seqlen_offsets=offset), right)
    assert_close(apply_rotary_emb(x, COS, SIN, seqlen_offsets=offset), right)
    for tables in ((COS, SIN), (COS, SIN, COS.clone(), SIN.clone())):
        qkv = torch.stack([x, x, x], 2)
        apply_rotary_emb_qkv_(qkv, *tables, seqlen_offsets=offset)
        assert_close(qkv[:, :, 0], right)
        assert_close(qkv[:, :, 1], right)
        assert_bits(qkv[:, :, 2], x)


def test_packed_tokens_at_negative_positions_stay():
    x, offset = uniform((11, 3, 16)), torch.tensor([-2, 0, 1])
    y = apply_rotary_emb(x, COS, SIN, seqlen_offsets=offset, cu_seqlens=CU, max_seqlen=7)
    assert_bits(y[:2], x[:2])
    assert_close(y[2:4], expected("rope", x[None, 2:4], COS, SIN)[0])
    assert_close(y[4:], expected("rope", x[None, 4:], COS, SIN, offset=1)[0])


def test_a_table_that_changed_gets_a_new_front():
    x, cos, sin = uniform((2, 5, 3, 16)), COS.clone(), SIN.clone()
    offset = torch.tensor([0, -3])
    apply_rotary_emb(x, cos, sin, seqlen_offsets=offset)
    cos *= 2
    y = apply_rotary_emb(x, cos, sin, seqlen_offsets=offset)
    assert_bits(y[0], rope(x[:1], cos, sin)[0])


X, QKV, KV = uniform((2, 5, 3, 16)), uniform((2, 5, 3, 4, 16)), uniform((2, 5, 2, 4, 16))


@pytest.mark.parametrize(
    ("kind", "text", "function", "args", "options"),
    [
        (IndexError, "offset", apply_rotary_emb, (X, COS, SIN), {"seqlen_offsets": 60}),
        (IndexError, "offset", apply_rotary_emb, (X, COS, SIN),
         {"seqlen_offsets": torch.tensor([0, 60])}),
        (IndexError, "cu_seqlens", apply_rotary_emb, (uniform((11, 3, 16)), COS[:6], SIN[:6]),
         {"cu_seqlens": CU, "max_seqlen": 7}),
        (ValueError, "x must", apply_rotary_emb, (uniform((11, 3, 16)), COS, SIN), {}),
        (ValueError, "must not be a leaf", apply_rotary_emb,
         (uniform((2, 5, 3, 16)).requires_grad_(), COS, SIN), {"inplace": True}),
        (ValueError, "qkv must have shape", apply_rotary_emb_qkv_, (KV, COS, SIN), {}),
        (ValueError, "qkv must have shape", apply_rotary_emb_qkv_, (X, COS, SIN), {}),
        (ValueError, "num_heads_q must leave", apply_rotary_emb_qkv_, (X, COS, SIN),
         {"num_heads_q": 2}),
        (ValueError, "num_heads_q must leave", apply_rotary_emb_qkv_, (X, COS, SIN),
         {"num_heads_q": 5}),
        (ValueError, "sin_k must have", apply_rotary_emb_qkv_, (QKV, COS, SIN, COS), {}),
        (ValueError, "cos_k must have", apply_rotary_emb_qkv_, (QKV, COS, SIN, None, SIN), {}),
        (ValueError, "cos_k must have", apply_rotary_emb_qkv_,
         (QKV, COS, SIN, COS[:3], SIN[:3]), {}),
        (ValueError, "kv must have shape", apply_rotary_emb_kv_, (QKV, COS, SIN), {}),
    ],
)  # fmt: skip
def test_errors(kind, text, function, args, options):
    before = args[0].clone()
    with pytest.raises(kind, match=r"^posenc_ext\.") as raised:
        function(*args, **options)
    assert text in str(raised.value)
    assert_bits(args[0].detach(), before.detach())


def test_a_refusal_of_the_tables_of_the_key_leaves_the_query():
    with torch.inference_mode():
        inference = COS.clone()
    for cos_k, needs_grad in ((COS.to("meta"), False), (inference, True)):
        qkv = uniform((2, 5, 3, 4, 16)).requires_grad_(needs_grad) * 1
        before = qkv.detach().clone()
        with pytest.raises((RuntimeError, ValueError)):
            apply_rotary_emb_qkv_(qkv, COS, SIN, cos_k, SIN.to(cos_k.device))
        assert_bits(qkv.detach(), before)
