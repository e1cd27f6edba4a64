"""What is not in a config: model types of Hugging Face transformers that no rotary module of this
package fits, and why; keys that belong to some families only. From its source in version 5.24.

The model types that are understood are those of :mod:`posenc_ext.config_defaults`.
"""

NONE = "have rotary positions"
AXES = "rotate by one axis: an image tower turns by two (see axial_rope_table)"
# "config must <reason>, got model_type ..."
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ["jamba", "nemotron_h", "kimi_linear", "glm5_next_text", "inkling2_text", "mpt"], NONE
    ),
    **dict.fromkeys(
        [
            "cohere_compass_vision", "dinov3_vit", "dots3_note_vision_encoder", "edgetam_video",
            "efficientloftr", "eomt_dinov3", "ernie4_5_vl_moe_vision", "exaone4_5_vision",
            "gemma4_vision", "glm4v_moe_vision", "glm4v_vision", "glm5_next_vision",
            "glm_ocr_vision", "inkling2_vision", "kimi_k25_vision", "lfm3_vl_vision",
            "llama4_vision_model", "minimax_m3_vl_vision", "mlcd_vision_model",
            "muse_glimmer_vision", "muse_spark_vision", "paddleocr_vl_vision", "pixtral",
            "qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision", "qwen2_vl_vision",
            "qwen3_5_moe_vision", "qwen3_5_vision", "qwen3_omni_moe_vision_encoder",
            "qwen3_vl_moe_vision", "qwen3_vl_vision", "qwen4_exp_vision", "sam2_video",
            "sam3_tracker_video", "sam3_vit_model", "sapiens2", "step3p5_vision",
            "video_llama_3_vision", "vjepa2",
        ],
        AXES,
    ),
    **dict.fromkeys(
        ["seamless_m4t", "wav2vec2-bert", "wav2vec2-conformer"],
        "rotate queries and keys: this model turns hidden states ahead of the projections",
    ),
    "blt": "be of one of its parts (encoder_config, decoder_config, global_config, patcher_config)",
    "clvp_encoder": "rotate queries and keys alone: this model turns values too, by a base and "
    "width of its own",
    "cohere_compass_text": "have one set of sections: this model has them by layer type",
    "deepseek_v4": "rotate the first channels of a head: this model turns the last",
    "dots3_note_text": "have one head size: this model has head sizes by layer index",
    "hunyuan_vl_text": "turn both channels of a pair alike: this model takes their positions from "
    "different axes",
    "musicflamingo": "rotate by integer positions: this model turns by seconds",
    "nanochat": "rotate forwards: this model turns by the negative angle (inverse=True)",
    "neomme": "rotate by one axis: this model takes rows and columns by turns",
}  # fmt: skip

# These have rotary positions only if a key has this value; the value if it is missing.
SWITCHES: dict[str, tuple[str, object, object]] = {
    "esm": ("position_embedding_type", "rotary", "absolute"),
    "falcon": ("alibi", False, False),
    "granitemoehybrid": ("position_embedding_type", "rope", None),
    "zamba2": ("use_mem_rope", True, False),
}
# Layers of these types attend without positions, or do not attend.
NO_POSITIONS = ("conv", "linear_attention", "mamba", "mlp", "moe", "recurrent")
# Full attention has no positions here, sliding windows have; or has none beside sliding windows.
NO_POSITIONS_IN_FULL = ("afmoe", "cohere2", "cohere2_moe", "flint", "lara_mini")
NO_POSITIONS_BESIDE_WINDOWS = ("exaone4", "exaone_moe", "kolibri1")

# Keys that only these families read, beside those that all do.
NEOX = ("gpt_neox", "gpt_neox_japanese")
GEMMA3 = ("gemma3_text", "gemma3n_text", "t5gemma2_text", "t5gemma2_decoder")
MODERNBERT = ("modernbert", "modernbert-decoder")
GEMMA4 = ("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text")
FAMILY_KEYS: dict[str, tuple[str, ...]] = {
    "rotary_pct": NEOX,
    "rotary_emb_base": NEOX,
    "rotary_dim": ("gptj", "codegen", "minimax_m2"),
    "rope_local_base_freq": GEMMA3,
    "global_rope_theta": MODERNBERT,
    "local_rope_theta": MODERNBERT,
    "swa_rope_theta": ("mimo_v2_flash",),
    "swa_head_dim": ("mimo_v2_flash",),
    "global_head_dim": GEMMA4,
    "attention_head_dim": ("zamba2", "hunyuan_v1_dense", "hunyuan_v1_moe"),
    "layer_rope_theta": (
        "granite_swa", "granitemoe_swa", "muse_glimmer_text", "muse_spark_text",
    ),
    "rope_scaling_layers": ("molmo2_text",),
}  # fmt: skip
# The base of each kind of layer as keys of its own, and the kinds that rope_scaling scales.
_GEMMA3_BASES = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
_MODERNBERT_BASES = {
    "full_attention": "global_rope_theta",
    "sliding_attention": "local_rope_theta",
}
LAYER_BASES: dict[str, dict[str, str]] = {
    **dict.fromkeys(GEMMA3, _GEMMA3_BASES),
    **dict.fromkeys(MODERNBERT, _MODERNBERT_BASES),
    "olmo3": {"full_attention": "rope_theta", "sliding_attention": "rope_theta"},
    "mimo_v2_flash": {"full_attention": "rope_theta", "sliding_attention": "swa_rope_theta"},
}
# transformers takes no other base from such keys than the class has.
FIXED_BASES = ("mimo_v2_flash", "olmo3")
SCALED_LAYERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(GEMMA3, ("full_attention",)),
    **dict.fromkeys(MODERNBERT, ("full_attention", "sliding_attention")),
    "olmo3": ("full_attention",),
}
# Keys with rope, rotary, theta or head_dim in their names that say nothing about the frequencies.
_OTHER_PARTS = """
    v_head_dim swa_v_head_dim qk_head_dim qk_nope_head_dim index_head_dim indexer_head_dim
    linear_head_dim linear_key_head_dim linear_value_head_dim mamba_head_dim cross_head_dim
    mamba_headdim no_rope_layers no_rope_layer_interval pad_head_dim_to_multiple_of
"""
OTHER_PARTS = frozenset(_OTHER_PARTS.split())
