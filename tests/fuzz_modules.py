"""Every module, with arguments for it and for its methods that are right: part of fuzz_calls."""

from typing import Any

import torch
from rope_cases import uniform

Q, K = uniform((2, 5, 3, 16)), uniform((2, 5, 1, 16), seed=1)
IDS = torch.tensor([[3, 4, 5, 1, 1], [3, 4, 1, 1, 1]])
LENGTHS = {"q_len": 5, "k_len": 7}
RULE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
X, PAST = uniform((2, 5, 16)), (uniform((2, 4, 3, 4)), uniform((2, 4, 3, 4)))
SIZES = {"d_model": 16, "num_heads": 4}
FLAGS = {"causal": True, "bias": True, "dropout": 0.0}
MASKS = {"key_padding_mask": None, "attn_mask": None, "need_weights": False}
ROTARY = {
    "dim": 16, "base": 10000.0, "scaling": RULE, "interleaved": False, "layout": "bshd",
    "precision": "exact", "layer_type": None, "sections": None,
}  # fmt: skip
CONFIG = {"model_type": "llama", "head_dim": 16, "rope_theta": 500000.0}
# Arguments of the class, and of its methods.
MODULES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "ALiBiAttention": (
        {
            **SIZES, "num_kv_heads": None, **FLAGS, "max_bias": 8.0, "learn_slopes": False,
            "query_block": None,
        },
        {"forward": {"x": X, **MASKS, "past": PAST, "use_cache": False}},
    ),
    "BertRelativeAttention": (
        {**SIZES, "max_positions": 9, "form": "relative_key", **FLAGS, "out_proj": True},
        {"forward": {"x": X, **MASKS}},
    ),
    "DebertaDisentangledAttention": (
        {
            **SIZES, "max_relative_positions": 16, "position_buckets": 8, "terms": ("c2p", "p2c"),
            "share_att_key": False, "shared_table": False, "norm_rel_ebd": False, "causal": False,
            "dropout": 0.0, "position_dropout": 0.0, "out_proj": True,
        },
        {"forward": {"x": X, "rel_embeddings": None, **MASKS}},
    ),
    "LearnedPositionalEncoding": (
        {"d_model": 16, "max_len": 20, "dropout": 0.0, "padding_idx": None, "std": 0.02},
        {"forward": {"x": X, "offset": 0, "positions": None, "tokens": None}},
    ),
    "RelativePositionalEmbedding": (
        {"dim": 16, "left": 3, "right": None},
        {"forward": {"q": X, "k_len": 7}, "values": {"weights": uniform((2, 5, 7))}},
    ),
    "RelativeSelfAttention": (
        {**SIZES, "left": 3, "right": None, "values": True, **FLAGS},
        {"forward": {"x": X, **MASKS, "past": PAST, "use_cache": False}},
    ),
    "RobertaEmbeddings": (
        {
            "vocab_size": 7, "d_model": 16, "max_len": 20, "padding_idx": 1, "token_types": 2,
            "dropout": 0.0, "eps": 1e-5,
        },
        {
            "forward": {
                "input_ids": IDS, "inputs_embeds": None, "token_type_ids": None, "positions": None,
                "past": 0,
            },
        },
    ),
    "RotaryAttention": (
        {
            **SIZES, "num_kv_heads": 4, "rotary": True, "rotate_values": False, "qk_norm": "rms",
            **FLAGS,
        },
        {"forward": {"x": X, **MASKS, "past": PAST, "use_cache": False, "offset": None,
                     "positions": None, "cu_seqlens": None}},
    ),
    "RotaryPositionalEmbedding": (
        ROTARY,
        {
            "forward": {
                "q": Q, "k": K, "positions": None, "offset": 0, "cu_seqlens": None,
                "seq_len": None, "layout": None, "inverse": False, "inplace": False,
            },
            "from_config": {
                "config": CONFIG, "layer_type": None, "interleaved": None, "layout": "bshd",
                "precision": "exact",
            },
            "frequencies": {"seq_len": 64},
            "reserve": {"seq_len": 64, "dtype": torch.float32},
            "table": {"positions": 5, "seq_len": None, "dtype": torch.float32},
        },
    ),
    "SinusoidalPositionalEncoding": (
        {
            "d_model": 16, "max_len": 20, "dropout": 0.0, "scale": 1.0, "base": 10000.0,
            "convention": "interleaved", "batch_first": True, "padding_idx": None,
        },
        {"forward": {"x": X, "offset": 0, "positions": None, "tokens": None}},
    ),
    "T5RelativePositionBias": (
        {"num_heads": 4, "num_buckets": 8, "max_distance": 16, "bidirectional": True},
        {"forward": {**LENGTHS, "offset": None}},
    ),
    "TransformerXLAttention": (
        {
            **SIZES, **FLAGS, "clamp_len": None, "convention": "concatenated", "pos_bias_u": None,
            "pos_bias_v": None,
        },
        {"forward": {"x": X, "memory": None, **MASKS}},
    ),
}  # fmt: skip
