"""Configs that were read wrongly, silently or with a misleading error: one test a kind. No
transformers needed."""

import types

import pytest
import torch
from rope_cases import assert_bits

from posenc_ext import (
    RotaryPositionalEmbedding,
    mrope_axes,
    rope_frequencies,
    rope_table,
)
from posenc_ext.configs import rotary_arguments

from_config = RotaryPositionalEmbedding.from_config
LAYERS = ("full_attention", "sliding_attention")


def refused(config, text, **keys):
    with pytest.raises((ValueError, TypeError), match=text) as caught:
        from_config(config, **keys)
    assert str(caught.value).startswith("posenc_ext.")


def test_defaults_of_a_class():
    gemma = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    bases = {layer: from_config(gemma, layer_type=layer).base for layer in LAYERS}
    assert bases == {"full_attention": 1e6, "sliding_attention": 1e4}
    for kind, base in {
        "apertus": 12e6,
        "cohere": 5e5,
        "gpt_oss": 150000.0,
        "minimax_m2": 5e6,
        "nomic_bert": 1000.0,
        "smollm3": 2e6,
        "qwen3_vl": 5e5,
    }.items():
        assert from_config({"model_type": kind}).base == base
    for kind, dim in {"phi": 32, "glm": 64, "stablelm": 20, "qwen3_next": 64}.items():
        assert from_config({"model_type": kind}).dim == dim
    assert from_config({"model_type": "qwen3"}).dim == 128
    assert from_config({"model_type": "gpt_oss"}).attention_factor == pytest.approx(1.3465736)
    refused({"model_type": "own", "head_dim": 8}, "rope_theta .* must be given", interleaved=True)


def test_rules_by_layer():
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    olmo = {"model_type": "olmo3", "head_dim": 128, "rope_theta": 500000, "rope_scaling": yarn}
    olmo["max_position_embeddings"] = 65536
    full, sliding = (from_config(olmo, layer_type=layer) for layer in LAYERS)
    assert full.attention_factor == pytest.approx(1.2079441541679836)
    assert sliding.attention_factor == 1.0
    assert_bits(sliding.frequencies().inv_freq, rope_frequencies(128, 5e5).inv_freq)
    refused(
        olmo | {"rope_theta": 1e4},
        "rope_theta .* must be 500000.0 unless",
        layer_type="full_attention",
    )


def test_layer_types_of_a_flat_config():
    llama = {"model_type": "llama"}
    refused(llama, "layer_type must be None for this config", layer_type="full_attention")
    oss = {"model_type": "gpt_oss", "layer_types": list(LAYERS)}
    assert from_config(oss, layer_type="sliding_attention").dim == 64
    refused(oss, r"layer_type must be None or one of \[.*got 'chunked'", layer_type="chunked")
    refused(
        {"model_type": "cohere2"}, "layer_type must have positions", layer_type="full_attention"
    )
    refused({"model_type": "qwen3_next"}, "have positions", layer_type="linear_attention")
    exaone = {"model_type": "exaone4", "layer_types": ["full_attention"]}
    assert from_config(exaone, layer_type="full_attention").dim == 128
    exaone["layer_types"] = list(LAYERS)
    refused(exaone, "layer_type must have positions", layer_type="full_attention")


NESTED = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default"},
}


def test_keys_beside_a_nested_rule():
    gemma = {"model_type": "gemma3_text", "rope_parameters": NESTED, "rope_local_base_freq": 500.0}
    assert from_config(gemma, layer_type="sliding_attention").base == 500.0
    gemma["rope_parameters"] = NESTED | {"sliding_attention": {"rope_theta": 1e4}}
    refused(gemma, "rope_local_base_freq .* must be that of", layer_type="sliding_attention")
    refused(
        {"model_type": "laguna", "rope_parameters": NESTED, "rope_theta": 5.0},
        "rope_theta .* must be that of",
        layer_type="full_attention",
    )


@pytest.mark.parametrize(
    "key", ["rope_pct", "my_rotary_base", "local_theta", "head_dim_k", "swa_rope_theta", "rope"]
)
def test_keys_that_are_not_understood(key):
    refused({"model_type": "llama", key: 7}, f"{key} .* must be left out")
    assert from_config({"model_type": "llama", key: None, "properties": 3}).dim == 128
    value = [7]
    refused({"model_type": "llama", key: value}, f"{key} .* must be left out")


@pytest.mark.parametrize(
    "rule",
    [{"factor": 8.0}, {"rope_theta": 5e5, "factor": 8.0}, {"rope_thta": 5e5}, {"typ": "yarn"}],
)
def test_a_rule_of_one_key_that_is_not_understood(rule):
    refused({"model_type": "llama", "rope_parameters": rule}, "must have the key 'rope_type'")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"rope_theta": [1e4]}, "rope_theta must be a number, got"),
        ({"head_dim": {}}, "head_dim must be a number, got"),
        ({"layer_types": 5}, "layer_types must be a list of names, got 5"),
        ({"layer_types": [["a"]]}, "layer_types must be a list of names, got"),
        ({"per_layer_config": {"0": 3}}, "per_layer_config must be a dict of dicts, got"),
        ({1: 2}, "config must have names as keys, got 1"),
    ],
)
def test_keys_of_another_kind(keys, text):
    with pytest.raises(TypeError, match=text):
        from_config({"model_type": "llama"} | keys)


def test_switches_are_true_or_false():
    refused({"model_type": "deepseek_v3", "rope_interleave": "false"}, "must be true or false")
    rule = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": "false"}
    config = {"model_type": None, "head_dim": 8, "rope_interleave": False, "rope_parameters": rule}
    refused(config, "mrope_interleaved must be true or false")


