"""The kernel of apply_rope_cache against the CPU op, bit for bit."""

import pytest
import torch
from cache_cases import (
    CACHE_LAYOUTS,
    EIGHT_BITS,
    cache_of,
    call_of,
    paged_slots,
    same_bits,
    with_norm,
)
from guarded import guarded
from norm_cases import RULES
from rope_cases import DTYPES, VIEWS, name, table, uniform
from source_calls import each_dtype, each_pairing

PARAMETERS = ("q_weight", "k_weight", "q_bias", "k_bias")
CPU, CUDA = torch.ops.posenc_ext, torch.ops.posenc_cuda_source


def scale_of(value):
    return torch.tensor(float(value)) if isinstance(value, (int, float)) else value


def run(library, call, inplace=False):
    """q and the caches after a call of the op."""
    o = call.options
    offset = o.get("offset", 0)
    offset, offsets = (0, offset) if torch.is_tensor(offset) else (offset, None)
    interleaved = o.get("interleaved", False)
    options = (
        o.get("positions"), offsets, o.get("cu_seqlens"), offset, o["layout"], interleaved,
        o.get("inverse", False), o.get("interleaved_out", interleaved), o.get("slots"),
        o["cache_layout"], o.get("window", 0), scale_of(o.get("k_scale")),
        scale_of(o.get("v_scale")), *(o.get(name) for name in PARAMETERS), o.get("eps", 0.0),
        o.get("weight_offset", 0.0), o.get("norm"), o.get("norm_dims", "head"),
        o.get("order", "norm_first"), o.get("rounding", "once"),
    )  # fmt: skip
    if inplace:
        library.apply_rope_cache_(*call[:5], *call.tables, *options)
        return call.q, *call[3:5]
    return library.apply_rope_cache(*call[:5], *call.tables, *options), *call[3:5]


def copied(call):
    return call._replace(**{n: getattr(call, n).clone() for n in ("q", "k_cache", "v_cache")})


def check(call, inplace=False):
    right = run(CPU, copied(call), inplace)
    for actual, r in zip(run(CUDA, copied(call), inplace), right, strict=True):
        same_bits(actual, r)


@each_pairing
@each_dtype
@pytest.mark.parametrize("cache_layout", CACHE_LAYOUTS)
def test_layouts_and_dtypes(cache_layout, dtype, pairing):
    for layout in ("bshd", "sbhd", "hsd", "bsd"):
        check(call_of(cache_layout, dtype, layout=layout, offset=3, inverse=True, **pairing))
    check(call_of(cache_layout, dtype, dim=32, value_dim=32, pairs=16, **pairing), inplace=True)
    check(call_of(cache_layout, dtype, pairs=0))


@each_dtype
@pytest.mark.parametrize("kind", RULES, ids="-".join)
def test_norms(kind, dtype):
    check(with_norm(call_of("nphd", dtype, layout="bhsd", dim=40), kind), inplace=True)
    check(with_norm(call_of("bhld", dtype, interleaved=True, inverse=True, offset=3), kind))
    for rounding in ("norm", "transformers"):
        check(with_norm(call_of("blhd", dtype, window=4), kind, rounding=rounding))
    check(with_norm(many_heads(dtype), kind))
    if dtype != torch.float64:
        for stored in EIGHT_BITS:
            scale = torch.tensor([0.2, 0.013])
            check(with_norm(call_of("nhpd", dtype, stored, k_scale=scale, v_scale=3), kind))


def many_heads(dtype):
    """More heads of k than a block normalises at once."""
    call = call_of("nphd", dtype, batch=1, length=2, dim=8, value_dim=4, pairs=3)
    k, v = (uniform((1, 2, 37, n), dtype) for n in (8, 4))
    caches = [cache_of("nphd", 9, 4, 37, n, dtype) for n in (8, 4)]
    return call._replace(k=k, v=v, k_cache=caches[0], v_cache=caches[1])


@pytest.mark.parametrize("stored", EIGHT_BITS, ids=name)
@pytest.mark.parametrize("dtype", DTYPES[:1] + DTYPES[2:], ids=name)
def test_eight_bits(dtype, stored):
    for cache_layout in CACHE_LAYOUTS:
        each = torch.tensor([0.2, 0.013])
        check(call_of(cache_layout, dtype, stored, k_scale=0.3, v_scale=each))
        check(call_of(cache_layout, dtype, stored, k_scale=each, v_scale=2, interleaved=True))


