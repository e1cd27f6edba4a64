"""RotaryAttention: positions, offsets, shared heads, values; and the errors of the articles."""

import math

import oracle_attention as oracle
import pytest
import torch
import torch.nn.functional as F
from attention_cases import BATCH, D_MODEL, DIM, HEADS, LENGTH, module_of, same, seen, values
from rope_cases import uniform
from torch.func import jvp

import posenc_ext
from posenc_ext import RotaryPositionalEmbedding

F64 = torch.float64


def inputs(length=LENGTH, seed=0):
    return uniform((BATCH, length, D_MODEL), F64, seed)


def attention(*sizes, **options):
    torch.manual_seed(4)
    return posenc_ext.RotaryAttention(D_MODEL, HEADS, *sizes, **{"dtype": F64} | options)


@pytest.mark.parametrize("rotate_values", [False, True])
def test_offsets(rotate_values):
    """Scores do not depend on an offset that all tokens share; rotated values do."""
    module, x = attention(1, rotate_values=rotate_values), inputs()
    start = torch.tensor([7, 100])
    y, weights = module(x, offset=start, need_weights=True)
    sizes = HEADS, 1, start.tolist(), DIM, False, rotate_values
    right, right_weights = oracle.rotary_attention(x.numpy(), values(module), *sizes, seen(True))
    same(y, right)
    same(weights, right_weights)
    same(weights, module(x, need_weights=True)[1])
    assert rotate_values != torch.allclose(y, module(x))
    same(module(x, offset=start), y)


def test_left_padding_with_offsets_changes_nothing():
    """Positions from -3 would be outside of the table, so padding counts from 0 and x from 3."""
    module, real = attention(rotate_values=True), inputs(6)
    pads = 3
    x = torch.cat([inputs(pads, 8) * 50, real], 1)
    keep = (torch.arange(pads + 6) >= pads).expand(BATCH, -1)
    right = module(real, offset=pads)
    same(module(x, key_padding_mask=keep)[:, pads:], right)
    _, cache = module(x[:, : pads + 2], key_padding_mask=keep[:, : pads + 2], use_cache=True)
    same(module(x[:, pads + 2 :], key_padding_mask=keep, past=cache), right[:, 2:])


def test_a_rotary_module_can_be_shared_and_scaled():
    scaling = {"rope_type": "linear", "factor": 4.0}
    rotary = RotaryPositionalEmbedding(DIM, base=500000.0, scaling=scaling)
    one, two = attention(rotary=rotary), attention(rotary=rotary)
    assert one.rotary is two.rotary is rotary
    x = inputs()
    q, k, v = (f(x).unflatten(-1, (HEADS, DIM)) for f in (one.q_proj, one.k_proj, one.v_proj))
    cos, sin = rotary.table(LENGTH, dtype=F64)
    q, k = posenc_ext.apply_rope(q, k, cos, sin)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    same(one(x), one.o_proj(y.transpose(1, 2).flatten(2)))
    assert not torch.allclose(one(x), attention()(x))


def test_names_are_those_of_llama():
    names = {f"{part}_proj.weight" for part in "qkvo"}
    assert set(attention().state_dict()) == names
    assert attention(1).k_proj.weight.shape == (DIM, D_MODEL)


def test_the_mask_acts_before_the_softmax():
    """In the articles one mask has no effect (it goes to a variable that is overwritten, and is
    -1e-9), and one text adds the bias to the probabilities."""
    module, x = attention(causal=False), inputs()
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    y, weights = module(x, attn_mask=mask, need_weights=True)
    assert not weights.masked_fill(mask, 0).any()
    same(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH, dtype=F64))
    changed = x.clone()
    changed[:, -1] = 100.0
    same(module(changed, attn_mask=mask)[:, :-1], y[:, :-1])


