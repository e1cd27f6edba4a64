"""The op rotary_embedding of vLLM: its semantics, against the oracle."""

import pytest
import torch
from rope_cases import assert_bits, assert_close, expected, table, uniform

from posenc_ext import rope
from posenc_ext.compat.vllm import rotary_embedding

R, D = 12, 16
COS, SIN = table(R // 2)
CACHE = torch.cat([COS, SIN], -1)
FLAT = torch.tensor([3, 0, 63, 3, 17])
BATCH = torch.tensor([[3, 0, 63, 3, 17], [5, 6, 7, 8, 9]])


def right_of(x, positions, neox, first=0, inverse=False):
    """x as [.., H, D], the window of channels from `first` rotated."""
    y = x.clone()
    window = x[..., first : first + R]
    layout = "shd" if positions.dim() == 1 else "bshd"
    options = {"layout": layout, "positions": positions, "interleaved": not neox}
    y[..., first : first + R] = torch.from_numpy(
        expected("rope", window, COS, SIN, inverse=inverse, **options)
    ).to(x.dtype)
    return y


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("positions", [FLAT, BATCH, FLAT.int()])
def test_in_place(positions, flat, neox):
    query, key = uniform((*positions.shape, 4, D)), uniform((*positions.shape, 2, D), seed=1)
    right = [right_of(x, positions, neox) for x in (query, key)]
    if flat:
        query, key = query.flatten(-2), key.flatten(-2)
    assert rotary_embedding(positions, query, key, D, CACHE, neox) is None
    for mine, wanted in zip((query, key), right, strict=True):
        torch.testing.assert_close(mine.view(wanted.shape), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("first", [0, 3, 4])
def test_a_window_of_channels(first, inverse):
    query = uniform((5, 4, D))
    right = right_of(query, FLAT, True, first, inverse)
    rotary_embedding(FLAT, query, None, D, CACHE, True, first, inverse)
    torch.testing.assert_close(query, right, rtol=1e-6, atol=1e-6)
    before = uniform((5, 4, D))
    assert_bits(query[..., :first], before[..., :first])
    assert_bits(query[..., first + R :], before[..., first + R :])


def test_views_of_a_fused_projection():
    qkv = uniform((5, (4 + 2 + 2) * D))
    before = qkv.clone()
    query, key, _ = qkv.split([4 * D, 2 * D, 2 * D], -1)
    rotary_embedding(FLAT, query, key, D, CACHE, True)
    heads = before.view(5, 8, D)
    assert_close(qkv.view(5, 8, D)[:, :6], expected(
        "rope", heads[:, :6], COS, SIN, layout="shd", positions=FLAT))  # fmt: skip
    assert_bits(qkv[:, 6 * D :], before[:, 6 * D :])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_of_query_and_cache_are_independent(dtype, kind):
    query = uniform((5, 4, D), dtype)
    cos, sin = COS.to(kind).float(), SIN.to(kind).float()
    right = rope(query.float(), cos, sin, layout="shd", positions=FLAT).to(dtype)
    rotary_embedding(FLAT, query, None, D, CACHE.to(kind), True)
    assert_bits(query, right)


Q, K = uniform((5, 4 * D)), uniform((5, 2 * D))
BAD = {  # what differs from a good call
    "position_beyond": (IndexError, "positions", {"positions": FLAT + 1}),
    "position_negative": (IndexError, "positions", {"positions": FLAT - 1}),
    "positions_3d": (ValueError, "positions must have shape", {"positions": FLAT[None, None]}),
    "positions_float": (TypeError, "positions", {"positions": FLAT.float()}),
    "other_tokens": (ValueError, "query must have shape", {"positions": FLAT[:4]}),
    "key_tokens": (ValueError, "key must have shape", {"key": K[:4]}),
    "head_size": (ValueError, "query must have shape", {"head_size": 24}),
    "cache_odd": (ValueError, "cos_sin_cache must have", {"cos_sin_cache": CACHE[:, :11]}),
    "cache_wide": (ValueError, "rope_dim_offset must be", {"cos_sin_cache": CACHE.repeat(1, 2)}),
    "window": (ValueError, "rope_dim_offset must be from 0 to", {"rope_dim_offset": 5}),
    "window_negative": (ValueError, "rope_dim_offset must be", {"rope_dim_offset": -1}),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_leave_everything_as_it_was(case):
    kind, text, changes = BAD[case]
    good = {"positions": FLAT, "query": Q.clone(), "key": K.clone(), "head_size": D,
            "cos_sin_cache": CACHE, "is_neox": True}  # fmt: skip
    args = good | changes
    before = args["query"].clone(), args["key"].clone()
    with pytest.raises(kind, match=r"^posenc_ext\.") as raised:
        rotary_embedding(**args)
    assert text in str(raised.value)
    assert_bits(args["query"], before[0])
    assert_bits(args["key"], before[1])
