"""The keys of a config, and what its class means by those that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from .arguments import error, integer
from .config_defaults import DEFAULTS, TEXT_TYPES, WITHOUT_POSITIONS

OP = "RotaryPositionalEmbedding.from_config"
# Read these too, where the first name is missing.
OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads", "decoder_num_attention_heads"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "model_max_length"),
    "head_dim": ("attention_head_dim", "kv_channels"),
}


NUMBERS = {"rope_theta", "rotary_emb_base", "rotary_dim", "rotary_pct", "partial_rotary_factor",
           "qk_rope_head_dim", "qk_nope_head_dim", "original_max_position_embeddings",
           *OTHER_NAMES, *(name for names in OTHER_NAMES.values() for name in names)}  # fmt: skip


class Keys(NamedTuple):
    """A key whose value is None counts as missing. Without a model_type (None) a config is read as
    one of LLaMA."""

    model_type: str | None
    given: Mapping[str, Any]
    defaults: Mapping[str, Any]

    @property
    def listed(self) -> bool:
        return bool(self.defaults)

    @property
    def without_positions(self) -> bool:
        return self.model_type in WITHOUT_POSITIONS

    def own(self, key: str) -> Any:
        """The value that is given, None if it is missing."""
        names = (key, *OTHER_NAMES.get(key, ()))
        return next((self.given[name] for name in names if name in self.given), None)

    def get(self, key: str) -> Any:
        value = self.own(key)
        return self.defaults.get(key) if value is None else value

    def head_dim(self, layer_type: str | None) -> int:
        """Of the layers of this type."""
        head = self._layer_head_dim(layer_type)
        if head is None:
            head = self.own("head_dim")
        if head is None:
            head = self.defaults.get("head_dim")
        if head is not None and not self.defaults.get("fixed_head"):
            return integer(OP, "head_dim", head)
        size, heads = self.get("hidden_size"), self.get("num_attention_heads")
        if size is None or heads is None:
            missing = "hidden_size" if size is None else "num_attention_heads"
            raise error(ValueError, OP, f"{missing} must be given if head_dim is not, got neither")
        size, heads = integer(OP, "hidden_size", size), integer(OP, "num_attention_heads", heads)
        if heads <= 0 or size % heads:
            raise error(ValueError, OP, f"num_attention_heads must divide {size}, got {heads}")
        if head is not None and head != size // heads:
            raise refusal(self, "head_dim", f"must be {size} / {heads}, got {head}")
        return self.defaults.get("head_times", 1) * (size // heads)

    def _layer_head_dim(self, layer_type: str | None) -> Any:
        if layer_type == "sliding_attention":
            return self.given.get("swa_head_dim")
        by_layer = self.given.get("per_layer_config")
        if by_layer is not None:
            indices = [
                i for i, kind in enumerate(self.own("layer_types") or ()) if kind == layer_type
            ]
            found = {int(i): keys.get("head_dim") for i, keys in by_layer.items()}
            heads = {found.get(i) for i in indices}
            if len(heads) > 1:
                text = f"must have one head_dim for {layer_type!r}, got {sorted(heads, key=str)}"
                raise refusal(self, "per_layer_config", text)
            return heads.pop() if heads else None
        usual = self.defaults.get("head_dims", {}).get(layer_type)
        return usual if usual is None else self.given.get("global_head_dim", usual)


def read_keys(config: Any) -> Keys:
    """Those of the text model inside, if there is one."""
    keys = _plain(config)
    kind = keys.get("model_type")
    if "text_config" in keys:
        keys = _plain(keys["text_config"])
        kind = keys.get("model_type", kind)
    if kind is not None and not isinstance(kind, str):
        raise error(TypeError, OP, f"model_type must be a str, got {type(kind).__name__}")
    _check_kinds(keys)
    kind = TEXT_TYPES.get(kind or "", kind)
    return Keys(kind, keys, DEFAULTS.get(kind or "", {}))


def _plain(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        keys = config
    elif isinstance(config, (type, nn.Module)) or not hasattr(config, "__dict__"):
        got = config.__name__ if isinstance(config, type) else type(config).__name__
        raise error(TypeError, OP, f"config must be a config object or a dict, got {got}")
    elif callable(getattr(config, "to_dict", None)):
        keys = config.to_dict()
    else:
        keys = vars(config)
    return {key: value for key, value in keys.items() if value is not None}


def _check_kinds(keys: Mapping[Any, Any]) -> None:
    """What is read as a number or by layer is of that kind."""
    for key, value in keys.items():
        if not isinstance(key, str):
            raise error(TypeError, OP, f"config must have names as keys, got {key!r}")
        got = f"got {value!r}"
        if key in NUMBERS and isinstance(value, (list, tuple, Mapping)):
            raise error(TypeError, OP, f"{key} must be a number, {got}")
        if key == "layer_types" and not (
            isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
        ):
            raise error(TypeError, OP, f"{key} must be a list of names, {got}")
        if key == "per_layer_config" and not (
            isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values())
        ):
            raise error(TypeError, OP, f"{key} must be a dict of dicts, {got}")


def refusal(keys: Keys, key: str, text: str) -> Exception:
    """`text` says what the key must be, and what was given."""
    kind = "" if keys.model_type is None else f" for model_type {keys.model_type!r}"
    return error(ValueError, OP, f"{key}{kind} {text}")