def test_keys_that_a_family_does_not_read():
    refused({"model_type": "llama", "partial_rotary_factor": 0.5}, "rotates whole heads, got 0.5")
    refused({"model_type": "llama", "rotary_emb_base": 500}, "rotary_emb_base .* must be left out")
    refused({"model_type": "gpt_neox", "rope_theta": 500}, "rope_theta .* must be the usual one")
    refused(
        {"model_type": "gemma4_text", "rope_theta": 5.0},
        "given by layer type",
        layer_type=LAYERS[0],
    )
    refused({"model_type": "deepseek_v3", "head_dim": 48}, "must be qk_rope_head_dim = 64")
    esm = {"model_type": "esm", "position_embedding_type": "rotary"}
    assert from_config(esm).dim == 64
    refused(esm | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "it is not read")


def test_mimo_and_zamba():
    mimo = {"model_type": "mimo_v2_flash", "rope_theta": 5000000, "swa_rope_theta": 10000}
    full, sliding = (from_config(mimo, layer_type=layer) for layer in LAYERS)
    assert (full.base, sliding.base, full.dim, sliding.dim) == (5e6, 1e4, 64, 64)
    refused(mimo | {"swa_rope_theta": 77}, "swa_rope_theta .* must be 10000", layer_type=LAYERS[1])
    zamba = {"model_type": "zamba2", "use_mem_rope": True, "attention_head_dim": 160}
    assert from_config(zamba).dim == 160
    assert (
        from_config({"model_type": "zamba2", "use_mem_rope": True, "hidden_size": 3584}).dim == 224
    )


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"model_type": "granitemoehybrid"},
            "rotary positions, got position_embedding_type = None",
        ),
        ({"model_type": "zamba2"}, "rotary positions, got use_mem_rope = False"),
        ({"model_type": "esm"}, "rotary positions, got position_embedding_type = 'absolute'"),
        ({"model_type": "jamba"}, "config must have rotary positions, got model_type 'jamba'"),
        ({"model_type": "qwen2_vl_vision"}, "an image tower turns by two"),
        ({"model_type": "deepseek_v4"}, "this model turns the last"),
        ({"model_type": "nanochat"}, "negative angle"),
        (
            {"head_dim": 64, "position_embedding_type": "absolute"},
            "rotary positions, got position_e",
        ),
        (torch.nn.Linear(2, 2), "config must be a config object or a dict, got Linear"),
        (torch.nn.Linear, "config must be a config object or a dict, got Linear"),
        ({"model_type": "new", "thinker_config": {}}, r"which has parts: \['thinker_config'\]"),
    ],
)
def test_no_rotary_module_fits(config, text):
    refused(config, text)


class Ambiguous:
    """Attributes that differ by layer raise an error of their own, as those of Gemma 4's config."""

    def __init__(self):
        self.model_type = "gemma4_text"

    @property
    def head_dim(self):
        raise RuntimeError("'head_dim' is a per-layer attribute")

    def to_dict(self):
        return {
            "model_type": "gemma4_text",
            "head_dim": 256,
            "layer_types": list(LAYERS),
            "per_layer_config": {"00": {"head_dim": 512}},
        }


@pytest.mark.parametrize(
    "config", [Ambiguous(), {"model_type": "gemma4", "text_config": {"global_head_dim": 512}}]
)
def test_head_size_by_layer(config):
    full, sliding = (from_config(config, layer_type=layer) for layer in LAYERS)
    assert (full.dim, full.base, sliding.dim, sliding.base) == (512, 1e6, 256, 1e4)
    assert full.frequencies().inv_freq.count_nonzero() == 64


def test_plain_objects():
    config = types.SimpleNamespace(model_type="llama", text_config=None, head_dim=64)
    assert from_config(config).dim == 64


def test_sections_that_are_missing():
    for kind, counts in {"qwen2_vl": [16, 24, 24], "qwen3_vl": [24, 20, 20]}.items():
        axes = from_config({"model_type": kind}).sections
        assert [int((axes == axis).sum()) for axis in range(3)] == counts
    assert from_config({"model_type": "ernie4_5_vl_moe"}).sections.tolist()[:4] == [1, 2, 1, 2]
    refused({"model_type": "qwen2_vl", "head_dim": 64}, "mrope_section .* must be given")


def test_an_axis_without_a_frequency():
    positions, inv_freq = torch.randint(0, 99, (3, 5)), rope_frequencies(128).inv_freq
    right = rope_table(positions, inv_freq, sections=[32, 32, 0])
    for mine, wanted in zip(
        rope_table(positions, inv_freq, sections=mrope_axes([32, 32, 0])), right, strict=True
    ):
        assert_bits(mine, wanted)
    rotary = RotaryPositionalEmbedding(128, sections=mrope_axes([32, 32, 0]))
    assert_bits(rotary.table(positions)[0], right[0])
    with pytest.raises(ValueError, match=r"positions must be a tensor \[3, ...\]"):
        rotary.table(positions[:2])


@pytest.mark.parametrize(
    ("name", "value"),
    [("base", 5e5), ("layout", "bhsd"), ("dim", 8), ("scaling", None), ("sections", [4])],
)
def test_attributes_stay_as_they_were_given(name, value):
    rotary = RotaryPositionalEmbedding(16)
    with pytest.raises(AttributeError, match=f"{name} must stay as it was given"):
        setattr(rotary, name, value)
    assert repr(rotary) == "RotaryPositionalEmbedding(16, base=10000.0)"


def test_a_config_is_not_changed():
    config = {
        "model_type": "gemma3_text",
        "rope_parameters": {k: dict(v) for k, v in NESTED.items()},
    }
    for layer in LAYERS:
        rotary_arguments(config, layer)
    assert config["rope_parameters"] == NESTED
