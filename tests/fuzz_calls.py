"""Every public callable, with arguments that are right: what the random calls start from."""

import functools
import inspect
import types

import torch
from fuzz_modules import IDS, LENGTHS, MODULES, RULE, K, Q
from rope_cases import rotate_half, table, uniform

import posenc_ext
from posenc_ext import scaling
from posenc_ext.compat import flash_attn, llama, transformers, vllm

COMPAT = (flash_attn, llama, transformers, vllm)
COS, SIN = table(8)
SCORES = uniform((2, 4, 5, 7))
ROPE = {
    "cos": COS, "sin": SIN, "layout": "bshd", "positions": None, "offset": 0, "cu_seqlens": None,
    "interleaved": False, "interleaved_out": True, "inverse": False, "inplace": False,
}  # fmt: skip
SLOPES = posenc_ext.alibi_slopes(4)
INV_FREQ = posenc_ext.rope_frequencies(16).inv_freq
PLACES = {**LENGTHS, "offset": None}
INDEX = torch.arange(11) % 7
DISTANCES = torch.arange(-20, 20)

RULE_OF_NORM = {
    "eps": 1e-6, "norm": "layer", "weight_offset": 1.0, "norm_dims": "head", "order": "norm_first",
    "rounding": "once",
}  # fmt: skip
NORM = {**{name: ROPE[name] for name in ROPE if name != "interleaved_out"}, **RULE_OF_NORM}
WEIGHT = uniform((16,), seed=3)

