"""KVCache: what it holds, its errors, and attention modules that decode with it."""

import pytest
import torch
from rope_cases import table, uniform

import posenc_ext


def filled(length=5, **options):
    cache = posenc_ext.KVCache(2, 8, 3, 4, **options)
    k, v = uniform((2, 3, length, 4)), uniform((2, 3, length, options.get("value_dim", 4)), seed=1)
    cache.append(k, v)
    return cache, k, v


def test_append_and_views():
    cache, k, v = filled(value_dim=6)
    assert len(cache) == 5
    more = uniform((2, 3, 2, 4), seed=2), uniform((2, 3, 2, 6), seed=3)
    keys, values = cache.append(*more)
    assert torch.equal(keys, torch.cat([k, more[0]], 2))
    assert torch.equal(values, torch.cat([v, more[1]], 2))
    assert keys.data_ptr() == cache.k_cache.data_ptr()
    assert torch.equal(cache.keys, keys)
    assert repr(cache) == "KVCache(2, 8, 3, 4: 7 tokens)"
    with pytest.raises(ValueError, match=r"posenc_ext.KVCache: length must have room .*, got 8"):
        cache.append(*more)
    assert len(cache) == 7


def test_crop_and_reset():
    cache, k, v = filled()
    cache.crop(-2)
    assert torch.equal(cache.keys, k[:, :, :3])
    cache.crop(1)
    assert torch.equal(cache.values, v[:, :, :1])
    with pytest.raises(ValueError, match="length must be at most 1, got 2"):
        cache.crop(2)
    cache.reset()
    assert cache.keys.shape == (2, 3, 0, 4)


def test_reorder():
    cache, k, v = filled()
    cache.reorder(torch.tensor([1, 1]))
    assert torch.equal(cache.keys, k[[1, 1]])
    assert torch.equal(cache.values, v[[1, 1]])
    for index, error in (
        (torch.tensor([0, 2]), IndexError),
        (torch.tensor([0, -1]), IndexError),
        (torch.tensor([0]), ValueError),
        (torch.tensor([0.0, 1.0]), TypeError),
        ([0, 1], TypeError),
    ):
        with pytest.raises(error, match=r"posenc_ext.KVCache: index must .+, got .+"):
            cache.reorder(index)


@pytest.mark.parametrize(
    ("error", "k"),
    [
        (TypeError, [1.0]),
        (TypeError, uniform((2, 3, 1, 4), torch.float64)),
        (ValueError, uniform((2, 3, 1, 5))),
        (ValueError, uniform((3, 1, 4))),
        (ValueError, uniform((2, 3, 1, 4)).to("meta")),
        (ValueError, uniform((2, 3, 1, 4)).requires_grad_()),
    ],
)
def test_what_cannot_be_appended(error, k):
    cache, *_ = filled()
    before = cache.k_cache.clone()
    with pytest.raises(error, match=r"posenc_ext.KVCache: k must .+, got .+"):
        cache.append(k, uniform((2, 3, 1, 4)))
    assert torch.equal(cache.k_cache, before)
    assert len(cache) == 5


def test_rotating_into_it():
    (cos, sin), cache = table(2), posenc_ext.KVCache(2, 8, 3, 4)
    qs, ks = [], []
    for step, length in enumerate((3, 1, 2)):
        x = [uniform((2, length, h, 4), seed=3 * step + i) for i, h in enumerate((6, 3, 3))]
        right = posenc_ext.apply_rope(*x[:2], cos, sin, offset=len(cache))
        assert torch.equal(cache.apply_rope(*x, cos, sin), right[0])
        qs, ks = [*qs, right[1]], [*ks, x[2]]
    assert torch.equal(cache.keys, torch.cat(qs, 1).transpose(1, 2))
    assert torch.equal(cache.values, torch.cat(ks, 1).transpose(1, 2))
    with pytest.raises(ValueError, match="length must have room for 3 more tokens than 6, got 8"):
        cache.apply_rope(*[uniform((2, 3, 3, 4))] * 3, cos, sin)
    with pytest.raises(ValueError, match="layout must be a str with an 's', got 'thd'"):
        cache.apply_rope(*[uniform((3, 3, 4))] * 3, cos, sin, layout="thd")
    assert len(cache) == 6


MODULES = {
    "rotary": (lambda: posenc_ext.RotaryAttention(16, 4, 2, dtype=torch.float64), 2),
    "alibi": (lambda: posenc_ext.ALiBiAttention(16, 4, dtype=torch.float64), 4),
    "alibi_blocks": (
        lambda: posenc_ext.ALiBiAttention(16, 4, query_block=2, dtype=torch.float64),
        4,
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_decode_with_it(name):
    """As without a cache, and bit for bit as with a pair of tensors."""
    make, heads = MODULES[name]
    module, x = make(), uniform((2, 9, 16), torch.float64)
    cache = posenc_ext.KVCache(2, 9, heads, 4, dtype=torch.float64)
    with torch.no_grad():
        right, past, parts = module(x), None, []
        for first, last in ((0, 4), (4, 5), (5, 9)):
            y, past = module(x[:, first:last], past=past, use_cache=True)
            with_cache, same = module(x[:, first:last], past=cache, use_cache=True)
            assert same is cache
            assert torch.equal(with_cache, y)
            assert torch.equal(cache.keys, past[0])
            assert torch.equal(cache.values, past[1])
            parts.append(with_cache)
    torch.testing.assert_close(torch.cat(parts, 1), right, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"KVCache: length must have room"), torch.no_grad():
        module(x[:, :1], past=cache)


@pytest.mark.parametrize("name", MODULES)
def test_modules_refuse_a_cache_of_other_sizes(name):
    module, x = MODULES[name][0](), uniform((2, 3, 16), torch.float64)
    for sizes in ((3, 9, 4, 4), (2, 9, 5, 4), (2, 9, 4, 5)):
        cache = posenc_ext.KVCache(*sizes, dtype=torch.float64)
        with pytest.raises(ValueError, match="past must be keys and values"), torch.no_grad():
            module(x, past=cache)
