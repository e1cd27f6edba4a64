"""Hugging Face configs as dicts and as plain objects; no transformers needed."""

import types
from pathlib import Path

import pytest
import torch
from rope_cases import assert_bits

from posenc_ext import RotaryPositionalEmbedding, rope_frequencies
from posenc_ext.config_defaults import DEFAULTS
from posenc_ext.configs import rotary_arguments
from posenc_ext.model_types import REFUSED

from_config = RotaryPositionalEmbedding.from_config
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}
# golden case: config
GOLDEN = {
    "llama3/llama-3.1-8b": LLAMA
    | {
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "yarn/qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "rope_theta": 1e6,
        "max_position_embeddings": 32768,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "yarn/deepseek-v3": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "qk_rope_head_dim": 64,
        "rope_theta": 10000,
        "max_position_embeddings": 163840,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "yarn/gpt-oss": {
        "model_type": "gpt_oss",
        "head_dim": 64,
        "rope_theta": 150000,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("form", ["old", "new", "object"])
def test_golden(name, form, golden):
    config = dict(GOLDEN[name])
    if form == "new":
        rule = config.pop("rope_scaling") | {"rope_theta": config.pop("rope_theta")}
        config["rope_parameters"] = rule
    if form == "object":
        config = types.SimpleNamespace(**config)
    rotary = from_config(config)
    right = golden[f"inv_freq/{name}"]["expected"]
    right = right["inv_freq"] if isinstance(right, dict) else right
    torch.testing.assert_close(
        rotary.frequencies().inv_freq, torch.tensor(right, dtype=torch.float64), rtol=1e-13, atol=0
    )
    assert rotary.interleaved == (name == "yarn/deepseek-v3")


def longrope(model_type, n):
    return {"type": model_type, "short_factor": [1.0] * n, "long_factor": [4.0] * n}


@pytest.mark.parametrize("name", ["longrope", "su"])
def test_phi3(name):
    config = {
        "model_type": "phi3",
        "head_dim": 64,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": longrope(name, 16),
    }
    rotary = from_config(config)
    assert rotary.dim == 32
    base = rope_frequencies(32).inv_freq
    torch.testing.assert_close(rotary.frequencies(4096).inv_freq, base, rtol=1e-15, atol=0)
    torch.testing.assert_close(rotary.frequencies(4097).inv_freq, base / 4, rtol=1e-15, atol=0)
    assert rotary.attention_factor == pytest.approx(1.1902380714238083, rel=1e-15)


GEMMA_NEW = {
    "model_type": "gemma3_text",
    "head_dim": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "nope": None,
    },
}
GEMMA_OLD = {
    "model_type": "gemma3_text",
    "head_dim": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


@pytest.mark.parametrize("config", [GEMMA_NEW, GEMMA_OLD, {"text_config": GEMMA_OLD}])
def test_layers_differ(config, golden):
    full = from_config(config, layer_type="full_attention").frequencies().inv_freq
    case = golden["inv_freq/linear/gemma3-full"]["expected"]
    right = torch.tensor(case["inv_freq"] if isinstance(case, dict) else case, dtype=torch.float64)
    torch.testing.assert_close(full, right, rtol=1e-13, atol=0)
    local = from_config(config, layer_type="sliding_attention").frequencies().inv_freq
    assert_bits(local, rope_frequencies(256).inv_freq)
    with pytest.raises(ValueError, match=r"layer_type must be one of \['full_attention', 'slid"):
        from_config(config)
    with pytest.raises(ValueError, match=r"layer_type must be one of .*got 'chunked'"):
        from_config(config, layer_type="chunked")


def test_layer_without_positions():
    with pytest.raises(ValueError, match="layer_type must have positions, got 'nope'"):
        from_config(GEMMA_NEW, layer_type="nope")


def arguments(**config):
    return rotary_arguments({"head_dim": 64} | config)


def test_sizes_bases_and_pairs():
    neox = {"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64}
    assert rotary_arguments(neox | {"rotary_pct": 0.5, "rotary_emb_base": 500})[:2] == (48, 500.0)
    assert rotary_arguments(neox).dim == 24
    gptj = {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64}
    assert rotary_arguments(gptj)[:4] == (64, 10000.0, None, True)
    assert arguments(model_type="glm", partial_rotary_factor=0.5)[:4] == (32, 1e4, None, True)
    assert arguments(model_type="cohere").interleaved
    assert not arguments(model_type="olmo").interleaved
    assert not arguments().interleaved
    assert not arguments(model_type="deepseek_v3", rope_interleave=False).interleaved
    assert rotary_arguments(
        {"model_type": "new", "head_dim": 8, "rope_theta": 1e4}, interleaved=True
    ).interleaved
    assert arguments(rotary_dim=32, partial_rotary_factor=0.5).dim == 32


def test_mrope():
    def sections(model_type, section, **keys):
        rule = {"rope_type": "default", "mrope_section": section, **keys}
        return from_config(
            {"model_type": model_type, "head_dim": 16, "rope_parameters": rule}
        ).sections

    assert sections("qwen2_vl", [2, 3, 3]).tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert sections("qwen3_vl_text", [4, 2, 2]).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    assert sections("qwen3", [4, 2, 2], mrope_interleaved=True).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    old = {"type": "mrope", "mrope_section": [2, 3, 3]}
    rotary = from_config({"model_type": "qwen2_vl", "head_dim": 16, "rope_scaling": old})
    ids = torch.arange(4)
    for mine, text in zip(rotary.table(ids.expand(3, 4)), rotary.table(4), strict=True):
        assert_bits(mine, text)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"head_dim": None}, "hidden_size must be given if head_dim is not"),
        ({"head_dim": None, "hidden_size": 8}, "num_attention_heads must be given"),
        ({"head_dim": None, "hidden_size": 9, "num_attention_heads": 2}, "must divide 9, got 2"),
        ({"head_dim": "64"}, "head_dim must be an int, got str"),
        ({"model_type": "never_heard_of"}, "model_type must be one whose .*got 'never_heard_of'"),
        (
            {"rotary_dim": 16, "rotary_pct": 0.5},
            "rotary_dim must be partial_rotary_factor .* = 32, got 16",
        ),
        ({"rotary_pct": 0.25, "partial_rotary_factor": 0.5}, "rotary_pct must be partial_rotary"),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor must take an even part"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must take an even part"),
        ({"rotary_dim": 128}, "rotary_dim must be from 2 to head_dim = 64, got 128"),
        ({"rope_theta": 1e4, "rotary_emb_base": 1e5}, "rotary_emb_base must be rope_theta"),
        ({"model_type": "falcon", "alibi": True}, "rotary positions, got alibi"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be a dict, got 'yarn'"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"type": "ntk"}},
            "rope_scaling must equal rope_parameters",
        ),
        ({"rope_scaling": {"type": "warp"}}, "scaling must have a rope_type of .*got 'warp'"),
        ({"rope_scaling": {"type": "linear"}}, "scaling must have the key 'factor'"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2, "warp": 3}},
            "scaling must not have the key 'warp'",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2, 3]}},
            "sections must cover R/2 = 32 frequencies, got 6",
        ),
    ],
)
def test_refusals(config, text):
    with pytest.raises((ValueError, TypeError), match=text):
        from_config({"head_dim": 64} | config)


def test_the_page_lists_every_model_type():
    page = (Path(__file__).parent.parent / "docs" / "configs.md").read_text()
    understood, refused = page.split("## Understood")[1].split("## Refused")
    for kind in DEFAULTS:
        assert f"`{kind}`" in understood
    for kind, why in REFUSED.items():
        assert f"`{kind}`" in refused
        assert why in refused
