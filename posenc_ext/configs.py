"""What the config of a Hugging Face model says about its rotary embedding.

Read from a config object or its dict, of transformers 4 (``rope_theta``, ``rope_scaling``) or 5
(``rope_parameters``), by the names of the keys; transformers is not imported. A key that is missing
means what the class of the ``model_type`` means by it (:mod:`posenc_ext.config_defaults`).

    head size      head_dim, qk_rope_head_dim, or hidden_size / num_attention_heads (n_embd, n_head)
    rotated part   rotary_dim, partial_rotary_factor, rotary_pct
    base           rope_theta, rotary_emb_base; by kind of layer rope_local_base_freq,
                   global_rope_theta, local_rope_theta, swa_rope_theta
    rule           rope_parameters, rope_scaling, max_position_embeddings (n_positions),
                   original_max_position_embeddings
    axes           mrope_section in the rule, mrope_interleaved
    pairs          rope_interleave, or the model_type

A key with rope, rotary, theta or head_dim in its name that is not understood is refused, and so is
a model that no rotary module of this package fits (:mod:`posenc_ext.model_types`).

>>> config = {"model_type": "gptj", "n_embd": 4096, "n_head": 16}
>>> rotary_arguments(config)[:4]
(64, 10000.0, None, True)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from .arguments import error, integer, number
from .config_keys import OP, Keys, read_keys, refusal
from .config_rules import rule_for
from .model_types import FAMILY_KEYS, OTHER_PARTS, REFUSED, SWITCHES
from .ops.mrope import mrope_axes
from .ops.rope_options import check_flags
from .types import AxisOrder

ABOUT_ROTATION = re.compile("(^|_)rope|rotary|theta|head_dim")
_READ = """
    rope_theta rope_scaling rope_parameters rope_interleave partial_rotary_factor head_dim
    qk_rope_head_dim
"""
READ = frozenset(_READ.split())
# Keys with this value, or of this family, that change nothing.
UNUSED = (
    ("rotary", True),
    ("rotary_value", False),
    ("rotary_pct", 1.0),
    ("use_rotary_pos_emb", True),
    ("rotary_dim", "minimax_m3_vl_text"),
)


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
    if interleaved is not None:
        check_flags(OP, interleaved=interleaved)
    if layer_type is not None and not isinstance(layer_type, str):
        raise error(TypeError, OP, f"layer_type must be a str, got {type(layer_type).__name__}")
    keys = read_keys(config)
    _check_model(keys)
    _check_keys(keys)
    pairs = _interleaved(keys) if interleaved is None else bool(interleaved)
    rule = rule_for(keys, layer_type)
    dim = _rotary_dim(keys, rule, layer_type)
    _check_layer_lists(keys, rule)
    base = number(OP, "rope_theta", rule["rope_theta"])
    return RotaryArguments(dim, base, _scaling(keys, rule), pairs, _sections(keys, rule, dim), None)


def _check_model(keys: Keys) -> None:
    """Has it rotary positions, of a form that the module knows?"""
    kind = keys.model_type or ""
    without = "config must be of a model with rotary positions, got"
    if keys.without_positions:
        raise error(ValueError, OP, f"{without} model_type {kind!r}")
    if kind in REFUSED:
        raise error(ValueError, OP, f"config must {REFUSED[kind]}, got model_type {kind!r}")
    key, wanted, usual = SWITCHES.get(kind, ("alibi", False, False))
    value = keys.given.get(key, usual)
    if value != wanted:
        raise error(ValueError, OP, f"{without} {key} = {value!r}")
    value = keys.given.get("position_embedding_type", "rope")
    if not keys.listed and value not in ("rope", "rotary"):
        raise error(ValueError, OP, f"{without} position_embedding_type = {value!r}")


def _check_keys(keys: Keys) -> None:
    """Every key that may be about the rotation is understood."""
    switch = SWITCHES.get(keys.model_type or "", ("",))[0]
    for key, value in keys.given.items():
        if not ABOUT_ROTATION.search(key) or key in READ or key in OTHER_PARTS or key == switch:
            continue
        families = FAMILY_KEYS.get(key, ())
        if keys.model_type in families or (families and not keys.listed):
            continue
        if (key, value) in UNUSED or (key, keys.model_type) in UNUSED:
            continue
        raise refusal(keys, key, f"must be left out, it is not understood, got {value!r}")
    heads = {keys.given[key] for key in ("head_dim", "attention_head_dim") if key in keys.given}
    if len(heads) > 1:
        raise refusal(keys, "attention_head_dim", f"must be head_dim, got {sorted(heads)}")


def _rotary_dim(keys: Keys, rule: Mapping[str, Any], layer_type: str | None) -> int:
    key = "partial_rotary_factor"
    part = number(OP, key, rule.get(key, 1.0))
    latent = keys.get("qk_rope_head_dim")
    if latent is not None:
        dim = integer(OP, "qk_rope_head_dim", latent)
        whole = dim + integer(OP, "qk_nope_head_dim", keys.get("qk_nope_head_dim") or 0)
        usual = keys.defaults.get("partial_rotary_factor", 1.0)
        if part != 1 and (usual == 1 or int(whole * part) != dim):
            raise refusal(keys, key, f"must be qk_rope_head_dim = {dim} of {whole}, got {part}")
        head = keys.own("head_dim")
        if head not in (None, dim, whole if part != 1 else dim):
            raise refusal(keys, "head_dim", f"must be qk_rope_head_dim = {dim}, got {head}")
        return dim
    head = keys.head_dim(layer_type)
    if rule.get("rope_type") == "proportional":
        return head
    if part != 1 and keys.defaults.get("whole"):
        raise refusal(keys, key, f"must be left out, this model rotates whole heads, got {part}")
    dim = int(head * part)
    rotary = None if ("rotary_dim", keys.model_type) in UNUSED else keys.get("rotary_dim")
    if rotary is not None:
        rotary = integer(OP, "rotary_dim", rotary)
        if part != 1 and rotary != dim:
            text = f"rotary_dim must be {key} * head_dim = {dim}, got {rotary}"
            raise error(ValueError, OP, text)
        if not 0 < rotary <= head:
            text = f"rotary_dim must be from 2 to head_dim = {head}, got {rotary}"
            raise error(ValueError, OP, text)
        return rotary
    if part != 1 and (not 0 < part <= 1 or dim % 2 or dim == 0):
        raise error(
            ValueError, OP, f"{key} must take an even part of head_dim = {head}, got {part}"
        )
    return dim


def _scaling(keys: Keys, rule: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rule alone, with the lengths that the config holds beside it; None for the default."""
    found = {key: value for key, value in rule.items() if value is not None}
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "ntk":
        raise refusal(
            keys,
            "rope_type",
            "must be 'ntk_aware' (a larger base) or 'ntk_mixed' (what vLLM calls 'ntk'), got 'ntk'",
        )
    if kind != "proportional":
        found.pop("partial_rotary_factor", None)
    found.pop("rope_theta", None)
    if kind in ("default", "mrope"):
        return found if found.keys() - {"rope_type", "type"} else None
    longest = keys.get("max_position_embeddings")
    if longest is not None:
        found.setdefault("max_position_embeddings", longest)
    name = "original_max_position_embeddings"
    original = longest if kind == "dynamic" else keys.get(name)
    if original is not None and original != found.setdefault(name, original):
        text = f"of the rule must be that of the model = {original}, got {found[name]}"
        raise refusal(keys, name, text)
    if kind == "dynamic" and longest is not None:
        del found[name]
    return found


