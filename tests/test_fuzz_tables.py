"""Random right calls of the functions that make tables, biases and positions, and of the pair of
apply_rope, against the oracles; and where every other public name is compared with its formula."""

from pathlib import Path

import numpy as np
import oracle
import oracle_alibi
import oracle_learned
import oracle_relative
import oracle_sinusoidal
import torch
from fuzz_calls import BORROWED, FUNCTIONS, MODULES, RULES
from hypothesis import given
from hypothesis import strategies as st
from rope_cases import LAYOUTS, VIEWS, assert_close, double, table, uniform
from test_fuzz_errors import many

import posenc_ext

lengths = st.integers(0, 7)
longer = st.integers(0, 40)
far = st.integers(-(2**20), 2**20)
bases = st.sampled_from([10000.0, 100.0, 500000.0, 2.5])
flags = st.booleans()


def close(actual, right, atol):
    assert list(actual.shape) == list(right.shape)
    np.testing.assert_allclose(double(actual), right, rtol=0, atol=atol)


@many
@given(st.data())
def test_apply_rope(data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    n, rest = data.draw(longer), data.draw(lengths)
    size = {axis: data.draw(lengths) for axis in "bsh"} | {"d": 2 * n + rest}
    size["t"] = size["s"]
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    pair = []
    for seed in (1, 2):
        size["h"] = data.draw(lengths)
        x = uniform(tuple(size[axis] for axis in layout), dtype, seed)
        pair.append(VIEWS[data.draw(st.sampled_from(["contiguous", "transposed", "sliced"]))](x))
    tables = table(n, torch.float64 if dtype == torch.float64 else torch.float32)
    options = {"layout": layout, "offset": data.draw(longer), "interleaved": data.draw(flags)}
    right = oracle.apply_rope(*map(double, (*pair, *tables)), **options)
    if data.draw(flags):
        options["inplace"] = True
    for actual, wanted in zip(posenc_ext.apply_rope(*pair, *tables, **options), right, strict=True):
        assert_close(actual, wanted)


@many
@given(st.data())
def test_rope_table(data):
    dim, base = 2 * data.draw(longer), data.draw(bases)
    if dim == 0:
        return
    positions = torch.tensor(data.draw(st.lists(far, max_size=9)), dtype=torch.int64)
    inv_freq, factor = posenc_ext.rope_frequencies(dim, base)
    right_frequencies, _ = oracle.rope_frequencies(dim, base)
    np.testing.assert_allclose(double(inv_freq), right_frequencies, rtol=1e-15)
    right = oracle.rope_table(double(positions), double(inv_freq), attention_factor=factor)
    for actual, wanted in zip(posenc_ext.rope_table(positions, inv_freq), right, strict=True):
        close(actual, wanted, 6e-8)


@many
@given(st.data())
def test_sinusoidal_tables(data):
    base = data.draw(bases)
    convention = data.draw(st.sampled_from(sorted(oracle_sinusoidal.CONVENTIONS)))
    dim = data.draw(st.integers(1, 41))
    positions = torch.tensor(data.draw(st.lists(far, max_size=5)), dtype=torch.int64)
    options = {"base": base, "convention": convention}
    right = oracle_sinusoidal.sinusoidal_table(double(positions), dim, **options)
    close(posenc_ext.sinusoidal_table(positions, dim, **options), right, 6e-8)
    height, width, dim = data.draw(lengths), data.draw(lengths), 4 * data.draw(st.integers(1, 9))
    options = {"first": data.draw(st.sampled_from(["width", "height"])), "base": base}
    right = oracle_sinusoidal.sinusoidal_table_2d(height, width, dim, **options)
    actual = posenc_ext.sinusoidal_table_2d(height, width, dim, **options)
    close(actual.reshape(right.shape), right, 6e-8)


@many
@given(st.data())
def test_alibi_tables(data):
    heads, q_len, k_len = data.draw(lengths), data.draw(lengths), data.draw(longer)
    most = data.draw(st.sampled_from([8.0, 4.0, 1.5]))
    slopes = posenc_ext.alibi_slopes(heads, max_bias=most, dtype=torch.float64)
    right = oracle_alibi.alibi_slopes(heads, max_bias=most) if heads else np.zeros(0)
    np.testing.assert_allclose(double(slopes), right, rtol=1e-15)
    causal = data.draw(flags)
    right = oracle_alibi.alibi_bias(double(slopes), q_len, k_len, causal=causal)[0]
    options = {"causal": causal, "dtype": torch.float64}
    actual = posenc_ext.alibi_bias(slopes, q_len, k_len, **options)
    close(actual, right, 1e-13)
    row = posenc_ext.alibi_row_bias(slopes, k_len, dtype=torch.float64)
    close(row, oracle_alibi.alibi_row_bias(double(slopes), k_len)[0], 1e-13)
    score_mod = posenc_ext.alibi_score_mod(slopes, q_len, k_len, causal=causal)
    for h, i, j in np.ndindex(*right.shape):
        index = map(torch.tensor, (0, h, i, j))
        cell = score_mod(torch.zeros((), dtype=torch.float64), *index)
        close(cell, right[h, i, j], 1e-13)


@many
@given(st.data())
def test_positions_of_tokens(data):
    batch, length = data.draw(lengths), data.draw(lengths)
    seed, padding = data.draw(st.integers(0, 2**16)), data.draw(st.integers(0, 3))
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, 4, (batch, length)))
    past = data.draw(longer)
    actual = posenc_ext.padding_aware_positions(ids, padding, past=past)
    right = oracle_learned.padding_aware_positions(ids.numpy(), padding, past=past)
    assert np.array_equal(actual, right)
    options = {
        "first": data.draw(far),
        "fill": data.draw(st.sampled_from([None, 0, 1, -7])),
        "past": data.draw(st.integers(0, length)),
    }
    actual = posenc_ext.attention_mask_positions(ids, **options)
    assert np.array_equal(actual, oracle_learned.attention_mask_positions(ids.numpy(), **options))
    first = options["first"]
    actual = posenc_ext.sequential_positions(length, first=first, past=past)
    assert actual.tolist() == [first + past + i for i in range(length)]


