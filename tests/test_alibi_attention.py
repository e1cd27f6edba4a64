"""ALiBiAttention: cache, padding, blocks of queries, slopes; and the FlexAttention score_mod."""

import io

import pytest
import torch
import torch.nn.functional as F
from alibi_cases import scores_of, slopes_of
from rope_cases import assert_bits, uniform
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention.flex_attention import flex_attention

import posenc_ext

F64 = torch.float64
D_MODEL, HEADS, LENGTH = 24, 3, 13
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
BLOCKS = (None, 1, 4, LENGTH, LENGTH + 5)


def attention(causal=True, dtype=F64, **options):
    torch.manual_seed(3)
    return posenc_ext.ALiBiAttention(D_MODEL, HEADS, causal=causal, dtype=dtype, **options)


def by_hand(module, x, keep=None):
    """The formula, by torch alone."""
    b, s, _ = x.shape
    q, k, v = (t.view(b, s, HEADS, -1).transpose(1, 2) for t in module.qkv(x).chunk(3, -1))
    i = torch.arange(s)
    bias = -module.slopes[:, None, None] * (i[:, None] - i).abs()
    if module.causal:
        bias = bias.masked_fill(i[:, None] < i, -float("inf"))
    scores = q @ k.mT / (D_MODEL // HEADS) ** 0.5 + bias
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, None, :], -float("inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return module.out((weights @ v).transpose(1, 2).reshape(b, s, -1))


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@both_masks
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("padding", [False, True], ids=["real", "padded"])
def test_output_and_gradients(padding, block, causal):
    module = attention(causal, query_block=block, learn_slopes=True)
    x = uniform((2, LENGTH, D_MODEL), F64).requires_grad_()
    keep = None
    if padding:  # the second entry keeps none at all
        keep = torch.arange(LENGTH)[None] >= torch.tensor([[4], [LENGTH]])
    y, right = module(x, key_padding_mask=keep), by_hand(module, x, keep)
    same(y, right)
    upstream = uniform(y.shape, F64, 5)
    if padding:
        upstream[1] = 0  # by_hand has NaN gradients there
        upstream[0, :4] = 0
    wanted = (x, *module.parameters())
    grads = torch.autograd.grad(y, wanted, upstream)
    assert len(grads) == 6
    if not padding:
        for a, b in zip(grads, torch.autograd.grad(right, wanted, upstream), strict=True):
            same(a, b)
    fused = attention(causal, learn_slopes=True)(x, key_padding_mask=keep)
    others = torch.autograd.grad(fused, x, upstream)
    same(grads[0], others[0])
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("block", [None, 2])
@both_masks
def test_blind_queries_give_zero_and_finite_gradients(block, causal):
    module = attention(causal, query_block=block, bias=False)
    x = uniform((1, LENGTH, D_MODEL), F64).requires_grad_()
    keep = torch.zeros(1, LENGTH, dtype=torch.bool)
    y = module(x, key_padding_mask=keep)
    assert not y.any()
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert not grad.any()


@pytest.mark.parametrize("block", [None, 4])
def test_decoding_gives_the_rows_of_the_full_pass(block):
    """For every split point, at once and token by token."""
    module, x = attention(query_block=block), uniform((2, LENGTH, D_MODEL), F64)
    full = module(x)
    for split in range(LENGTH + 1):
        first, cache = module(x[:, :split], use_cache=True)
        assert cache[0].shape == cache[1].shape == (2, HEADS, split, D_MODEL // HEADS)
        rest, more = module(x[:, split:], past=cache, use_cache=True)
        same(torch.cat([first, rest], 1), full)
        assert more[0].shape[2] == LENGTH
        for t in range(split, LENGTH):
            step, cache = module(x[:, t : t + 1], past=cache, use_cache=True)
            same(step, full[:, t : t + 1])


@pytest.mark.parametrize("block", [None, 4])
@both_masks
def test_left_padding_changes_nothing(block, causal):
    module, real = attention(causal, query_block=block), uniform((2, 7, D_MODEL), F64)
    right = module(real)
    for pads in (1, 6):
        x = torch.cat([uniform((2, pads, D_MODEL), F64, 8) * 50, real], 1)
        keep = (torch.arange(pads + 7) >= pads).expand(2, -1)
        same(module(x, key_padding_mask=keep)[:, pads:], right)
        if causal:
            _, cache = module(
                x[:, : pads + 3], key_padding_mask=keep[:, : pads + 3], use_cache=True
            )
            y = module(x[:, pads + 3 :], key_padding_mask=keep, past=cache)
            same(y, right[:, 3:])


def test_blocks_under_torch_func():
    module, x = attention(query_block=4, learn_slopes=True), uniform((2, LENGTH, D_MODEL), F64)
    params = dict(module.named_parameters())

    def loss(params, x):
        return torch.func.functional_call(module, params, (x,)).square().sum()

    grads = torch.func.grad(loss)(params, x)
    right = torch.autograd.grad(module(x).square().sum(), tuple(params.values()))
    for a, b in zip(grads.values(), right, strict=True):
        same(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_weights_assigned_to_a_module_on_meta(dtype):
    right, x = attention(dtype=dtype), uniform((2, LENGTH, D_MODEL), dtype)
    module = attention(dtype=torch.float32, device="meta")
    module.load_state_dict(right.state_dict(), assign=True)
    assert_bits(module(x), right(x))


def test_blocks_keep_no_matrix_for_backward():
    """What autograd keeps of the long-context path grows with S, not with S * S."""
    sizes = {}
    for length in (64, 128):
        saved = []
        module = attention(dtype=torch.float32, query_block=16, learn_slopes=True)
        x = uniform((1, length, D_MODEL)).requires_grad_()

        def keep(t, saved=saved):
            saved.append(t.numel())
            return t

        with saved_tensors_hooks(keep, lambda t: t):
            module(x).sum().backward()
        assert max(saved) < 8 * length * D_MODEL
        sizes[length] = max(saved)
    assert sizes[128] <= 2 * sizes[64]


@pytest.mark.parametrize("block", [None, 4])
def test_dropout_only_in_training(block):
    module, x = attention(dropout=0.5, query_block=block), uniform((2, LENGTH, D_MODEL), F64)
    assert not torch.equal(module(x), module(x))
    module.eval()
    same(module(x), by_hand(module, x))


def test_fixed_slopes_are_not_cast_nor_saved():
    module = posenc_ext.ALiBiAttention(D_MODEL, HEADS)
    right = posenc_ext.alibi_slopes(HEADS)
    assert set(module.state_dict()) == {"qkv.weight", "qkv.bias", "out.weight", "out.bias"}
    assert_bits(module.bfloat16().slopes, right)
    assert module(uniform((1, 5, D_MODEL), torch.bfloat16)).dtype == torch.bfloat16
    assert_bits(module.double().slopes, posenc_ext.alibi_slopes(HEADS, dtype=F64))
    assert_bits(module.float().slopes, right)
    with torch.device("meta"):
        module = posenc_ext.ALiBiAttention(D_MODEL, HEADS)
        assert_bits(posenc_ext.ALiBiAttention(D_MODEL, HEADS, device="cpu").slopes, right)
        other = posenc_ext.ALiBiAttention(D_MODEL, HEADS)
        assert_bits(other.to_empty(device="cpu").slopes, right)
    assert module.slopes.device.type == "meta"
    assert_bits(module.to_empty(device="cpu").slopes, right)


def test_a_cast_of_all_buffers_leaves_fixed_slopes_alone():
    """As FSDP's buffer_dtype does it."""
    module = posenc_ext.ALiBiAttention(36, 6)
    before = module.slopes.clone()
    for buffer in module.buffers():
        buffer.data = buffer.data.bfloat16()
    assert module.slopes.dtype == torch.float32
    assert_bits(module.slopes, before)
    assert "slopes" not in dict(module.named_buffers()) | module.state_dict()
    module.slopes = before.to("meta")  # as if it were elsewhere
    module(torch.randn(1, 3, 36))
    assert_bits(module.slopes, before)


def test_moved_in_inference_mode_then_trained():
    module = posenc_ext.ALiBiAttention(D_MODEL, HEADS, dtype=F64)
    with torch.inference_mode():
        module.to("cpu")  # leaves the weights as they are
    module(uniform((1, 5, D_MODEL), F64)).sum().backward()
    assert module.qkv.weight.grad is not None


def test_learned_slopes():
    module = posenc_ext.ALiBiAttention(D_MODEL, HEADS, learn_slopes=True, max_bias=4.0)
    assert_bits(module.slopes.detach(), posenc_ext.alibi_slopes(HEADS, max_bias=4.0))
    assert "slopes" in module.state_dict()
    module(uniform((2, 9, D_MODEL))).sum().backward()
    assert module.slopes.grad.abs().sum() > 0
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other = posenc_ext.ALiBiAttention(D_MODEL, HEADS, learn_slopes=True)
    other.load_state_dict(torch.load(buffer))
    assert_bits(other.slopes.detach(), module.slopes.detach())


def test_empty_inputs():
    for block in (None, 4):
        module = attention(query_block=block)
        for size in ((2, 0, D_MODEL), (0, 5, D_MODEL)):
            assert module(uniform(size, F64)).shape == size


def test_compile():
    torch._dynamo.reset()
    module, x = attention(), uniform((2, LENGTH, D_MODEL), F64)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    same(compiled(x), module(x))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@both_masks
@pytest.mark.parametrize("batch", [None, 2], ids=["H", "BH"])
@pytest.mark.parametrize("lengths", [(9, 9), (4, 11), (1, 7)], ids=str)
def test_flex_attention(lengths, batch, causal):
    q_len, k_len = lengths
    slopes = slopes_of(batch=batch)
    q, k, v = (uniform((2, 3, n, 8), seed=n) for n in (q_len, k_len, k_len))
    mod = posenc_ext.alibi_score_mod(slopes, q_len, k_len, causal=causal)
    y = flex_attention(q, k, v, score_mod=mod)
    bias = posenc_ext.alibi_bias(slopes, q_len, k_len, causal=causal)
    right = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-6)
    weights = posenc_ext.alibi_softmax(q @ k.mT, slopes, scale=8**-0.5, causal=causal)
    torch.testing.assert_close(weights @ v, right, rtol=1e-5, atol=1e-6)


def test_score_mod_is_the_bias():
    slopes, scores = slopes_of(batch=2), scores_of((4, 6))
    mod = posenc_ext.alibi_score_mod(slopes, 4, 6, causal=True)
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    assert_bits(mod(scores, b, h, i, j), posenc_ext.add_alibi(scores, slopes, causal=True))
