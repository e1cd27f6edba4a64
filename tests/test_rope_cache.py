"""apply_rope_cache against a rotation and index_put, bit for bit."""

import pytest
import torch
from cache_cases import (
    CACHE_LAYOUTS,
    EIGHT_BITS,
    PAGE,
    cache_of,
    call_of,
    check,
    in_eight_bits,
    paged_slots,
    rows_of,
    same_bits,
)
from hypothesis import given
from hypothesis import strategies as st
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from rope_cases import DTYPES, VIEWS, name, table, threads, uniform
from test_fuzz_errors import many

import posenc_ext

each_cache = pytest.mark.parametrize("cache_layout", CACHE_LAYOUTS)
each_format = pytest.mark.parametrize("stored", EIGHT_BITS, ids=name)


@each_cache
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_layouts_and_dtypes(dtype, cache_layout):
    for layout in ("bshd", "bhsd", "sbhd", "shd", "hsd", "bsd", "sd"):
        check(call_of(cache_layout, dtype, layout=layout, offset=9))
    check(call_of(cache_layout, dtype, interleaved=True, interleaved_out=False, inverse=True))
    check(call_of(cache_layout, dtype, pairs=0))


@each_cache
@each_format
@pytest.mark.parametrize("dtype", DTYPES[:1] + DTYPES[2:], ids=name)
def test_eight_bits(dtype, stored, cache_layout):
    for scales in (
        {"k_scale": 0.37, "v_scale": 0.021},
        {"k_scale": torch.tensor([0.2, 0.01]), "v_scale": torch.tensor(0.05)},
        {} if stored != torch.int8 else {"k_scale": 1, "v_scale": 1},
    ):
        check(call_of(cache_layout, dtype, stored, interleaved=True, offset=2, **scales))
    heads = torch.tensor([0.2, 7.0, 0.01, 9.0])[::2]
    check(call_of(cache_layout, dtype, stored, k_scale=heads, v_scale=heads))


def every_float():
    """Floats of every exponent and sign, ties of every format, infinities and NaN."""
    patterns = torch.arange(-(2**31), 2**31, 65521, dtype=torch.int64)
    ties = torch.arange(-(2**15), 2**15, dtype=torch.int64) * 65536
    return torch.cat([patterns, ties]).to(torch.int32).view(torch.float32)


