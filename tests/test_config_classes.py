"""from_config against every config class of transformers that says something about rotation: the
frequencies and the attention factor of its own rotary module, bit for bit, or a refusal."""

import re

import pytest
import torch
from rope_cases import assert_bits

pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")

import config_classes as classes

from posenc_ext import RotaryPositionalEmbedding
from posenc_ext.config_defaults import DEFAULTS, TEXT_TYPES, WITHOUT_POSITIONS
from posenc_ext.model_types import AXES, REFUSED, SWITCHES

from_config = RotaryPositionalEmbedding.from_config
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
# Keys as a published config may have them.
FORMS = {
    "none": {},
    "base": {"rope_theta": 12345.0},
    "size": {"hidden_size": 768, "num_attention_heads": 6},
    "head": {"head_dim": 48},
    "part": {"partial_rotary_factor": 0.5},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 54321.0},
    "yarn": {"rope_scaling": YARN},
    "no factor": {"rope_scaling": {"rope_type": "yarn"}},
    "llama3": {"rope_scaling": LLAMA3, "max_position_embeddings": 4096},
    "new": {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
    "new part": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 777.0,
            "partial_rotary_factor": 0.25,
        }
    },
    "new linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "other names": {"rotary_dim": 16, "rotary_pct": 0.75, "rotary_emb_base": 500.0},
    "local": {"rope_local_base_freq": 300.0, "local_rope_theta": 400.0, "swa_rope_theta": 500.0},
    "global": {"global_rope_theta": 600.0, "global_head_dim": 128},
}


def switched(kind):
    """The key that makes a model of this type a rotary one."""
    key, wanted, _ = SWITCHES.get(kind, (None, None, None))
    return {} if key is None else {key: wanted}


def theirs(config):
    """{layer: (inv_freq, factor, axes table or None)}"""
    rotary = classes.rotary_class(type(config))(config)
    return {layer: classes.frequencies(rotary, layer) for layer in classes.layers_of(rotary)}


def listed():
    return {
        name: c
        for name, c in classes.config_classes().items()
        if classes.default(c).model_type in DEFAULTS and classes.rotary_class(c) is not None
    }


def refused_by_default():
    """Classes whose defaults are no model: sizes that do not divide, sections for another width."""
    return {
        "glm4_moe": "must divide",
        "glm4v_moe_text": "must divide",
        "qwen3_omni_moe_text": "must divide",
        "glm4v_text": "mrope_section .* must be given",
        "glm_image_text": "mrope_section .* must be given",
        "qwen3_omni_moe_talker_text": "mrope_section .* must be given",
        "qwen4_exp_text": "mrope_section .* must be given",
    }


def same(ours, rotary, layer):
    """Frequencies and factor; with several axes the tables of positions that tell them apart."""
    inv_freq, factor = ours.frequencies()
    right, right_factor = classes.frequencies(rotary, layer)
    if inv_freq.shape != right.shape or factor != right_factor:
        return False
    if ours.sections is None or layer:
        return torch.equal(inv_freq, right)
    positions = torch.tensor([[[3, 700]], [[50, 11]], [[900, 5]]])
    cos, _ = rotary(torch.zeros(1), positions)
    n = len(inv_freq)
    return any(
        torch.equal(half, ours.table(positions)[0]) for half in (cos[..., :n], cos[..., ::2])
    )


def broken(config, rotary, layer):
    """transformers builds tables that its own attention cannot use."""
    latent = getattr(config, "qk_rope_head_dim", None)
    return latent is not None and 2 * len(classes.frequencies(rotary, layer)[0]) != latent


def copied(keys):
    return {k: dict(v) if isinstance(v, dict) else v for k, v in keys.items()}


@pytest.mark.filterwarnings("ignore:.*the factor is used")
def test_every_class_in_every_form_is_equal_or_refused():
    count, wrong, unusual = 0, [], refused_by_default()
    for name, c in listed().items():
        kind = classes.default(c).model_type
        for form, keys in FORMS.items():
            keys = keys | switched(kind)
            try:
                configs = [c(**copied(keys)), classes.with_all_layers(c, **copied(keys))]
                rotaries = [classes.rotary_class(c)(config) for config in configs]
                pairs = [
                    ({"model_type": kind} | copied(keys), configs[0], rotaries[0]),
                    (configs[1], configs[1], rotaries[1]),
                ]
            except Exception:  # no config of that class: nothing to compare with
                continue
            for given, config, rotary in pairs:
                if not hasattr(rotary, "inv_freq") and classes.layers_of(rotary) == [None]:
                    continue  # a table of sines: test_tables_of_sines
                for layer in classes.layers_of(rotary):
                    if broken(config, rotary, layer):
                        continue
                    try:
                        ours = from_config(given, layer_type=layer, precision="float32")
                    except (ValueError, TypeError) as refusal:
                        if form == "none" and not re.search(unusual.get(kind, "^$"), str(refusal)):
                            wrong.append((name, form, layer, str(refusal)))
                        continue
                    count += 1
                    if not same(ours, rotary, layer):
                        wrong.append((name, form, layer, ours))
    assert not wrong, "\n".join(map(str, wrong))
    assert count > 2500


def test_every_class_is_listed_or_refused_with_a_reason():
    for name, c in classes.config_classes().items():
        config = classes.default(c)
        kind = config.model_type
        assert (kind in DEFAULTS) + (kind in REFUSED) + (kind == "") == 1, name
        if kind in DEFAULTS and (kind not in SWITCHES or SWITCHES[kind][1] == SWITCHES[kind][2]):
            continue
        if kind in TEXT_TYPES:  # that of the text model inside
            continue
        with pytest.raises(ValueError, match=r"config must|got model_type|model_type ''|got ''"):
            from_config(config)
        if classes.is_axial(c):
            assert REFUSED[kind] == AXES
    assert not set(WITHOUT_POSITIONS) & (set(DEFAULTS) | set(REFUSED))


def test_the_table_is_that_of_the_classes():
    import make_config_defaults

    assert make_config_defaults.OUT.read_text() == make_config_defaults.table()


@pytest.mark.parametrize("kind", ["gptj", "codegen"])
def test_tables_of_sines(kind):
    c = next(c for c in listed().values() if c.model_type == kind)
    config = c(rotary_dim=32, n_positions=64)
    right = classes.rotary_class(c)(config).embed_positions
    ours = from_config(config, precision="float32")
    for mine, wanted in zip(ours.table(64), reversed(right.chunk(2, -1)), strict=True):
        assert_bits(mine, wanted.contiguous())
    assert from_config({"model_type": kind}).dim == 64


def test_roformer():
    """Its table is computed in float64."""
    from transformers.models.roformer import modeling_roformer as roformer

    embedding = roformer.RoFormerSinusoidalPositionalEmbedding(512, 64)
    right = embedding.create_weight().chunk(2, -1)
    ours = from_config(roformer.RoFormerConfig())
    for mine, wanted in zip(ours.table(512), reversed(right), strict=True):
        assert_bits(mine, wanted.contiguous())