def _check_layer_lists(keys: Keys, rule: Mapping[str, Any]) -> None:
    """Lists with an entry for each layer must come to one rule."""
    bases = set(keys.given.get("layer_rope_theta", ())) - {0}
    if bases - {rule["rope_theta"]}:
        text = f"must have the one base {rule['rope_theta']}, got {sorted(bases)}"
        raise refusal(keys, "layer_rope_theta", text)
    scaled = keys.given.get("rope_scaling_layers")
    kind = rule.get("rope_type", rule.get("type", "default"))
    if scaled is not None and kind != "default" and len(scaled) != keys.given["num_hidden_layers"]:
        raise refusal(keys, "rope_scaling_layers", f"must name every layer, got {scaled}")


def _check_switch(keys: Keys, name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):  # 'false' would count as true
        raise refusal(keys, name, f"must be true or false, got {value!r}")


def _interleaved(keys: Keys) -> bool:
    given = keys.get("rope_interleave")
    _check_switch(keys, "rope_interleave", given)
    if keys.model_type is not None and not keys.listed:
        if given is not None:
            return bool(given)
        parts = [key for key in keys.given if key.endswith("_config")]
        hint = f", which has parts: {parts}" if parts else ""
        raise error(
            ValueError,
            OP,
            "model_type must be one whose channel pairs are known (or give interleaved=True or "
            f"False), got {keys.model_type!r}{hint}",
        )
    pairs = keys.defaults.get("pairs") == "interleaved"
    if given is None:
        return pairs
    if keys.listed and "rope_interleave" not in keys.defaults and bool(given) != pairs:
        raise refusal(keys, "rope_interleave", f"must be {pairs}, got {given}")
    return bool(given)


def _sections(keys: Keys, rule: Mapping[str, Any], dim: int) -> Tensor | None:
    sections = rule.get("mrope_section")
    order: AxisOrder | None = keys.defaults.get("mrope_order")
    woven = rule.get("mrope_interleaved")
    _check_switch(keys, "mrope_interleaved", woven)
    if woven is not None and order is not None and bool(woven) != (order == "interleaved"):
        raise refusal(keys, "mrope_interleaved", f"must be {not woven}, got {woven}")
    if order is None:
        order = "interleaved" if woven else "chunked"
    if sections is None:
        sections = keys.defaults.get("mrope_section")
        if sections is not None and 2 * sum(sections) != dim:
            text = f"must be given, the usual {sections} are not for R = {dim}, got none"
            raise refusal(keys, "mrope_section", text)
    return None if sections is None else mrope_axes(sections, order)