FUNCTIONS = {
    "rope": {"x": Q, **ROPE, "out": None},
    "apply_rope": {"q": Q, "k": K, **ROPE},
    "norm_rope": {"x": Q, "weight": WEIGHT, "bias": WEIGHT, **NORM, "out": None},
    "qk_norm_rope": {
        "q": Q, "k": K, "q_weight": WEIGHT, "k_weight": None, "q_bias": WEIGHT, "k_bias": None,
        **NORM,
    },
    "apply_rope_cache": {
        "q": Q, "k": K, "v": K, "k_cache": uniform((2, 64, *K.shape[2:])),
        "v_cache": uniform((2, 64, *K.shape[2:])), **ROPE, "slots": None, "cache_layout": "blhd",
        "window": 7, "k_scale": None, "v_scale": None, "q_weight": WEIGHT, "k_weight": WEIGHT,
        "q_bias": WEIGHT, "k_bias": None, **RULE_OF_NORM, "interleaved_out": False,
    },
    "KVCache": {
        "batch": 2, "length": 8, "heads": 2, "dim": 4, "value_dim": 3, "dtype": torch.float32,
    },
    "rope_frequencies": {
        "dim": 16, "base": 10000.0, "scaling": RULE, "seq_len": 64, "layer_type": None,
        "precision": "exact",
    },
    "rope_table": {
        "positions": torch.arange(5), "inv_freq": INV_FREQ, "attention_factor": 1.0,
        "sections": None, "dtype": torch.float32, "precision": "exact",
    },
    "mrope_axes": {"sections": [2, 3, 3], "order": "chunked"},
    "mrope_position_ids": {
        "segments": [2, (1, 4, 4)], "spatial_merge_size": 2, "time_interval": 1.0,
    },
    "axial_rope_table": {
        "height": 2, "width": 3, "dim": 8, "variant": "pixtral", "base": None, "merge_size": 1,
        "trained_size": 16, "normalize": "separate", "before": 0, "after": 0,
        "dtype": torch.float32, "precision": "exact",
    },
    "axial_frequencies": {"dim": 8, "variant": "pixtral", "base": None, "precision": "exact"},
    "axial_positions": {
        "height": 2, "width": 4, "variant": "qwen2_vl", "merge_size": 2, "trained_size": 16,
        "normalize": "separate",
    },
    "xpos_table": {
        "positions": torch.arange(5), "inv_freq": INV_FREQ, "zeta": None, "scale_base": 512.0,
        "centre": 2, "dtype": torch.float32,
    },
    "xpos_zeta": {"dim": 16, "gamma": 0.4},
    "interleaved_to_half": {"w": Q, "rotary_dim": 8, "dim": -1, "head_dim": None},
    "half_to_interleaved": {"w": Q, "rotary_dim": 8, "dim": -1, "head_dim": None},
    "context_parallel_positions": {"seq_len": 16, "rank": 1, "world_size": 2, "mode": "zigzag"},
    "sinusoidal_table": {
        "positions": 5, "dim": 8, "base": 10000.0, "convention": "interleaved",
        "padding_idx": None, "dtype": torch.float32,
    },
    "sinusoidal_table_2d": {
        "height": 2, "width": 3, "dim": 8, "first": "width", "base": 10000.0, "extra_tokens": 0,
        "dtype": torch.float32,
    },
    "timestep_embedding": {
        "timesteps": torch.arange(3.0), "dim": 8, "flip_sin_to_cos": False,
        "downscale_freq_shift": 1.0, "scale": 1.0, "max_period": 10000.0, "dtype": torch.float32,
    },
    "add_sinusoidal": {
        "x": uniform((2, 5, 8)), "offset": 0, "positions": None, "scale": 1.0, "base": 10000.0,
        "convention": "interleaved",
    },
    "alibi_slopes": {"num_heads": 4, "max_bias": 8.0, "dtype": torch.float32},
    "alibi_bias": {
        "slopes": SLOPES, **LENGTHS, "causal": False, "dtype": torch.float32,
        "key_positions": None,
    },
    "alibi_row_bias": {"slopes": SLOPES, "k_len": 5, "dtype": torch.float32},
    "alibi_score_mod": {"slopes": SLOPES, **LENGTHS, "causal": True},
    "add_alibi": {"scores": SCORES, "slopes": SLOPES, "causal": False, "inplace": False},
    "alibi_softmax": {
        "scores": SCORES, "slopes": SLOPES, "scale": 1.0, "causal": True, "key_padding_mask": None,
    },
    "attention_mask_positions": {"attention_mask": (IDS != 1).long(), "first": 0, "fill": 1,
                                 "past": 0},
    "padding_aware_positions": {"input_ids": IDS, "padding_idx": 1, "past": 0},
    "sequential_positions": {"length": 5, "first": 2, "past": 0},
    "resize_position_grid": {
        "weight": uniform((13, 8)), "size": (2, 5), "grid": (3, 4), "prefix": 1,
        "antialias": False,
    },
    "rel_shift": {"x": uniform((2, 3, 5, 9)), "k_len": 5, "start": 4},
    "relative_gather": {"x": uniform((2, 5, 7)), "index": INDEX, "k_len": 7},
    "relative_scatter": {"y": uniform((2, 5, 7)), "index": INDEX, "size": 7},
    "bert_relative_index": {**PLACES, "max_position_embeddings": 9},
    "clipped_relative_index": {**PLACES, "left": 3, "right": None},
    "deberta_relative_index": {**PLACES, "max_relative_positions": 16, "position_buckets": 8},
    "t5_relative_index": {**PLACES, "bidirectional": True, "num_buckets": 8, "max_distance": 16},
    "deberta_relative_position_bucket": {
        "relative_position": DISTANCES, "bucket_size": 8, "max_position": 16,
    },
    "t5_relative_position_bucket": {
        "relative_position": DISTANCES, "bidirectional": True, "num_buckets": 8,
        "max_distance": 16,
    },
}  # fmt: skip

