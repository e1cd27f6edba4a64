"""Random right calls, of random shapes, strides, dtypes and options, against the oracles."""

import numpy as np
import oracle
import oracle_alibi
import oracle_norm
import oracle_relative
import oracle_sinusoidal
import torch
from hypothesis import given
from hypothesis import strategies as st
from norm_cases import DIMS, NORMS, ORDERS, channels, parameter
from rope_cases import DTYPES, LAYOUTS, VIEWS, assert_close, check_rope, double, table, uniform
from test_fuzz_errors import many

import posenc_ext

lengths = st.integers(0, 6)
dtypes = st.sampled_from(DTYPES)
views = st.sampled_from(sorted(VIEWS))
seeds = st.integers(0, 2**16)


def viewed(data, shape, dtype):
    x = uniform(shape, dtype, data.draw(seeds))
    view = data.draw(views)
    return x if view == "expanded" and 0 in shape else VIEWS[view](x)


@many
@given(st.data())
def test_rope(data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    n, rest = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 9))
    size = {axis: data.draw(lengths) for axis in "bsh"} | {"d": 2 * n + rest}
    size["t"] = size["s"]
    dtype = data.draw(dtypes)
    x = viewed(data, tuple(size[axis] for axis in layout), dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = table(n, data.draw(st.sampled_from([wide, dtype])))
    options = {
        "layout": layout,
        "interleaved": data.draw(st.booleans()),
        "inverse": data.draw(st.booleans()),
    }
    rows = data.draw(st.sampled_from(["none", "offset", "positions", "per batch", "cu_seqlens"]))
    if rows == "offset":
        options["offset"] = data.draw(st.integers(0, 50))
    elif rows == "positions":
        picked = data.draw(st.lists(st.integers(0, 63), min_size=size["s"], max_size=size["s"]))
        kind = data.draw(st.sampled_from([torch.int32, torch.int64]))
        options["positions"] = torch.tensor(picked, dtype=kind)
    elif rows == "per batch" and "b" in layout:
        starts = data.draw(st.lists(st.integers(0, 50), min_size=size["b"], max_size=size["b"]))
        options["offset"] = torch.tensor(starts, dtype=torch.int64)
    elif rows == "cu_seqlens" and layout == "thd":
        cuts = data.draw(st.lists(st.integers(0, size["t"]), max_size=4))
        options["cu_seqlens"] = torch.tensor([0, *sorted(cuts), size["t"]])
    check_rope(x, cos, sin, **options)


@many
@given(st.data())
def test_norm_rope(data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    n, rest = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 9))
    size = {axis: data.draw(lengths) for axis in "bsh"} | {"d": 2 * n + rest}
    size["t"] = size["s"]
    dtype = data.draw(dtypes)
    x = viewed(data, tuple(size[axis] for axis in layout), dtype)
    cos, sin = table(n, torch.float64 if dtype == torch.float64 else torch.float32)
    options = {
        "layout": layout,
        "interleaved": data.draw(st.booleans()),
        "norm": data.draw(st.sampled_from(NORMS)),
        "norm_dims": data.draw(st.sampled_from(DIMS)),
        "order": data.draw(st.sampled_from(ORDERS)),
        "eps": data.draw(st.sampled_from([1e-3, 0.5])),
        "offset": data.draw(st.integers(0, 50)),
    }
    made = [parameter(channels(x, layout, options["norm_dims"]), dtype, seed) for seed in (1, 2)]
    weight, options["bias"] = (t if data.draw(st.booleans()) else None for t in made)
    # Few channels may be far smaller than their mean square with eps, and are magnified.
    y = posenc_ext.norm_rope(x, weight, cos, sin, **options)
    given = {key: double(value) for key, value in options.items()}
    right = oracle_norm.norm_rope(*map(double, (x, weight, cos, sin)), **given)
    few = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
    np.testing.assert_allclose(double(y), right, rtol=2**-7, atol=few[dtype])


@many
@given(st.data())
def test_alibi(data):
    heads, q_len, k_len = data.draw(st.tuples(lengths, lengths, st.integers(0, 70)))
    dtype = data.draw(dtypes)
    scores = viewed(data, (data.draw(lengths), heads, q_len, k_len), dtype)
    slopes = posenc_ext.alibi_slopes(heads, dtype=torch.float64)
    slopes = slopes if dtype == torch.float64 else slopes.float()
    causal = data.draw(st.booleans())
    given = double(scores), double(slopes)
    # Distances of up to 70 times slopes of up to 1, then one rounding to the dtype.
    few = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 2**-4, torch.bfloat16: 2**-1}
    added = posenc_ext.add_alibi(scores, slopes, causal=causal)
    right = oracle_alibi.add_alibi(*given, causal=causal)
    np.testing.assert_allclose(double(added), right, rtol=0, atol=few[dtype])
    weights = posenc_ext.alibi_softmax(scores, slopes, causal=causal, scale=0.5)
    right = oracle_alibi.alibi_softmax(*given, causal=causal, scale=0.5)
    rounding = {
        torch.float64: 1e-14,
        torch.float32: 2e-6,
        torch.float16: 1e-3,
        torch.bfloat16: 8e-3,
    }
    np.testing.assert_allclose(double(weights), right, rtol=0, atol=rounding[dtype])


@many
@given(st.data())
def test_add_sinusoidal(data):
    shape = data.draw(st.tuples(lengths, lengths, st.integers(0, 70)))
    dtype = data.draw(dtypes)
    x = viewed(data, shape, dtype)
    options = {
        "offset": data.draw(st.integers(-100, 100)),
        "scale": data.draw(st.sampled_from([1.0, 0.5, 8.0])),
        "convention": data.draw(st.sampled_from(["interleaved", "concatenated"])),
    }
    right = oracle_sinusoidal.add_sinusoidal(double(x), **options)
    rounding = {
        torch.float64: 4e-14,
        torch.float32: 2e-6,
        torch.float16: 2**-6,
        torch.bfloat16: 2**-3,
    }
    actual = posenc_ext.add_sinusoidal(x, **options)
    np.testing.assert_allclose(double(actual), right, rtol=0, atol=rounding[dtype])


@many
@given(st.data())
def test_relative(data):
    q_len, k_len = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 40))
    columns = data.draw(st.integers(1, 20))
    picked = st.integers(-1, columns - 1)
    n = q_len + k_len - 1
    index = data.draw(st.lists(picked, min_size=n, max_size=n))
    index = torch.tensor(index, dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    dtype = data.draw(dtypes)
    batch = data.draw(st.sampled_from([(), (2,), (2, 3), (0,)]))
    x = viewed(data, (*batch, q_len, columns), dtype)
    actual = posenc_ext.relative_gather(x, index, k_len)
    assert np.array_equal(double(actual), oracle_relative.relative_gather(double(x), index.numpy()))
    y = viewed(data, (*batch, q_len, k_len), dtype)
    actual = posenc_ext.relative_scatter(y, index, columns)
    right = oracle_relative.relative_scatter(double(y), index.numpy(), columns)
    assert_close(actual, right, oracle.TOLERANCE_SUM)
