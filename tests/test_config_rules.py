"""Rules of configs and dicts whose keys are missing, or mean two things."""

import warnings

import pytest
import torch
from rope_cases import assert_bits

from posenc_ext import RotaryPositionalEmbedding, rope_frequencies
from posenc_ext.scaling import NTK, NTKMixed

from_config = RotaryPositionalEmbedding.from_config


def refused(config, text, **keys):
    with pytest.raises((ValueError, TypeError), match=text) as caught:
        from_config(config, **keys)
    assert str(caught.value).startswith("posenc_ext.")


def test_dynamic_by_alpha():
    rule = {"type": "dynamic", "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0}
    found = from_config(
        {"model_type": "hunyuan_v1_dense", "rope_scaling": rule}, precision="float32"
    )
    base = 10000.0 * 1000.0 ** (128 / 126)
    assert_bits(
        found.frequencies().inv_freq, rope_frequencies(128, base, precision="float32").inv_freq
    )
    with pytest.raises(ValueError, match="factor must be 1 or missing with alpha, got 2"):
        rope_frequencies(128, scaling=rule | {"factor": 2.0})
    with pytest.raises(ValueError, match="must not have the key 'gamma' with alpha"):
        rope_frequencies(128, scaling=rule | {"gamma": 2.0})


def test_yarn_without_factor():
    keys = {"model_type": "llama", "max_position_embeddings": 8192}
    refused(keys | {"rope_scaling": {"rope_type": "yarn"}}, "must have the key 'factor'")
    rule = {"rope_type": "yarn", "original_max_position_embeddings": 2048}
    assert from_config(keys | {"rope_scaling": rule}).attention_factor == pytest.approx(1.138629)
    with warnings.catch_warnings():  # transformers: the original length is then the longest
        warnings.simplefilter("error")
        found = from_config(keys | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    assert found.attention_factor == pytest.approx(1.138629)


def test_two_rules_named_ntk():
    refused({"model_type": "llama", "rope_scaling": {"type": "ntk", "factor": 4.0}}, "'ntk_mixed'")
    ours = rope_frequencies(8, scaling={"rope_type": "ntk_aware", "factor": 4.0}).inv_freq
    assert_bits(ours, rope_frequencies(8, scaling={"rope_type": "ntk", "factor": 4.0}).inv_freq)
    assert_bits(ours, rope_frequencies(8, scaling=NTK(4.0)).inv_freq)
    keys = {"rope_type": "ntk_mixed", "factor": 4.0, "mixed_b": 0.625}
    config = {"model_type": "llama", "head_dim": 8, "rope_scaling": keys}
    assert_bits(
        from_config(config).frequencies().inv_freq,
        rope_frequencies(8, scaling=NTKMixed(4.0, 0.625)).inv_freq,
    )
    with pytest.raises(ValueError, match="did you mean 'ntk_mixed'"):
        rope_frequencies(8, scaling={"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.625})


def test_lengths_that_contradict():
    for rule in ({"rope_type": "yarn", "factor": 4.0}, {"rope_type": "dynamic", "factor": 4.0}):
        config = {
            "model_type": "phi3",
            "max_position_embeddings": 131072,
            "rope_scaling": rule | {"original_max_position_embeddings": 8192},
        }
        if rule["rope_type"] == "yarn":
            config["model_type"] = "llama"
            config["original_max_position_embeddings"] = 4096
        refused(config, "original_max_position_embeddings .* of the rule must be that of the model")


def test_lengths_as_tensors():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
    positions = torch.arange(100)
    right = rope_frequencies(8, scaling=scaling, seq_len=100)
    for length in (positions.max() + 1, torch.tensor(100, dtype=torch.int32)):
        assert_bits(rope_frequencies(8, scaling=scaling, seq_len=length).inv_freq, right.inv_freq)
    rotary = RotaryPositionalEmbedding(8, scaling=scaling)
    assert_bits(rotary.frequencies(positions.max() + 1).inv_freq, right.inv_freq)
    q = torch.randn(1, 4, 1, 8)
    assert_bits(rotary(q, seq_len=positions.max() + 1), rotary(q, seq_len=100))
    for wrong, kind in (
        (torch.tensor([3]), TypeError),
        (torch.tensor(3.0), TypeError),
        (torch.tensor(-3), ValueError),
        (torch.tensor(True), TypeError),
        (torch.tensor(3, device="meta"), ValueError),
    ):
        with pytest.raises(kind, match="seq_len must"):
            rope_frequencies(8, seq_len=wrong)