@many
@given(st.data())
def test_relative_indices(data):
    q_len, k_len = data.draw(lengths), data.draw(longer)
    x = uniform((2, max(q_len, 1), data.draw(st.integers(1, 40))))
    start = data.draw(st.integers(-9, 49))
    right = oracle_relative.rel_shift(double(x), k_len, start=start)
    assert np.array_equal(double(posenc_ext.rel_shift(x, k_len, start=start)), right)
    distances = data.draw(st.lists(st.integers(-700, 700), max_size=9))
    given_distances = torch.tensor(distances, dtype=torch.int64)
    both, buckets = data.draw(flags), data.draw(st.integers(4, 64))
    rule = (both, buckets, buckets + data.draw(st.integers(1, 300)))
    actual = posenc_ext.t5_relative_position_bucket(given_distances, *rule)
    assert actual.tolist() == [oracle_relative.t5_bucket(d, *rule) for d in distances]
    rule = (buckets, buckets // 2 + 2 + data.draw(st.integers(0, 300)))
    actual = posenc_ext.deberta_relative_position_bucket(given_distances, *rule)
    right = [oracle_relative.deberta_bucket(d, *rule) for d in distances]
    assert actual.tolist() == [max(-2 * buckets, min(d, 2 * buckets)) for d in right]
    left, most = data.draw(lengths), data.draw(lengths)
    actual = posenc_ext.clipped_relative_index(q_len, k_len, left=left, right=most)
    reach = range(1 - k_len, q_len) if q_len + k_len else []  # queries are the last keys
    assert actual.tolist() == [max(-left, min(d, most)) + left for d in reach]


HERE = """rope_frequencies rope_table sinusoidal_table sinusoidal_table_2d apply_rope
    alibi_slopes alibi_bias alibi_row_bias alibi_score_mod padding_aware_positions
    attention_mask_positions sequential_positions rel_shift clipped_relative_index
    t5_relative_position_bucket deberta_relative_position_bucket"""
# What random calls here do not reach, by the file whose tests compare it with its formula.
ELSEWHERE = {
    "test_fuzz_results.py": "rope add_alibi alibi_softmax add_sinusoidal relative_gather "
    "relative_scatter",
    "test_norm_rope.py": "norm_rope qk_norm_rope",
    "test_rope_cache.py": "apply_rope_cache",
    "test_kv_cache.py": "KVCache",
    "test_multi_axis.py": "mrope_axes mrope_position_ids axial_rope_table axial_frequencies "
    "axial_positions",
    "test_xpos.py": "xpos_table xpos_zeta",
    "test_permute.py": "interleaved_to_half half_to_interleaved",
    "test_distributed.py": "context_parallel_positions",
    "test_sinusoidal.py": "timestep_embedding",
    "test_learned.py": "resize_position_grid LearnedPositionalEncoding",
    "test_relative_index.py": "t5_relative_index deberta_relative_index bert_relative_index",
    "test_alibi_attention.py": "ALiBiAttention",
    "test_attention_families.py": "BertRelativeAttention DebertaDisentangledAttention "
    "RelativePositionalEmbedding RelativeSelfAttention TransformerXLAttention",
    "test_roberta.py": "RobertaEmbeddings",
    "test_rotary_attention.py": "RotaryAttention",
    "test_rotary_module.py": "RotaryPositionalEmbedding",
    "test_sinusoidal_module.py": "SinusoidalPositionalEncoding",
    "test_t5.py": "T5RelativePositionBias",
    "test_compat_flash_attn.py": "flash_attn.apply_rotary_emb flash_attn.apply_rotary_emb_qkv_ "
    "flash_attn.apply_rotary_emb_kv_",
    "test_compat_llama.py": "llama.precompute_freqs_cis llama.apply_rotary_emb",
    "test_compat_patch.py": "transformers.apply_rotary_pos_emb transformers.patch "
    "transformers.unpatch",
    "test_compat_vllm.py": "vllm.rotary_embedding",
    "test_rope_frequencies.py": " ".join(f"scaling.{rule}" for rule in RULES),
}


def test_every_public_callable_is_compared_with_its_formula():
    """The names of each file stand in it, or in the cases that it shares with others."""
    listed = HERE.split() + [name for names in ELSEWHERE.values() for name in names.split()]
    rules = [f"scaling.{rule}" for rule in RULES]
    assert sorted(listed) == sorted([*FUNCTIONS, *MODULES, *BORROWED, *rules])
    tests = Path(__file__).parent
    shared = "".join(path.read_text() for path in tests.glob("*_cases.py"))
    for file, names in ELSEWHERE.items():
        text = (tests / file).read_text() + shared
        missing = [name for name in names.split() if name.split(".")[-1] not in text]
        assert not missing, file