@pytest.mark.parametrize("offset", [0, 27])
@pytest.mark.parametrize("length", [1, 7, 20])
def test_a_ring(length, offset):
    check(call_of("blhd", length=length, offset=offset, window=5))  # not the number of blocks
    check(call_of("bhld", length=length, offset=torch.tensor([offset, 4]), window=32))


def test_positions_offsets_packed_and_per_token_rows():
    check(call_of("blhd", positions=torch.tensor([[9, 2, 7, 0, 31], [1, 2, 3, 4, 5]]).int()))
    check(call_of("nphd", layout="thd", batch=1, length=9, cu_seqlens=torch.tensor([0, 4, 9])))
    rows = uniform((2, 5, 8), seed=8), uniform((2, 5, 8), seed=9)
    check(call_of("nhpd")._replace(tables=rows))
    check(call_of("nphd", slots=paged_slots(2, 5, 9).view(2, 5).int()))
    check(call_of("nphd", slots=torch.stack([paged_slots(2, 5, 9)] * 2, 1)[:, 0]))


@pytest.mark.parametrize("view", [v for v in VIEWS if v != "expanded"])
def test_strides(view):
    for cache_layout in CACHE_LAYOUTS:
        call = call_of(cache_layout, torch.bfloat16)
        right = run(CPU, copied(call))
        views = call._replace(**{n: VIEWS[view](getattr(call, n)) for n in call._fields[:5]})
        for actual, r in zip(run(CUDA, views), right, strict=True):
            same_bits(actual, r)


@pytest.mark.parametrize("size", [(0, 3), (2, 0), (2, 3)], ids=str)
def test_empty(size):
    for cache_layout in CACHE_LAYOUTS:
        batch, length = size
        check(call_of(cache_layout, batch=batch, length=length))
        check(call_of(cache_layout, batch=batch, length=length, value_dim=0))


BAD = {
    "slot_negative": ("nphd", {"slots": torch.tensor([0, 1, -2, 3, 4, 5, 6, 7, 8, 9])}),
    "slot_past_the_end": ("nhpd", {"slots": torch.tensor([0, 1, 36, 3, 4, 5, 6, 7, 8, 9])}),
    "slot_huge": ("nphd", {"slots": torch.tensor([0, 1, 2**62, 3, 4, 5, 6, 7, 8, 9])}),
    "position": ("blhd", {"positions": torch.tensor([0, 1, 64, 3, 4])}),
    "row": ("bhld", {"positions": torch.tensor([0, 1, 32, 3, 4])}),
    "offset": ("blhd", {"offset": torch.tensor([0, 30])}),
}


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("bad", BAD)
def test_places_outside_the_cache_fail_an_assert_and_are_never_written(bad, at_end):
    cache_layout, options = BAD[bad]
    call = call_of(cache_layout, **options)
    call = call._replace(**{n: guarded(getattr(call, n), at_end) for n in call._fields[:5]})
    call = call._replace(tables=tuple(guarded(t, at_end) for t in table(8)))
    with pytest.raises(RuntimeError, match="device assert: "):
        run(CUDA, call)
    CUDA.stop_at_asserts(False)
    try:
        run(CUDA, call)
    finally:
        CUDA.stop_at_asserts(True)


def test_many_tokens():
    """More than there are blocks, and more than 65535."""
    tokens = 70_000
    call = call_of("nphd", batch=1, length=tokens, dim=2, value_dim=1, pairs=1,
                   slots=torch.randperm(tokens))  # fmt: skip
    caches = [cache_of("nphd", tokens, 1, 2, n, torch.float32) for n in (2, 1)]
    check(call._replace(k_cache=caches[0], v_cache=caches[1], tables=table(1, length=tokens)))


@each_dtype
def test_bytes_moved_are_the_fewest_possible(dtype):
    call = call_of("nphd", dtype, dim=32, pairs=16)
    CUDA.traffic()
    run(CUDA, call)
    read, written = CUDA.traffic()
    stored = (call.options["slots"] >= 0).sum().item() / 10
    moved = stored * (call.k.nbytes + call.v.nbytes)
    assert written == call.q.nbytes + moved
    tables = call.k.numel() * stored * call.tables[0].itemsize  # cos and sin of each pair
    rows = 10 * 4 * 2 * call.tables[0][0].nbytes + 10 * 8  # by each of four heads of q, if so few
    assert read == call.q.nbytes + moved + tables + rows
