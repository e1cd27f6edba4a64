"""What the config of a Hugging Face model says about its rotary embedding.

Read from a config object or its dict, of transformers 4 (``rope_theta``, ``rope_scaling``) or 5
(``rope_parameters``), by the names of the keys; transformers is not imported.

    head size      head_dim, qk_rope_head_dim, or hidden_size / num_attention_heads (n_embd, n_head)
    rotated part   rotary_dim, partial_rotary_factor, rotary_pct
    base           rope_theta, rotary_emb_base; by kind of layer rope_local_base_freq,
                   global_rope_theta, local_rope_theta
    rule           rope_parameters, rope_scaling, max_position_embeddings (n_positions),
                   original_max_position_embeddings
    axes           mrope_section in the rule, mrope_interleaved
    pairs          rope_interleave, or the model_type

>>> config = {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64}
>>> rotary_arguments(config)[:4]
(64, 10000.0, None, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from .arguments import error, integer, number
from .model_types import HALF, INTERLEAVED
from .ops.mrope import mrope_axes
from .ops.rope_options import check_flags

OP = "RotaryPositionalEmbedding.from_config"
MROPE_INTERLEAVED = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe")
# Read these too, where the first name is missing.
OTHER_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


class RotaryArguments(NamedTuple):
    """The arguments of RotaryPositionalEmbedding."""

    dim: int
    base: float
    scaling: Mapping[str, Any] | None
    interleaved: bool
    sections: Tensor | None
    layer_type: str | None


def rotary_arguments(
    config: Any, layer_type: str | None = None, interleaved: bool | None = None
) -> RotaryArguments:
    if config is None or isinstance(config, (str, bytes, int, float, list, tuple)):
        got = type(config).__name__
        raise error(TypeError, OP, f"config must be a config object or a dict, got {got}")
    if interleaved is not None:
        check_flags(OP, interleaved=interleaved)
    text = _get(config, "text_config")
    config = config if text is None else text
    model_type = str(_get(config, "model_type") or "").removesuffix("_text")
    if _get(config, "alibi") is True:  # a Falcon, whose config has a rope_theta all the same
        raise error(ValueError, OP, "config must be of a model with rotary positions, got alibi")
    rule = _rule(config, layer_type)
    return RotaryArguments(
        _rotary_dim(config, rule, model_type),
        _base(config, rule),
        _scaling(config, rule),
        _interleaved(config, model_type) if interleaved is None else bool(interleaved),
        _sections(rule, model_type),
        None,
    )


def _get(config: Any, key: str) -> Any:
    """The value of a key, None if it is missing."""
    for name in (key, OTHER_NAMES.get(key)):
        if name is not None:
            found = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if found is not None:
                return found
    return None


def _one(config: Any, rule: Mapping[str, Any], *keys: str) -> tuple[str, Any]:
    """The value that these keys of the rule or the config agree on, and a key that has it."""
    given = [(key, rule[key]) for key in keys if rule.get(key) is not None]
    given += [(key, value) for key in keys if (value := _get(config, key)) is not None]
    for key, value in given[1:]:
        if value != given[0][1]:
            raise error(ValueError, OP, f"{key} must be {given[0][0]} = {given[0][1]}, got {value}")
    return given[0] if given else (keys[0], None)


def _rule(config: Any, layer_type: str | None) -> dict[str, Any]:
    """The flat dict of the rule for a layer, with the base that belongs to it."""
    new, old = _get(config, "rope_parameters"), _get(config, "rope_scaling")
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, Mapping):
            raise error(ValueError, OP, f"{name} must be a dict, got {value!r}")
    if new and old and dict(new) != dict(old):
        raise error(ValueError, OP, "rope_scaling must equal rope_parameters, got two that differ")
    rules = dict(new or old or {})
    if not any(isinstance(value, Mapping) for value in rules.values()):
        rules = _by_layer(config, rules)
    layers = sorted(key for key, value in rules.items() if isinstance(value, Mapping))
    if not layers:
        return rules
    if layer_type is None or layer_type not in list(rules):
        raise error(
            ValueError,
            OP,
            f"layer_type must be one of {layers} for this config, got {layer_type!r}",
        )
    rule = rules[layer_type]
    if rule is None:
        raise error(ValueError, OP, f"layer_type must have positions, got {layer_type!r}")
    shared = {key: value for key, value in rules.items() if not isinstance(value, Mapping | None)}
    return shared | dict(rule)


def _by_layer(config: Any, rule: dict[str, Any]) -> dict[str, Any]:
    """Two bases as separate keys (Gemma 3, ModernBERT), in the nested form. The rule scales the
    global layers."""
    _, local = _one(config, {}, "rope_local_base_freq", "local_rope_theta")
    if local is None:
        return rule
    _, base = _one(config, rule, "global_rope_theta", "rope_theta")
    full = rule if base is None else rule | {"rope_theta": base}
    return {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def _rotary_dim(config: Any, rule: Mapping[str, Any], model_type: str) -> int:
    latent = _get(config, "qk_rope_head_dim")
    if latent is not None:
        return integer(OP, "qk_rope_head_dim", latent)
    head = _get(config, "head_dim")
    if head is None:
        size, heads = _get(config, "hidden_size"), _get(config, "num_attention_heads")
        if size is None or heads is None:
            missing = "hidden_size" if size is None else "num_attention_heads"
            raise error(ValueError, OP, f"{missing} must be given if head_dim is not, got neither")
        size, heads = integer(OP, "hidden_size", size), integer(OP, "num_attention_heads", heads)
        if heads <= 0 or size % heads:
            raise error(ValueError, OP, f"num_attention_heads must divide {size}, got {heads}")
        head = size // heads
    head = integer(OP, "head_dim", head)
    key, part = _one(config, rule, "partial_rotary_factor", "rotary_pct")
    rotary = _get(config, "rotary_dim")
    if rule.get("rope_type") == "proportional":
        return head
    if part is None and rotary is None and model_type == "gpt_neox":
        part = 0.25
    if part is not None:
        part = number(OP, key, part)
        dim = int(head * part)
        if rotary is not None and rotary != dim:
            raise error(
                ValueError, OP, f"rotary_dim must be {key} * head_dim = {dim}, got {rotary}"
            )
        if not 0 < part <= 1 or dim % 2 or dim == 0:
            raise error(
                ValueError, OP, f"{key} must take an even part of head_dim = {head}, got {part}"
            )
        return dim
    dim = head if rotary is None else integer(OP, "rotary_dim", rotary)
    if not 0 < dim <= head:
        raise error(ValueError, OP, f"rotary_dim must be from 2 to head_dim = {head}, got {dim}")
    return dim


def _base(config: Any, rule: Mapping[str, Any]) -> float:
    if rule.get("rope_theta") is not None:
        return number(OP, "rope_theta", rule["rope_theta"])
    key, base = _one(config, {}, "rope_theta", "rotary_emb_base", "global_rope_theta")
    return 10000.0 if base is None else number(OP, key, base)


def _scaling(config: Any, rule: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rule alone, with the lengths that the config holds beside it; None for the default."""
    keys = {key: value for key, value in rule.items() if value is not None}
    kind = keys.get("rope_type", keys.get("type", "default"))
    if kind != "proportional":
        keys.pop("partial_rotary_factor", None)
    keys.pop("rope_theta", None)
    if kind in ("default", "mrope"):
        return keys if len(keys) > 1 else None
    longest = _get(config, "max_position_embeddings")
    if longest is not None:
        keys.setdefault("max_position_embeddings", longest)
    original = _get(config, "original_max_position_embeddings")
    if original is not None:
        keys["original_max_position_embeddings"] = original
    return keys


def _interleaved(config: Any, model_type: str) -> bool:
    given = _get(config, "rope_interleave")
    if given is not None:
        return bool(given)
    if model_type and model_type not in INTERLEAVED and model_type not in HALF:
        raise error(
            ValueError,
            OP,
            "model_type must be one whose channel pairs are known (or give interleaved=True or "
            f"False), got {model_type!r}",
        )
    return model_type in INTERLEAVED


def _sections(rule: Mapping[str, Any], model_type: str) -> Tensor | None:
    sections = rule.get("mrope_section")
    if sections is None:
        return None
    woven = rule.get("mrope_interleaved")
    if model_type.startswith("ernie"):
        return mrope_axes(sections, "ernie")
    return mrope_axes(
        sections, "interleaved" if woven or model_type in MROPE_INTERLEAVED else "chunked"
    )