def test_probabilities_and_values_share_the_key():
    """An article sums each of them by itself: sum_k p[q, k] * sum_v value[v]."""
    module, x = attention(rotary=False), inputs()
    y, weights = module(x, need_weights=True)
    v = module.v_proj(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
    separate = weights.sum(-1, keepdim=True) * v.sum(2, keepdim=True)
    right = torch.einsum("bhqk,bhkd->bhqd", weights, v)
    same(y, module.o_proj(right.transpose(1, 2).flatten(2)))
    assert not torch.allclose(right, separate)


@pytest.mark.parametrize("name", ["shaw keys, asymmetric", "shaw"])
def test_the_relative_term_is_scaled_like_the_content(name):
    """An article divides only the content term by sqrt(D)."""
    module, x = module_of(name), inputs()
    q, k = (
        f(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (module.linear_q, module.linear_k)
    )
    scores = (q @ k.mT + module.distance_embedding(q)) / math.sqrt(DIM)
    same(module(x, need_weights=True)[1], torch.softmax(scores, -1))


def test_without_positions_order_does_not_matter():
    """Attention alone is permutation-equivariant; with rotation it is not."""
    x, order = inputs(), torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    none, some = attention(rotary=False, causal=False), attention(causal=False)
    same(none(x[:, order]), none(x)[:, order])
    assert not torch.allclose(some(x[:, order]), some(x)[:, order])


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_weights_take_another_way_to_the_same_result(causal):
    """Also for dtypes in which the two ways round differently."""
    for dtype, limit in ((F64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        module, x = attention(1, causal=causal, dtype=dtype), inputs().to(dtype)
        _, cache = module(x[:, :4], use_cache=True)
        keep = torch.arange(LENGTH).expand(BATCH, -1) >= 2
        bias = uniform((LENGTH - 4, LENGTH), dtype)
        masks = {"past": cache, "key_padding_mask": keep, "attn_mask": bias}
        y = module(x[:, 4:], **masks)
        same(y, module(x[:, 4:], need_weights=True, **masks)[0], limit)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_forward_mode(dropout):
    module, x, dx = attention(1, dropout=dropout), inputs(), inputs(seed=1)
    torch.manual_seed(0)
    y, dy = jvp(module, (x,), (dx,))
    assert y.shape == dy.shape == x.shape
    if not dropout:
        same(y, module(x))
        h = 1e-5
        numeric = (module(x + h * dx) - module(x - h * dx)) / (2 * h)
        torch.testing.assert_close(dy, numeric, rtol=1e-6, atol=1e-8)


def test_positions_of_tokens():
    module = posenc_ext.RotaryAttention(24, 3, dtype=torch.float64)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    at = torch.arange(5)[None] + torch.tensor([[4], [9]])
    torch.testing.assert_close(module(x, positions=at), module(x, offset=torch.tensor([4, 9])))
    with pytest.raises(ValueError, match="offset must not be given with positions"):
        module(x, positions=at, offset=3)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_see_themselves_alone(causal, rotary):
    module = posenc_ext.RotaryAttention(24, 3, rotary=rotary, causal=causal, dtype=torch.float64)
    x = torch.randn(1, 9, 24, dtype=torch.float64)
    bounds = torch.tensor([0, 4, 4, 9])
    apart = torch.cat([module(x[:, :4]), module(x[:, 4:])], 1)
    torch.testing.assert_close(module(x, cu_seqlens=bounds), apart)
    added = torch.randn(9, 9, dtype=torch.float64)
    with_mask = [module(x[:, p], attn_mask=added[p, p]) for p in (slice(4), slice(4, 9))]
    packed, weights = module(x, cu_seqlens=bounds, attn_mask=added, need_weights=True)
    torch.testing.assert_close(packed, torch.cat(with_mask, 1))
    assert weights[..., 4:, :4].abs().max() == 0
    for given, message in (
        ({"offset": 1}, "offset must be None with cu_seqlens"),
        ({"positions": torch.arange(9)}, "positions must be None with cu_seqlens"),
    ):
        with pytest.raises(ValueError, match=message):
            module(x, cu_seqlens=bounds, **given)
    with pytest.raises(ValueError, match="RotaryAttention: cu_seqlens must end with T = 9, got 8"):
        module(x, cu_seqlens=torch.tensor([0, 8]))
    with pytest.raises(ValueError, match=r"x must be one sequence .* got B = 2"):
        module(x.expand(2, -1, -1), cu_seqlens=bounds)


def test_bias_of_all_but_the_output():
    """The parameters of a layer of Qwen2."""
    module = posenc_ext.RotaryAttention(24, 3, bias="qkv")
    biases = {name for name, _ in module.named_parameters() if name.endswith("bias")}
    assert biases == {"q_proj.bias", "k_proj.bias", "v_proj.bias"}
    with pytest.raises(TypeError, match="bias must be a bool"):
        posenc_ext.RotaryAttention(24, 3, bias="all")
