"""Write posenc_ext/config_defaults.py from the classes of transformers.

    python tests/make_config_defaults.py

What a class does with a key that is missing is found by leaving it out, and which channels form a
pair by rotating one channel with the model's own function.
"""

import re
import textwrap
from pathlib import Path

import config_classes as classes
import torch
import transformers

from posenc_ext.model_types import REFUSED

OUT = Path(__file__).parent.parent / "posenc_ext" / "config_defaults.py"
HEAD = '''"""What config classes of transformers mean by a key that is missing.

Written by ``python tests/make_config_defaults.py`` from version {version}; do not edit.

    pairs          which channels form a pair
    rope_rule      the rule if none is given, where that is more than "default"
    rope_theta     the base if none is given; by layer type where they differ
    partial_rotary_factor   the rotated part if none is given
    whole          True: without scaling the whole head is rotated, whatever part is given
    unscaled       True: no rule but the default
    head_times     the head is so many times hidden_size / num_attention_heads
    head_dims      by layer type, where they differ from head_dim
    fixed_head     True: the head is hidden_size / num_attention_heads, whatever head_dim is given
    mrope_section  the sections if none are given; mrope_order how they are laid out
    other keys     as in the config
"""
# ruff: noqa: E501
# fmt: off

from typing import Any

# By model type: of {count} config classes that speak of rotation, those that have it.
DEFAULTS: dict[str, dict[str, Any]] = {{
{rows}
}}
# The model type of the text model inside.
_TEXTS = """
{texts}
"""
TEXT_TYPES = dict(word.split(":") for word in _TEXTS.split())
# Nothing in the code of these models rotates.
_WITHOUT = """
{without}
"""
WITHOUT_POSITIONS = frozenset(_WITHOUT.split())
'''
SIZES = (
    "hidden_size",
    "num_attention_heads",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "rotary_dim",
    "rope_interleave",
)


def made(config_class, **keys):
    try:
        return config_class(**keys)
    except Exception:
        return None


def width(config_class, layer, **keys):
    """Channels that the rotary module turns, None if it cannot be built from these keys."""
    config = made(config_class, **keys)
    try:
        rotary = classes.rotary_class(config_class)(config)
        return 2 * len(classes.frequencies(rotary, layer)[0])
    except Exception:
        return None


def row(config_class):
    config = classes.default(config_class)
    found = {"pairs": classes.pairs(config_class)}
    for key in SIZES:
        value = getattr(config, key, None)
        if isinstance(value, int):
            found[key] = value
    if config.model_type == "minimax_m3_vl_text":
        del found["rotary_dim"]  # a field that nothing reads
    rule = in_order(getattr(config, "rope_parameters", None) or {})
    layers = sorted(key for key, value in rule.items() if isinstance(value, dict) or value is None)
    found |= head_defaults(config_class, config, layers)
    found |= nested_rule(config_class, rule, layers) if layers else flat_rule(config_class, rule)
    kinds = getattr(config, "layer_types", None)
    if kinds and not layers:
        found["layer_types"] = sorted(set(kinds))
    return found | sections(config_class, config)


def in_order(rule):
    """Some classes fill it in the order of a set."""
    return {k: in_order(v) if isinstance(v, dict) else v for k, v in sorted(rule.items())}


def head_defaults(config_class, config, layers):
    found = {}
    size = getattr(config, "hidden_size", None)
    field = classes.field_default(config_class, "head_dim")
    if field is not None and not hasattr(config, "qk_rope_head_dim"):
        found["head_dim"] = field
    elif size and getattr(config, "head_dim", 0) == 2 * size // config.num_attention_heads:
        found["head_times"] = 2
    elif (
        size
        and not hasattr(config, "qk_rope_head_dim")
        and width(config_class, None, head_dim=2 * size) not in (None, 2 * size)
    ):
        other = made(config_class, head_dim=2 * size)
        if other is not None and getattr(other, "head_dim", None) != 2 * size:
            found["fixed_head"] = True
    if getattr(config, "is_heterogeneous", False):
        for layer in layers:
            head = config.per_layer_config[layer].head_dim
            if head != field:
                found.setdefault("head_dims", {})[layer] = head
    return found


