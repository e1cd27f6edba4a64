"""config.json of published models (keys that bear on positions and some of the rest, values as
published; a long list of layers may be cut) against what transformers computes from them."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")

import config_classes as classes
import transformers
from rope_cases import assert_bits

from posenc_ext import RotaryPositionalEmbedding

from_config = RotaryPositionalEmbedding.from_config
PUBLISHED = json.loads((Path(__file__).parent / "configs" / "published.json").read_text())


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated")
@pytest.mark.parametrize("name", PUBLISHED["rotary"])
@pytest.mark.parametrize("form", ["dict", "object"])
def test_rotary(name, form):
    keys = PUBLISHED["rotary"][name]
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(keys)))
    given = keys if form == "dict" else config
    text = config.get_text_config()
    rotary = classes.rotary_class(type(text))(text)
    if not hasattr(rotary, "rope_type"):  # GPT-J: a table of sines
        ours = from_config(given, precision="float32")
        sin, cos = rotary.embed_positions[:9].chunk(2, -1)
        for mine, right in zip(ours.table(9), (cos, sin), strict=True):
            assert_bits(mine, right.contiguous())
        return
    for layer in classes.layers_of(rotary):
        ours = from_config(given, layer_type=layer, precision="float32")
        inv_freq, factor = classes.frequencies(rotary, layer)
        assert_bits(ours.frequencies().inv_freq, inv_freq)
        assert ours.attention_factor == factor
        if hasattr(rotary, "mrope_section"):
            positions = torch.tensor([[[3, 700]], [[50, 11]], [[900, 5]]])
            right = rotary(torch.zeros(1), positions)[0][..., : len(inv_freq)]
            assert_bits(ours.table(positions)[0], right.contiguous())


@pytest.mark.parametrize("name", PUBLISHED["without positions"])
def test_without_positions(name):
    with pytest.raises(ValueError, match=r"config must .*rotary positions, got"):
        from_config(PUBLISHED["without positions"][name])
    with pytest.raises(ValueError, match=r"config must .*rotary positions, got"):
        from_config(PUBLISHED["without positions"][name], interleaved=False)


def test_enough_of_both():
    assert len(PUBLISHED["rotary"]) >= 30
    assert len(PUBLISHED["without positions"]) >= 10
