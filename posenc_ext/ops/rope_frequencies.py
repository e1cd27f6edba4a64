"""The frequencies of rotary position embedding (RoPE); its rules are in `posenc_ext.scaling`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import torch
from torch import Tensor

from ..arguments import check_precision, error, integer, length_of, number
from ..frequencies import DEFAULT_BASE, OP, Request, RopeFrequencies, Rule, value_error
from ..scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    NTKByParts,
    NTKMixed,
    PartNTK,
    Proportional,
    YaRN,
)
from ..types import Precision

RULES: dict[str, type[Rule] | None] = {
    "default": None,
    "dynamic": DynamicNTK,
    "linear": Linear,
    "llama3": Llama3,
    "longrope": LongRoPE,
    "ntk_aware": NTK,
    "ntk_by_parts": NTKByParts,
    "ntk_mixed": NTKMixed,
    "part_ntk": PartNTK,
    "proportional": Proportional,
    "yarn": YaRN,
}
ALIASES = {"su": "longrope", "mrope": "default", "ntk": "ntk_aware"}
UNREAD_BESIDE_ALPHA = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
# Keys that any dict may have: those read here, then those that speak to other parts of a model.
COMMON_KEYS = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "mrope_section",
    "mrope_interleaved",
    "llama_4_scaling_beta",
    "finetuned",
}


def rope_frequencies(
    dim: int,
    base: float = DEFAULT_BASE,
    scaling: Rule | Mapping[str, Any] | None = None,
    *,
    seq_len: int | Tensor | None = None,
    layer_type: str | None = None,
    precision: Precision = "exact",
) -> RopeFrequencies:
    """The angle per position of each pair of channels, scaled by a context-extension rule.

    >>> import posenc_ext
    >>> posenc_ext.rope_frequencies(8).inv_freq
    tensor([1.0000, 0.1000, 0.0100, 0.0010], dtype=torch.float64)
    >>> llama = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    ...          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    >>> inv_freq, attention_factor = posenc_ext.rope_frequencies(128, 500000.0, llama)

    Without `scaling`, ``inv_freq[i] = base ** (-2i / dim)`` (Su et al., 2021). A larger base alone
    is ABF ("adjusted base frequency", LLaMA 2 Long).

    Args:
        dim: R, the number of channels to rotate; even. With a ``partial_rotary_factor`` in the dict
            (and for rule "proportional"), the head dimension D.
        base: the frequency base, also called theta. A ``rope_theta`` in the dict takes its place.
        scaling: a Hugging Face ``rope_parameters`` or ``rope_scaling`` dict, or a rule of
            :mod:`posenc_ext.scaling`, which lists them with their keys.
        seq_len: length of the current sequence, for the rules that depend on it: "dynamic"
            (default: the original length) and "longrope" (default: short). Pass the final length to
            keep one set of frequencies for a whole generation. An int tensor ``[]`` is read, which
            waits for its device.
        layer_type: which entry of a nested dict to use, such as "full_attention".
        precision: "exact" gives float64. "float32" gives the float32 frequencies of Hugging Face,
            computed in their order of operations, bit for bit.

    Returns:
        ``RopeFrequencies(inv_freq, attention_factor)``: a tensor ``[R/2]`` on the CPU, and the
        number that multiplies cos and sin (1.0 but for YaRN and LongRoPE).

    Raises:
        TypeError: a wrong type.
        ValueError: an odd `dim`, a base that is not positive, an unknown rule, a missing, unknown
            or contradictory key.
    """
    seq_len = length_of(OP, seq_len)
    check_precision(OP, precision)
    dim, base, rule = parsed(dim, base, scaling, layer_type)
    dtype = torch.float64 if precision == "exact" else torch.float32
    request = Request(dim, base, seq_len, dtype)
    return RopeFrequencies(request.unscaled(), 1.0) if rule is None else rule(request)


def parsed(
    dim: int, base: float, scaling: Rule | Mapping[str, Any] | None, layer_type: str | None
) -> tuple[int, float, Rule | None]:
    """dim, base and the rule, for which a dict is read; None for the default."""
    dim = integer(OP, "dim", dim)
    if dim <= 0 or dim % 2:
        raise error(ValueError, OP, f"dim must be positive and even, got {dim}")
    if dim > 2**20:  # exact frequencies are made one by one
        raise error(ValueError, OP, f"dim must not exceed {2**20}, got {dim}")
    base = number(OP, "base", base)
    if base <= 0:
        raise error(ValueError, OP, f"base must be positive, got {base}")
    if scaling is not None and not isinstance(scaling, (Rule, Mapping)):
        raise error(
            TypeError, OP, f"scaling must be a dict or a rule, got {type(scaling).__name__}"
        )
    rule = scaling if isinstance(scaling, Rule) else None
    if isinstance(scaling, Mapping):
        keys = layer_keys(scaling, layer_type)
        rule = rule_of(keys)
        base = base_of(keys, base)
        if not isinstance(rule, Proportional):
            dim = rotary_dim_of(keys, dim)
    return dim, base, rule


def layer_keys(scaling: Mapping[str, Any], layer_type: str | None) -> dict[str, Any]:
    """The keys of one kind of layer: a flat dict as it is, of a nested one the entry `layer_type`.
    Keys without a value count as missing."""
    layers = [key for key, value in scaling.items() if isinstance(value, Mapping)]
    chosen: Mapping[str, Any] = {}
    if layers:
        if layer_type is None or layer_type not in list(scaling):
            raise value_error(
                f"layer_type must be one of {sorted(map(str, layers))} for a nested scaling dict, "
                f"got {layer_type!r}"
            )
        if not isinstance(scaling[layer_type], Mapping):
            raise value_error(
                f"layer_type must be a layer with positions, got {layer_type!r}, whose entry is "
                f"{scaling[layer_type]!r}"
            )
        chosen = scaling[layer_type]
    shared = {key: value for key, value in scaling.items() if not isinstance(value, Mapping)}
    return {key: value for key, value in (shared | dict(chosen)).items() if value is not None}


def rule_of(keys: Mapping[str, Any]) -> Rule | None:
    """The rule that a flat dict describes; None for the default."""
    names = [keys[key] for key in ("rope_type", "type") if key in keys]
    for name in names:
        if not isinstance(name, str):
            raise error(TypeError, OP, f"rope_type must be a str, got {type(name).__name__}")
    names = [ALIASES.get(name, name) for name in names]
    if len(set(names)) > 1:
        raise value_error(f"scaling must not have rope_type and type that differ, got {names}")
    if not names and not COMMON_KEYS.issuperset(keys):
        only = sorted(set(keys) - COMMON_KEYS)
        raise value_error(f"scaling must have the key 'rope_type' (or 'type'), got only {only}")
    name = names[0] if names else "default"
    if name not in RULES:
        known = sorted([*RULES, *ALIASES])
        raise value_error(f"scaling must have a rope_type of {known}, got {name!r}")
    if name == "dynamic" and keys.get("alpha"):
        return ntk_alpha(keys)
    rule = RULES[name]
    parameters = {} if rule is None else {field.name: field for field in fields(rule)}
    for key in keys:
        if key not in parameters and key not in COMMON_KEYS:
            hint = " (did you mean 'ntk_mixed'?)" if key == "mixed_b" else ""
            raise value_error(
                f"scaling must not have the key {key!r} with rope_type {name!r}{hint}"
            )
    if rule is None:
        return None

    given = {key: keys[key] for key in parameters if key in keys}
    longest = keys.get("max_position_embeddings")
    original = "original_max_position_embeddings"
    if original in parameters and longest is not None:
        if name == "yarn" and original not in given and "factor" not in given:
            raise value_error("scaling must have the key 'factor' with rope_type 'yarn'")
        given.setdefault(original, longest)
        if name in ("yarn", "longrope"):
            check_factor(given, number(OP, "max_position_embeddings", longest))
    for key, field in parameters.items():
        if key not in given and field.default is MISSING:
            raise value_error(f"scaling must have the key {key!r} with rope_type {name!r}")
    return rule(**given)


def ntk_alpha(keys: Mapping[str, Any]) -> Rule:
    """Hunyuan's "dynamic", which does not depend on the length: base * alpha^(d/(d-2)). The keys
    beside alpha stand in its published configs and are not read."""
    for key in keys:
        if key not in COMMON_KEYS | {"alpha", *UNREAD_BESIDE_ALPHA}:
            raise value_error(f"scaling must not have the key {key!r} with alpha")
    if keys.get("factor", 1.0) != 1:
        raise value_error(f"factor must be 1 or missing with alpha, got {keys['factor']}")
    return NTK(factor=keys["alpha"])


def check_factor(given: dict[str, Any], longest: float) -> None:
    """`factor` is the ratio of the lengths if it is not given; if it is, it wins."""
    original = number(
        OP, "original_max_position_embeddings", given["original_max_position_embeddings"]
    )
    if original <= 0:
        raise value_error(f"original_max_position_embeddings must be positive, got {original}")
    factor = given.setdefault("factor", longest / original)
    if longest != original and factor != longest / original:
        warnings.warn(
            f"posenc_ext.{OP}: factor is {factor}, but max_position_embeddings / "
            f"original_max_position_embeddings is {longest / original}; the factor is used",
            stacklevel=5,
        )


def base_of(keys: Mapping[str, Any], base: float) -> float:
    if "rope_theta" not in keys:
        return base
    theta = number(OP, "rope_theta", keys["rope_theta"])
    if theta <= 0:
        raise value_error(f"rope_theta must be positive, got {theta}")
    if base not in (DEFAULT_BASE, theta):
        raise value_error(f"rope_theta must be base = {base} if both are given, got {theta}")
    return theta


def rotary_dim_of(keys: Mapping[str, Any], dim: int) -> int:
    part = number(OP, "partial_rotary_factor", keys.get("partial_rotary_factor", 1.0))
    rotary = int(dim * part)
    if not 0 < part <= 1 or rotary % 2 or rotary == 0:
        raise value_error(
            f"partial_rotary_factor must take a positive even part of dim = {dim}, got {part}"
        )
    return rotary