def flat_rule(config_class, rule):
    if not rule:
        base = float(getattr(config_class, "rope_theta", 10000.0))
        return {"rope_theta": base, "whole": True, "unscaled": True}
    plain = made(config_class, rope_parameters={"rope_type": "default"})
    filled = getattr(plain, "rope_parameters", None) or {}
    found = {
        key: filled[key]
        for key in ("rope_theta", "partial_rotary_factor")
        if filled.get(key) is not None
    }
    other = made(config_class, rope_theta=54321.0)
    free = other is not None and other.rope_parameters.get("rope_theta") == 54321.0
    if "rope_theta" not in found and free:
        found["rope_theta"] = rule["rope_theta"]
    if rule.get("rope_type", "default") != "default":
        found["rope_rule"] = {k: v for k, v in rule.items() if not (free and k == "rope_theta")}
    if rule.get("partial_rotary_factor") not in (None, found.get("partial_rotary_factor")):
        found["rope_rule"] = dict(rule)
    if rule.get("rope_theta") not in (None, found.get("rope_theta")) and "rope_rule" not in found:
        found["rope_rule"] = dict(rule)
    half = {"rope_type": "default", "partial_rotary_factor": 0.5}
    full = {"rope_type": "default", "partial_rotary_factor": 1.0}
    widths = [width(config_class, None, rope_parameters=dict(keys)) for keys in (half, full)]
    if widths[0] == widths[1] and "qk_rope_head_dim" not in classes.fields_of(config_class):
        found["whole"] = True
    linear = made(config_class, rope_scaling={"rope_type": "linear", "factor": 2.0})
    if linear is not None and linear.rope_parameters["rope_type"] == "default":
        found["unscaled"] = True
    return found


def nested_rule(config_class, rule, layers):
    found = {"rope_rule": rule}
    kinds = [layer for layer in layers if rule[layer] is not None]
    plain = {layer: {"rope_type": "default"} for layer in layers}
    config = made(
        config_class,
        rope_parameters=plain,
        layer_types=layers,
        num_hidden_layers=len(layers),
        sliding_window=8,
    )
    filled = getattr(config, "rope_parameters", None) or {}
    thetas = {layer: (filled.get(layer) or {}).get("rope_theta") for layer in kinds}
    if all(thetas.values()):
        found["rope_theta"] = thetas
    parts = [
        width(
            config_class,
            kinds[0],
            layer_types=layers,
            num_hidden_layers=len(layers),
            sliding_window=8,
            rope_parameters={
                layer: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": part}
                for layer in layers
            },
        )
        for part in (0.5, 1.0)
    ]
    if parts[0] == parts[1]:
        found["whole"] = True
    return found


def sections(config_class, config):
    try:
        rotary = classes.rotary_class(config_class)(config)
    except Exception:
        return {}
    if not hasattr(rotary, "recomposition_frequencies"):
        return {}
    n = len(rotary.inv_freq)
    section = list(rotary.mrope_section)
    rotary.mrope_section = classes.fitting(section, n)
    axes = torch.arange(3.0).view(3, 1, 1, 1).repeat(1, 1, 1, n)
    seen = rotary.recomposition_frequencies(axes)[0, 0].tolist()
    order = "chunked"
    if seen[:3] == [0, 1, 2] or seen[:4] == [0, 0, 1, 1]:
        order = "interleaved"
    elif seen[:4] == [1, 1, 2, 2]:
        order = "ernie"
    return {"mrope_section": section, "mrope_order": order}


def without_positions():
    """Model types whose code does not speak of rotation."""
    spoken = re.compile(r"rotary|\brope|_rope|freqs_cis|inv_freq|RoPE|sinusoidal_pos")
    code = {}
    for folder in classes.folders():
        code[folder.name] = " ".join(p.read_text() for p in folder.glob("modeling_*.py"))
    found = set()
    for several in classes.modules("configuration").values():
        for module in several:
            for c in classes.own(module, transformers.PreTrainedConfig).values():
                text = code.get(classes.folder_of(c), "")
                if c.model_type and not c.sub_configs and text and not spoken.search(text):
                    found.add(c.model_type)
    return found


def filled(words):
    return textwrap.fill(" ".join(sorted(words)), 180, break_on_hyphens=False)


def table():
    """The text of the file."""
    rows = {}
    for c in classes.config_classes().values():
        kind = classes.default(c).model_type
        if kind and kind not in REFUSED:
            rows[kind] = row(c)
    texts = {}
    for several in classes.modules("configuration").values():
        for module in several:
            for c in classes.own(module, transformers.PreTrainedConfig).values():
                inner = getattr(classes.default(c), "text_config", None)
                if c.model_type and inner is not None and inner.model_type:
                    texts[c.model_type] = inner.model_type
    return HEAD.format(
        version=transformers.__version__,
        count=len(classes.config_classes()),
        rows="\n".join(f'    "{kind}": {rows[kind]!r},' for kind in sorted(rows)),
        texts=filled(f"{kind}:{inner}" for kind, inner in texts.items()),
        without=filled(without_positions() - set(rows) - set(REFUSED)),
    )


if __name__ == "__main__":
    OUT.write_text(table())
