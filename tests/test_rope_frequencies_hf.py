"""rope_frequencies(precision="float32") against transformers, bit for bit."""

import warnings

import pytest
import torch
from rope_cases import assert_bits

from posenc_ext import rope_frequencies


@pytest.fixture(scope="module")
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module")
def rules(transformers):
    return transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS


LENGTHS = {"original_max_position_embeddings": 4096}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
LISTS = {
    "short_factor": [1.0 + 0.05 * i for i in range(48)],
    "long_factor": [1.03 * 1.09**i for i in range(48)],
}
# rope_type, head_dim, max_position_embeddings, sequence lengths, keys
CASES = [
    ("linear", 128, 2048, (None,), {"factor": 4.0}),
    ("linear", 256, 2048, (None,), {"factor": 8, "rope_theta": 1e6}),
    ("linear", 80, 2048, (None,), {"factor": 3.0, "partial_rotary_factor": 0.5}),
    ("dynamic", 64, 2048, (None, 1000, 2048, 4096, 8191), {"factor": 2.0}),
    ("dynamic", 128, 4096, (None, 9001), {"factor": 4.0, "rope_theta": 5e5}),
    ("yarn", 128, 131072, (None,), {"factor": 32.0, "rope_theta": 1e6, **LENGTHS}),
    ("yarn", 64, 163840, (None,), {"factor": 40, "mscale": 1.0, "mscale_all_dim": 0.7, **LENGTHS}),
    ("yarn", 64, 131072, (None,), {"factor": 32, "truncate": False, "beta_slow": 2, **LENGTHS}),
    ("yarn", 4, 8192, (None,), {"factor": 2.0, "attention_factor": 1.2, **LENGTHS}),
    ("longrope", 96, 131072, (None, 4096, 4097), {**LISTS, **LENGTHS}),
    ("longrope", 96, 32768, (5000,), {**LISTS, **LENGTHS, "factor": 8.0}),
    ("llama3", 128, 131072, (None,), {"factor": 8.0, **LLAMA3, **LENGTHS}),
    ("llama3", 64, 131072, (None,), {"factor": 32.0, **LLAMA3, **LENGTHS}),
    ("proportional", 512, 131072, (None,), {"partial_rotary_factor": 0.25, "rope_theta": 1e6}),
    ("proportional", 96, 131072, (None,), {"partial_rotary_factor": 0.3, "factor": 2.0}),
]


@pytest.mark.parametrize(("rope_type", "dim", "longest", "lengths", "keys"), CASES)
def test_equal_bit_for_bit(transformers, rules, rope_type, dim, longest, lengths, keys):
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, **keys}
    config = transformers.LlamaConfig(
        head_dim=dim,
        hidden_size=4 * dim,
        num_attention_heads=4,
        max_position_embeddings=longest,
        rope_parameters=dict(parameters),
    )
    ours = parameters | {"max_position_embeddings": longest}
    for seq_len in lengths:
        right, factor = rules[rope_type](config, device=torch.device("cpu"), seq_len=seq_len)
        found = rope_frequencies(dim, scaling=ours, seq_len=seq_len, precision="float32")
        assert_bits(found.inv_freq, right)
        assert found.attention_factor == factor


def test_every_rule_of_transformers_is_compared(rules):
    assert set(rules) == {case[0] for case in CASES}


def test_default_rule_and_table_of_a_model(transformers):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    import posenc_ext

    config = transformers.LlamaConfig(head_dim=96, hidden_size=384, num_attention_heads=4)
    theirs = LlamaRotaryEmbedding(config)
    found = rope_frequencies(96, config.rope_parameters["rope_theta"], precision="float32")
    assert_bits(found.inv_freq, theirs.inv_freq)
    positions = torch.cat([torch.arange(300), torch.tensor([131071])])[None]
    for dtype in (torch.float32, torch.bfloat16):
        right = theirs(torch.zeros(1, dtype=dtype), positions)
        tables = posenc_ext.rope_table(positions, found.inv_freq, dtype=dtype, precision="float32")
        for table, full in zip(tables, right, strict=True):
            assert_bits(table, full[..., :48].contiguous())
            assert_bits(table, full[..., 48:].contiguous())
