"""Every config class of transformers, the rotary module that belongs to it, and what that module
computes."""

import functools
import importlib
import inspect
import re
import sys
import warnings
from pathlib import Path

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

transformers.logging.set_verbosity_error()
# Config classes whose model is that of another folder.
BORROWED = {
    "exaone": "llama",
    "internlm3": "llama",
    "iquestcoder": "llama",
    "sarvam_mla": "deepseek_v3",
    "sarvam_moe": "glm4_moe",
}
# Rotations in complex numbers, and what no probe of a single function shows.
KNOWN_PAIRS = {
    **dict.fromkeys(["llama4_text", "deepseek_v2", "roformer", "gptj", "codegen"], "interleaved"),
    **dict.fromkeys(["esm"], "half"),
}
ROTARY_KEY = re.compile("rope|rotary|theta")
VISION = re.compile("Vision(?!Text)|Attention|Sam3ViT|Position")


@functools.cache
def folders():
    return sorted(path for path in (Path(transformers.__file__).parent / "models").iterdir())


@functools.cache
def modules(kind):
    """{folder: its module of this kind, "configuration" or "modeling"}, those with rotary code."""
    found = {}
    for folder in folders():
        for path in folder.glob(f"{kind}_*.py"):
            if kind == "modeling" and not re.search(
                r"class \w*(Rotary|R[oO][pP][eE])\w*\(|sinusoidal", path.read_text()
            ):
                continue
            name = f"transformers.models.{folder.name}.{path.stem}"
            found.setdefault(folder.name, []).append(importlib.import_module(name))
    return found


def own(module, base):
    return {
        name: c
        for name, c in vars(module).items()
        if inspect.isclass(c) and issubclass(c, base) and c.__module__ == module.__name__
    }


@functools.cache
def config_classes():
    """{name: class} of all that say something about a rotary embedding."""
    found = {}
    for several in modules("configuration").values():
        for module in several:
            for name, c in own(module, transformers.PreTrainedConfig).items():
                config = default(c)
                if config is not None and any(map(ROTARY_KEY.search, keys_of(config))):
                    found[name] = c
    return found


def keys_of(config):
    return [key for key in vars(config) if key != "ignore_keys_at_rope_validation"]


@functools.cache
def default(config_class):
    """The config with nothing given, None for those that cannot be made so."""
    try:
        return config_class()
    except Exception:
        return None


def folder_of(config_class):
    return config_class.__module__.split(".")[2]


def rotary_class(config_class):
    """The rotary module of a text model or encoder: the one that names this config, else the one
    whose name is most like it."""
    folder = folder_of(config_class)
    candidates = {}
    for module in modules("modeling").get(BORROWED.get(folder, folder), []):
        for name, c in own(module, torch.nn.Module).items():
            if re.search("Rotary|R[oO][pP][eE]", name) and not VISION.search(name):
                candidates[name] = c
    for c in candidates.values():
        config = inspect.signature(c.__init__).parameters.get("config")
        if config is not None and config.annotation is config_class:
            return c

    def likeness(name):
        common = 0
        for a, b in zip(name, config_class.__name__, strict=False):
            if a != b:
                break
            common += 1
        return common, -len(name)

    return candidates[max(candidates, key=likeness)] if candidates else None


def layers_of(rotary):
    """The layer types of a rotary module, [None] if all layers are alike."""
    kinds = rotary.rope_type if isinstance(getattr(rotary, "rope_type", None), dict) else {}
    return sorted(kinds) or [None]


def frequencies(rotary, layer):
    """(inv_freq, attention factor)"""
    prefix = f"{layer}_" if layer else ""
    return getattr(rotary, prefix + "inv_freq"), getattr(rotary, prefix + "attention_scaling")


def fields_of(config_class):
    return config_class.__dataclass_fields__


def field_default(config_class, key):
    """The default of a key under its own name, or the name that the class gives it."""
    key = config_class.attribute_map.get(key, key)
    value = getattr(fields_of(config_class).get(key), "default", None)
    return value if isinstance(value, int) else None


def is_axial(config_class):
    rule = getattr(default(config_class), "rope_parameters", None) or {}
    return rule.get("rope_type") == "axial"


def with_all_layers(config_class, **keys):
    """The default config, with one layer of each type that its rule is keyed by."""
    rule = (
        keys.get("rope_parameters") or getattr(default(config_class), "rope_parameters", {}) or {}
    )
    layers = [key for key, value in rule.items() if isinstance(value, dict)]
    if not layers or getattr(config_class, "_rope_type_labels", None):
        return config_class(**keys)
    # Some classes want a window beside sliding layers.
    return config_class(layer_types=layers, num_hidden_layers=len(layers), sliding_window=8, **keys)


def fitting(section, n):
    """The sections, or others of the same order if those are for another width."""
    return section if sum(section) == n else [n - 2 * (n // 3), n // 3, n // 3]


def pairs(config_class):
    """By the first channel but one: its partner is 0 or, half a rotated part away, R/2 + 1. Written
    to 0 and R/2 it was read as the partner of 0."""
    config = default(config_class)
    if config.model_type in KNOWN_PAIRS:
        return KNOWN_PAIRS[config.model_type]
    kind = rotary_class(config_class)
    config = with_all_layers(config_class)
    rotary = kind(config)
    layer = layers_of(rotary)[-1]
    n = len(frequencies(rotary, layer)[0])
    positions = torch.tensor([[1]])
    if hasattr(rotary, "recomposition_frequencies"):
        positions = positions.repeat(3, 1, 1)
        if hasattr(rotary, "mrope_section"):
            rotary.mrope_section = fitting(rotary.mrope_section, n)
    x = torch.zeros(1, 1, 1, 2 * n)
    x[..., 1] = 1
    cos, sin = rotary(x, positions, *([layer] if layer else []))
    function = rotation(sys.modules[kind.__module__], config)
    both = "k" in inspect.signature(function).parameters
    out = function(x, x, cos, sin)[0] if both else function(x, cos, sin)
    where = out.flatten().nonzero().flatten().tolist()
    known = {(0, 1): "interleaved", (0, n): "interleaved", (1, n + 1): "half"}
    return known[tuple(where)]


def rotation(module, config):
    """The function that turns queries and keys, not those of an indexer beside them."""
    woven = getattr(module, "apply_rotary_pos_emb_interleave", None)
    if woven is not None and getattr(config, "rope_interleave", True):
        return woven
    return module.apply_rotary_pos_emb