LONG, SHORT = (2.0,) * 8, (1.0,) * 8
FACTOR = {"factor": 4.0, "original_max_position_embeddings": 32}
RULES = {
    "Linear": {"factor": 4.0},
    "NTK": {"factor": 4.0},
    "DynamicNTK": FACTOR,
    "NTKMixed": {"factor": 4.0, "mixed_b": 0.6},
    "NTKByParts": {**FACTOR, "alpha": 1.0, "beta": 32.0},
    "PartNTK": {**FACTOR, "beta_0": 1.25, "beta_1": 0.75, "gamma_0": 16.0, "gamma_1": 2.0},
    "YaRN": {
        **FACTOR, "attention_factor": None, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": None,
        "mscale_all_dim": None, "truncate": True,
    },
    "LongRoPE": {
        "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 32,
        "factor": 4.0, "attention_factor": None, "short_mscale": None, "long_mscale": None,
        "pin": None,
    },
    "Llama3": {**FACTOR, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "Proportional": {"partial_rotary_factor": 0.5, "factor": 1.0},
}  # fmt: skip


def theirs(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + rotate_half(x, False) * sin for x in (q, k))


MODELING = types.ModuleType("modeling_fuzzed")
MODELING.apply_rotary_pos_emb = theirs
HEADS_FIRST = {"q": Q.transpose(1, 2), "k": K.transpose(1, 2)}
TABLES = {"cos": COS, "sin": SIN, "interleaved": False}
BORROWED = {
    "flash_attn.apply_rotary_emb": {
        "x": Q, **TABLES, "inplace": False, "seqlen_offsets": 0, "cu_seqlens": None,
        "max_seqlen": None,
    },
    "flash_attn.apply_rotary_emb_qkv_": {
        "qkv": uniform((2, 5, 3, 4, 16)), **TABLES, "cos_k": None, "sin_k": None,
        "seqlen_offsets": 0, "num_heads_q": None,
    },
    "flash_attn.apply_rotary_emb_kv_": {
        "kv": uniform((2, 5, 2, 4, 16)), **TABLES, "seqlen_offsets": 0,
    },
    "llama.precompute_freqs_cis": {
        "dim": 16, "end": 9, "theta": 10000.0, "use_scaled": False, "precision": "float32",
    },
    "llama.apply_rotary_emb": {
        "xq": Q, "xk": Q + 1, "freqs_cis": llama.precompute_freqs_cis(16, 5),
    },
    "transformers.apply_rotary_pos_emb": {
        **HEADS_FIRST, "cos": uniform((1, 5, 8)).repeat(1, 1, 2),
        "sin": uniform((1, 5, 8)).repeat(1, 1, 2), "unsqueeze_dim": 1,
        "position_ids": None, "rounding": "once",
    },
    "transformers.patch": {"model_or_module": MODELING, "rounding": "once", "fuse_norm": False},
    "transformers.unpatch": {"model_or_module": MODELING},
    "vllm.rotary_embedding": {
        "positions": torch.arange(5), "query": uniform((5, 64)), "key": uniform((5, 32)),
        "head_size": 16, "cos_sin_cache": uniform((9, 16)), "is_neox": True, "rope_dim_offset": 0,
        "inverse": False,
    },
}  # fmt: skip

# What torch itself reads, in words of its own; the dtype of modules is that of their parameters.
LEFT_TO_TORCH = {"device"}
NOT_TRIED = {
    "RopeFrequencies": "a tuple of what it is given",
    "AxialTable": "a tuple of what it is given",
    "XPosTable": "a tuple of what it is given",
    "compat.transformers.Swap": "a tuple of what it is given",
}


def method(name, of):
    """A method of a new module for every call, so that calls do not meet."""

    def call(**arguments):
        made = getattr(posenc_ext, of)(**MODULES[of][0])
        return getattr(made, name)(**arguments)

    return functools.wraps(getattr(getattr(posenc_ext, of), name))(call)


# name: (function, its arguments)
CALLS = {name: (getattr(posenc_ext, name), right) for name, right in FUNCTIONS.items()}
for name, (arguments, methods) in MODULES.items():
    CALLS[name] = (getattr(posenc_ext, name), arguments)
    CALLS |= {f"{name}.{each}": (method(each, name), right) for each, right in methods.items()}
CALLS |= {f"scaling.{name}": (getattr(scaling, name), right) for name, right in RULES.items()}
for name, right in BORROWED.items():
    module, function = name.split(".")
    CALLS[f"compat.{name}"] = (getattr(globals()[module], function), right)


def public():
    """Every public callable with parameters, by name."""
    found = {}
    for name in posenc_ext.__all__:
        value = getattr(posenc_ext, name)
        if callable(value):
            found[name] = value
        if inspect.isclass(value) and issubclass(value, torch.nn.Module):
            own = [each for each in vars(value) if not each.startswith("_")]
            methods = {each: getattr(value, each) for each in own}
            found |= {f"{name}.{each}": m for each, m in methods.items() if callable(m)}
    for module in (scaling, *COMPAT):
        short = module.__name__.removeprefix("posenc_ext.")
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if own and callable(value) and not name.startswith("_"):
                found[f"{short}.{name}"] = value
    return {name: f for name, f in found.items() if set(inspect.signature(f).parameters) - {"self"}}
