"""ALiBiAttention with a mask of any shape, fewer heads of keys and values, and its weights."""

import numpy as np
import oracle_attention as oracle
import pytest
import torch
from attention_cases import values
from rope_cases import uniform

import posenc_ext

D_MODEL, HEADS, LENGTH = 24, 6, 11
X = uniform((2, LENGTH, D_MODEL), torch.float64)
WINDOW = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().triu(-3)
MASKS = {
    "window": WINDOW,
    "by batch": torch.stack([WINDOW, ~WINDOW])[:, None],
    "of keys": torch.arange(LENGTH) != 2,
    "of queries": (torch.arange(LENGTH) != 2)[:, None],
    "added": uniform((HEADS, LENGTH, LENGTH), torch.float64, 4),
    "added to keys": uniform((1, 1, LENGTH), torch.float64, 4),
}


def made(**options):
    torch.manual_seed(3)
    return posenc_ext.ALiBiAttention(D_MODEL, HEADS, dtype=torch.float64, **options).eval()


def right(module, causal, mask, keep=None):
    seen, added = np.ones((2, 1, LENGTH, LENGTH), bool), 0.0
    if causal:
        seen = seen & np.tri(LENGTH, dtype=bool)
    if keep is not None:
        seen = seen & keep.numpy()[:, None, None, :]
    if mask is not None:
        if mask.dtype == torch.bool:
            seen = seen & mask.numpy()
        else:
            added = mask.numpy()
    slopes = posenc_ext.alibi_slopes(HEADS, dtype=torch.float64).numpy()
    seen = np.broadcast_to(seen, (2, 1, LENGTH, LENGTH))[:, 0]
    arguments = values(module), HEADS, module.num_kv_heads, slopes, seen, added
    return oracle.alibi_attention(X.numpy(), *arguments)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, block, causal):
    module, mask = made(query_block=block, causal=causal), MASKS[name]
    keep = torch.arange(LENGTH)[None] >= torch.tensor([[0], [5]])
    for padding in (None, keep):
        y, weights = right(module, causal, mask, padding)
        mine = module(X, attn_mask=mask, key_padding_mask=padding)
        np.testing.assert_allclose(mine.detach().numpy(), y, rtol=1e-11, atol=1e-12)
        again, shown = module(X, attn_mask=mask, key_padding_mask=padding, need_weights=True)
        np.testing.assert_allclose(shown.detach().numpy(), weights, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(again.detach().numpy(), y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("block", [None, 4])
def test_fewer_heads_of_keys_and_values(block):
    module = made(num_kv_heads=2, query_block=block)
    np.testing.assert_allclose(module(X).detach().numpy(), right(module, True, None)[0], rtol=1e-11)
    first, cache = module(X[:, :-2], use_cache=True)
    assert cache[0].shape == (2, 2, LENGTH - 2, D_MODEL // HEADS)
    last, weights, cache = module(X[:, -2:], past=cache, use_cache=True, need_weights=True)
    torch.testing.assert_close(torch.cat([first, last], 1), module(X))
    assert weights.shape == (2, HEADS, 2, LENGTH)


@pytest.mark.parametrize("block", [None, 4])
def test_masked_gradients(block):
    module, mask = made(query_block=block, learn_slopes=True, num_kv_heads=3), MASKS["by batch"]
    x, up = X.clone().requires_grad_(), uniform(X.shape, torch.float64, 5)
    grads = torch.autograd.grad(module(x, attn_mask=mask), (x, *module.parameters()), up)
    plain = made(learn_slopes=True, num_kv_heads=3)
    y, _ = plain(x, attn_mask=mask, need_weights=True)
    wanted = torch.autograd.grad(y, (x, *plain.parameters()), up)
    torch.testing.assert_close(grads, wanted, rtol=1e-10, atol=1e-12)


def test_errors():
    with pytest.raises(ValueError, match="ALiBiAttention: num_kv_heads must divide num_heads = 6"):
        made(num_kv_heads=4)
    with pytest.raises(ValueError, match="ALiBiAttention: attn_mask must broadcast"):
        made()(X, attn_mask=WINDOW[:-1])