@each_format
def test_rounding_of_every_kind_of_number(stored):
    x = every_float()
    v = x[: len(x) // 16 * 16].view(1, -1, 1, 16)
    tokens = v.shape[1]
    caches = [torch.zeros(tokens, 1, 1, 16, dtype=stored) for _ in "kv"]
    ones, zeros = torch.ones(1, tokens, 8), torch.zeros(1, tokens, 8)
    posenc_ext.apply_rope_cache(
        v, v, v, *caches, ones, zeros, slots=torch.arange(tokens), k_scale=1.0, v_scale=1.0
    )
    same_bits(caches[1], in_eight_bits(v, 1.0, stored).view(caches[1].shape))


@pytest.mark.parametrize("offset", [0, 3, 27])
@pytest.mark.parametrize("length", [1, 5, 7, 8, 20, 33])
def test_a_ring(length, offset):
    for cache_layout in ("blhd", "bhld"):
        check(call_of(cache_layout, length=length, offset=offset, window=7))
        check(call_of(cache_layout, length=length, offset=torch.tensor([offset, 4]), window=32))


def test_positions_and_offsets():
    check(call_of("blhd", positions=torch.tensor([9, 2, 7, 0, 31])))
    check(call_of("bhld", positions=torch.tensor([[9, 2, 7, 0, 31], [1, 2, 3, 4, 5]]).int()))
    check(call_of("blhd", offset=torch.tensor([3, 20])))
    check(call_of("blhd", positions=torch.tensor([40, 1, 2, 3, 7]), window=32))


def test_packed_and_per_token_rows_with_slots():
    call = call_of("nphd", layout="thd", batch=1, length=9, cu_seqlens=torch.tensor([0, 4, 9]))
    check(call)
    rows = uniform((2, 5, 8), seed=8), uniform((2, 5, 8), seed=9)
    check(call_of("nhpd")._replace(tables=rows))
    both = call_of("nphd", slots=paged_slots(2, 5, 9).view(2, 5).int())
    check(both)
    strided = torch.stack([paged_slots(2, 5, 9)] * 2, 1)[:, 0]
    check(call_of("nphd", slots=strided))


def test_a_contiguous_cache_by_slots():
    """As a paged one of B blocks, for tokens whose rows are not their positions."""
    call = call_of("nphd", slots=torch.arange(10))
    blocks = (
        cache_of("nphd", 2, 32, 2, 20, torch.float32),
        cache_of("nphd", 2, 32, 2, 12, torch.float32),
    )
    call = call._replace(k_cache=blocks[0], v_cache=blocks[1])
    call.options["slots"] = torch.cat([torch.arange(6, 11), 32 + torch.arange(5)])
    check(call)


@each_cache
@pytest.mark.parametrize("view", [v for v in VIEWS if v != "expanded"])
def test_strides(view, cache_layout):
    call = call_of(cache_layout, torch.bfloat16)
    right = call.make()
    views = [VIEWS[view](t) for t in call[:5]]
    q = posenc_ext.apply_rope_cache(*views, *call.tables, **call.options)
    for actual, r in zip((q, *views[3:]), right, strict=True):
        same_bits(actual, r)


def test_two_caches_in_one_memory():
    for axis in (0, 1, 2, 3, 4):
        call = call_of("nphd", value_dim=20)
        both = torch.stack([call.k_cache, call.v_cache], axis)
        k_cache, v_cache = both.unbind(axis)
        right = call.make()
        q = posenc_ext.apply_rope_cache(*call[:3], k_cache, v_cache, *call.tables, **call.options)
        for actual, r in zip((q, k_cache, v_cache), right, strict=True):
            same_bits(actual, r)


def test_in_place_and_versions():
    for orders in ({}, {"interleaved": True, "interleaved_out": False}):
        call = call_of("blhd", **orders)
        q, k_cache, v_cache = (t.clone() for t in (call.q, call.k_cache, call.v_cache))
        versions = [t._version for t in (q, k_cache, v_cache, call.k)]
        given = (q, call.k, call.v, k_cache, v_cache)
        out = posenc_ext.apply_rope_cache(*given, *call.tables, inplace=True, **call.options)
        assert out is q
        for actual, right in zip((q, k_cache, v_cache), call.make(), strict=True):
            same_bits(actual, right)
        changed = [
            t._version > v for t, v in zip((q, k_cache, v_cache, call.k), versions, strict=True)
        ]
        assert changed == [True, True, True, False]


def test_lengths_of_q_and_k_may_differ():
    call = call_of("blhd", offset=3)
    check(call._replace(q=call.q[:, :2]))
    check(call._replace(k=call.k[:, :2], v=call.v[:, :2]))


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("length", [0, 3])
def test_empty(batch, length):
    for cache_layout in CACHE_LAYOUTS:
        for stored in (None, torch.int8):
            scales = {} if stored is None else {"k_scale": 1.0, "v_scale": 1.0}
            check(call_of(cache_layout, stored=stored, batch=batch, length=length, **scales))
            check(call_of(cache_layout, stored=stored, value_dim=0, **scales))


def test_threads_are_bit_equal():
    slots = torch.randperm(800, generator=torch.Generator().manual_seed(1))
    sizes = {"batch": 4, "length": 200, "dim": 64, "pairs": 32, "slots": slots}
    results = {}
    for stored in (torch.bfloat16, torch.float8_e4m3fn):
        caches = [cache_of("nphd", 200, 4, 2, n, stored) for n in (64, 12)]
        call = call_of("nphd", torch.bfloat16, stored, **sizes)
        call = call._replace(k_cache=caches[0], v_cache=caches[1], tables=table(32, length=200))
        for count in (1, 2, 3):
            with threads(count):
                results[stored, count] = call.make()
    for (stored, _), result in results.items():
        for actual, right in zip(result, results[stored, 1], strict=True):
            same_bits(actual, right)


@many
@given(st.data())
def test_random_calls(data):
    draw, sizes = data.draw, st.integers(0, 7)
    cache_layout = draw(st.sampled_from(CACHE_LAYOUTS))
    pairs = draw(st.integers(0, 20))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    stored = draw(st.sampled_from([dtype, *EIGHT_BITS]))
    scales = {}
    if stored != dtype:
        scales = {"k_scale": draw(st.floats(0.01, 4)), "v_scale": draw(st.floats(0.01, 4))}
    batch, length = draw(st.integers(0, 3)), draw(sizes)
    dim = 2 * pairs + draw(sizes)
    options = {"interleaved": draw(st.booleans()), "interleaved_out": draw(st.booleans())}
    layout = draw(st.sampled_from(["bshd", "bhsd", "sbhd"]))
    where = {"offset": draw(st.integers(0, 9))}
    if cache_layout.startswith("b") and draw(st.booleans()):
        where["window"] = draw(st.integers(1, 32))
    check(
        call_of(cache_layout, dtype, stored, layout, batch, length, dim, draw(sizes), pairs,
                **options, **where, **scales)
    )  # fmt: skip


def test_rows_are_those_of_the_layout():
    """What the other tests take for the order of tokens."""
    x = uniform((2, 3, 5, 4))
    assert torch.equal(rows_of(x, "bhsd")[5 + 2], x[1, :, 2])
    assert torch.equal(rows_of(x, "sbhd")[2 * 1 + 1], x[1, 1])
    assert PAGE == 4


def fingerprints():
    found = {}
    for dtype in DTYPES:
        for stored in (dtype, *(EIGHT_BITS if dtype != torch.float64 else ())):
            for dim in (6, 20, 40, 72, 130):
                scales = {} if stored == dtype else {"k_scale": 0.3, "v_scale": 0.07}
                call = call_of(
                    "nhpd", dtype, stored, dim=dim, value_dim=dim + 3, pairs=dim // 2, **scales
                )
                bits = [t if t.itemsize > 1 else t.view(torch.int8).float() for t in call.make()]
                found[f"{dtype} {stored} {dim}"] = digest(*bits)
    return found


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=60)


if __name__ == "__main__":
    print_fingerprints(fingerprints())
