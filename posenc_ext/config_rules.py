"""The rule of one kind of layer in a config, with its base and rotated part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .arguments import error
from .config_keys import OP, Keys, refusal
from .frequencies import DEFAULT_BASE
from .model_types import (
    FIXED_BASES,
    LAYER_BASES,
    NEOX,
    NO_POSITIONS,
    NO_POSITIONS_BESIDE_WINDOWS,
    NO_POSITIONS_IN_FULL,
    SCALED_LAYERS,
)

# What some families call a rule.
RENAMED = {
    ("phi3", "yarn"): "longrope",
    ("phi4_multimodal", "yarn"): "longrope",
    ("sarvam_mla", "deepseek_yarn"): "yarn",
}
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")


def rule_for(keys: Keys, layer_type: str | None) -> dict[str, Any]:
    """A flat dict, with rope_theta."""
    given = _given(keys)
    usual = keys.defaults.get("rope_rule", {})
    if _is_nested(given):
        rules = _with_flat_keys(keys, given)
    elif _is_nested(usual) or any(key in keys.given for key in LOCAL_BASES):
        rules = _by_layer(keys, given, usual)
    else:
        _check_layer(keys, layer_type)
        return _filled(keys, given or dict(usual), None)
    names = sorted(key for key, value in rules.items() if isinstance(value, Mapping))
    if layer_type is None or layer_type not in rules:
        text = f"layer_type must be one of {names} for this config, got {layer_type!r}"
        raise error(ValueError, OP, text)
    if rules[layer_type] is None:
        raise error(ValueError, OP, f"layer_type must have positions, got {layer_type!r}")
    return _filled(keys, rules[layer_type], layer_type)


def _is_nested(rule: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in rule.values())


def _given(keys: Keys) -> dict[str, Any]:
    """rope_parameters or rope_scaling, a new dict; empty if there is neither."""
    new, old = keys.given.get("rope_parameters"), keys.given.get("rope_scaling")
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, Mapping):
            raise error(ValueError, OP, f"{name} must be a dict, got {value!r}")
    if new and old and dict(new) != dict(old):
        raise error(ValueError, OP, "rope_scaling must equal rope_parameters, got two that differ")
    return dict(new or old or {})


def _with_flat_keys(keys: Keys, given: dict[str, Any]) -> dict[str, Any]:
    """A nested rule; keys beside its entries, or beside the rule, belong to each entry that lacks
    them, and must not contradict all that have them."""
    shared = {k: v for k, v in given.items() if v is not None and not isinstance(v, Mapping)}
    rules = {
        kind: None if rule is None else {**shared, **rule}
        for kind, rule in given.items()
        if kind not in shared
    }
    bases = LAYER_BASES.get(keys.model_type or "", dict.fromkeys(rules, "rope_theta"))
    for key in {*bases.values(), "partial_rotary_factor"} & set(keys.given):
        name = "partial_rotary_factor" if key == "partial_rotary_factor" else "rope_theta"
        kinds = [kind for kind in rules if name != "rope_theta" or bases.get(kind) == key]
        own = [rule for kind in kinds if (rule := rules[kind]) is not None]
        filled = "rope_theta" in keys.defaults or not keys.listed
        values = {
            rule.setdefault(name, keys.given[key]) if filled else rule.get(name) for rule in own
        }
        if own and keys.given[key] not in values:
            text = f"must be that of {kinds} = {sorted(map(str, values))}, got {keys.given[key]}"
            raise refusal(keys, key, text)
    return rules


def _by_layer(
    keys: Keys, given: dict[str, Any], usual: Mapping[str, Any]
) -> dict[str, dict[str, Any] | None]:
    """Keys of a flat config by the kind of layer that they are for."""
    bases = LAYER_BASES.get(keys.model_type or "")
    scaled = SCALED_LAYERS.get(keys.model_type or "", ())
    if not keys.listed:  # two bases in a config of unknown make: the rule is for the global layers
        local = next(key for key in LOCAL_BASES if key in keys.given)
        full = "global_rope_theta" if "global_rope_theta" in keys.given else "rope_theta"
        bases = {"full_attention": full, "sliding_attention": local}
        usual = {kind: {"rope_type": "default"} for kind in bases}
        scaled = ("full_attention",)
    flat = [key for key in ("rope_theta", "partial_rotary_factor") if key in keys.given]
    if given and (not scaled or (keys.listed and "rope_parameters" in keys.given)):
        flat.append("rope_parameters" if "rope_parameters" in keys.given else "rope_scaling")
    elif bases is not None:
        flat = []
    if flat:
        text = f"must be given by layer type in rope_parameters, got {keys.given[flat[-1]]!r}"
        raise refusal(keys, flat[-1], text)
    if keys.listed and given and "rope_type" not in given:
        raise refusal(keys, "rope_scaling", f"must have the key rope_type, got {sorted(given)}")
    rules: dict[str, dict[str, Any] | None] = {}
    for kind, rule in usual.items():
        found = None if rule is None else dict(rule)
        if found is not None and kind in scaled:
            found = {k: v for k, v in found.items() if k != "rope_type" or not given} | given
        for name, key in (
            ("rope_theta", (bases or {}).get(kind, "")),
            ("partial_rotary_factor", "partial_rotary_factor"),
        ):
            if found is None or key not in keys.given:
                continue
            value = keys.given[key]
            if keys.model_type in FIXED_BASES and value != found.get(name):
                text = f"must be {found.get(name)} unless it is given by layer type, got {value}"
                raise refusal(keys, key, text)
            found[name] = value
        rules[kind] = found
    return rules


def _check_layer(keys: Keys, layer_type: str | None) -> None:
    """All layers with positions are alike."""
    if layer_type is None:
        return
    kinds = sorted(set(keys.get("layer_types") or ()))
    if layer_type not in kinds:
        wanted = f"None or one of {kinds}" if kinds else "None"
        text = f"layer_type must be {wanted} for this config, got {layer_type!r}"
        raise error(ValueError, OP, text)
    beside = NO_POSITIONS_BESIDE_WINDOWS if "sliding_attention" in kinds else ()
    families = (*NO_POSITIONS_IN_FULL, *beside)
    nope = layer_type == "full_attention" and keys.model_type in families
    if layer_type in NO_POSITIONS or nope:
        raise error(ValueError, OP, f"layer_type must have positions, got {layer_type!r}")


def _filled(keys: Keys, rule: dict[str, Any], layer_type: str | None) -> dict[str, Any]:
    """With the base and the rotated part of the config, or of its class."""
    found = {key: value for key, value in rule.items() if value is not None}
    for name in ("rope_type", "type"):
        kind = found.get(name)
        if isinstance(kind, str):
            found[name] = RENAMED.get((keys.model_type or "", kind), kind)
    base, part = found.get("rope_theta"), found.get("partial_rotary_factor")
    if layer_type is None:
        neox = keys.model_type in NEOX
        base = _flat(keys, base, ("rope_theta", "rotary_emb_base"), neox)
        part = _flat(keys, part, ("partial_rotary_factor", "rotary_pct"), neox)
    if base is None:
        base = keys.defaults.get("rope_theta", DEFAULT_BASE if keys.model_type is None else None)
        base = base.get(layer_type) if isinstance(base, Mapping) else base
    if base is None:
        raise refusal(keys, "rope_theta", "must be given, its default is not known, got none")
    if part is None and keys.own("rotary_dim") is None:
        part = keys.defaults.get("partial_rotary_factor")
    if keys.defaults.get("unscaled"):
        own = (keys.own("rope_theta") or keys.defaults["rope_theta"]) == base
        if not own or found.get("rope_type", found.get("type", "default")) != "default":
            raise refusal(keys, "rope_scaling", f"must be left out, it is not read, got {rule}")
    found["rope_theta"] = base
    return found if part is None else found | {"partial_rotary_factor": part}


def _flat(keys: Keys, value: Any, names: tuple[str, str], neox: bool) -> Any:
    """What the rule says, or else the config under one of these names, which must agree. GPT-NeoX
    reads the second name alone."""
    given = {name: keys.given[name] for name in names if name in keys.given}
    source = "that of the rule"
    if value is None:
        source = names[1] if neox else next(iter(given), names[0])
        value = given.get(source)
        if value is None and neox:
            source, value = "the usual one", keys.defaults[names[0]]
    for name, other in given.items():
        if other != value:
            raise refusal(keys, name, f"must be {source} = {value}, got {other}")
    return value
