"""A tiny model with random weights for (almost) every model type of transformers."""

import inspect
import pathlib

import torch

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "ffn_hidden_size": 96, "num_hidden_layers": 2,
    "num_layers": 2, "n_layers": 2, "n_layer": 2, "depth": 2, "depths": None,
    "encoder_layers": 2, "decoder_layers": 2, "num_attention_heads": 4, "num_heads": 4,
    "n_heads": 4, "n_head": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "kv_channels": 16, "vocab_size": 99,
    "max_position_embeddings": 64, "n_positions": 64, "n_embd": 64, "d_model": 64, "embed_dim": 64,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "d_ff": 96, "d_kv": 16, "n_inner": 96,
    "rotary_dim": 8, "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "qk_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1, "sliding_window": 8,
    "image_size": 32, "patch_size": 8, "num_channels": 3, "mamba_n_heads": 4, "mamba_d_head": 32,
    "mamba_d_state": 16, "mamba_chunk_size": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "index_n_heads": 2,
    "index_head_dim": 16, "index_topk": 4, "o_lora_rank": 16, "o_groups": 2,
}  # fmt: skip
# Models that these sizes do not fit.
LATENT = {"num_key_value_heads": 4}  # every head has a key of its own
MORE = dict.fromkeys(
    ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa",
     "longcat_flash", "minicpm3", "mistral4", "mistral_large4_text", "youtu", "bailing_hybrid"),
    LATENT,
)  # fmt: skip
MOST = 30e6  # parameters


def folder():
    import transformers

    return pathlib.Path(transformers.__file__).parent / "models"


def rotates():
    """The model types whose code speaks of rotary positions or ALiBi."""
    from transformers.models.auto.configuration_auto import (
        CONFIG_MAPPING_NAMES,
        model_type_to_module_name,
    )

    found = []
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        code = folder() / model_type_to_module_name(model_type)
        texts = [path.read_text() for path in code.glob("modeling_*.py")]
        if any("rotary" in t or "_rope" in t or "alibi" in t for t in texts):
            found.append(model_type)
    return found


def tiny_config(cls, model_type=""):
    """With the sizes above where the class has them, and in the configs inside it."""
    names = {n for c in cls.__mro__ for n in getattr(c, "__annotations__", {})}
    names |= set(inspect.signature(cls.__init__).parameters)
    names |= set(getattr(cls, "attribute_map", {}))
    sizes = {n: v for n, v in SIZES.items() if n in names and v is not None}
    if "eos_token_id" in names:
        sizes["eos_token_id"] = None
    sizes |= MORE.get(model_type, {})
    kinds = layer_types(cls)
    if kinds and "layer_types" in names and "layer_types" not in sizes:
        sizes |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    sections = sections_of(cls)
    if sections and "rope_parameters" in names:
        sizes["rope_parameters"] = sections
    for name, inner in getattr(cls, "sub_configs", {}).items():
        if name in names and hasattr(inner, "sub_configs"):
            sizes[name] = tiny_config(inner, inner.model_type).to_dict()
    for drop in range(3):
        try:
            return cls(**sizes)
        except Exception:
            if drop == 2:
                raise
            for name in (("eos_token_id", "bos_token_id"), ("num_key_value_heads", "head_dim"))[
                drop
            ]:
                sizes.pop(name, None)


def layer_types(cls):
    """One layer of each kind that the class has by default."""
    try:
        kinds = list(dict.fromkeys(getattr(cls(), "layer_types", None) or []))
    except Exception:  # not without arguments
        return []
    return kinds if len(kinds) > 1 else kinds * 2


def sections_of(cls):
    """rope_parameters with sections for the 8 pairs of a head, if the code knows sections."""
    path = pathlib.Path(inspect.getfile(cls))
    code = path.with_name(path.name.replace("configuration", "modeling"))
    if not code.exists() or "mrope_section" not in code.read_text():
        return None
    try:
        rope = dict(getattr(cls(), "rope_parameters", None) or {})
    except Exception:  # not without arguments
        return None
    return rope | {"mrope_section": [2, 3, 3]}


def build(model_type):
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = tiny_config(CONFIG_MAPPING[model_type], model_type)
    error = None
    for auto in (AutoModelForCausalLM, AutoModel):
        if type(config) not in auto._model_mapping:
            continue
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in auto.from_config(config).parameters())
            if size > MOST:
                raise MemoryError(f"{size} parameters")
            torch.manual_seed(0)
            return auto.from_config(config).float().eval()
        except Exception as exception:
            error = error or exception
    raise error or KeyError(model_type)


def inputs_of(model, batch=2, length=9):
    generator = torch.Generator().manual_seed(1)
    names = set(inspect.signature(model.forward).parameters)
    if model.main_input_name == "pixel_values" and "input_ids" not in names:
        config = model.config
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else size[0]
        shape = (batch, getattr(config, "num_channels", 3), size, size)
        return {"pixel_values": torch.rand(shape, generator=generator)}
    if "input_ids" in names:
        ids = torch.randint(2, 60, (batch, length), generator=generator)
        mask = torch.ones(batch, length, dtype=torch.int64)
        ids[0, :3], mask[0, :3] = 0, 0  # padding on the left
        given = {"input_ids": ids}
        if "attention_mask" in names:
            given["attention_mask"] = mask
        if "decoder_input_ids" in names:
            given["decoder_input_ids"] = ids.flip(1)
        return given
    shape = (batch, 64, getattr(model.config, "num_mel_bins", 80))
    return {model.main_input_name: torch.rand(shape, generator=generator)}
