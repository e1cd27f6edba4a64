"""What config classes of transformers mean by a key that is missing.

Written by ``python tests/make_config_defaults.py`` from version 5.24.0; do not edit.

    pairs          which channels form a pair
    rope_rule      the rule if none is given, where that is more than "default"
    rope_theta     the base if none is given; by layer type where they differ
    partial_rotary_factor   the rotated part if none is given
    whole          True: without scaling the whole head is rotated, whatever part is given
    unscaled       True: no rule but the default
    head_times     the head is so many times hidden_size / num_attention_heads
    head_dims      by layer type, where they differ from head_dim
    fixed_head     True: the head is hidden_size / num_attention_heads, whatever head_dim is given
    mrope_section  the sections if none are given; mrope_order how they are laid out
    other keys     as in the config
"""
# ruff: noqa: E501
# fmt: off

from typing import Any

# By model type: of 259 config classes that speak of rotation, those that have it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "afmoe": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 16384, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "apertus": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 65536, 'rope_theta': 12000000.0, 'rope_rule': {'factor': 8.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0, 'original_max_position_embeddings': 8192, 'rope_theta': 12000000.0, 'rope_type': 'llama3'}, 'whole': True},
    "apertus1p5_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 65536, 'rope_theta': 12000000.0, 'rope_rule': {'factor': 8.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0, 'original_max_position_embeddings': 8192, 'rope_theta': 12000000.0, 'rope_type': 'llama3'}, 'whole': True},
    "arcee": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'rope_theta': 10000.0, 'whole': True},
    "aria_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "axk1": {'pairs': 'interleaved', 'hidden_size': 7168, 'num_attention_heads': 64, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 32768, 'rope_interleave': True, 'rope_theta': 10000.0},
    "axk2": {'pairs': 'interleaved', 'hidden_size': 2048, 'num_attention_heads': 32, 'qk_rope_head_dim': 32, 'qk_nope_head_dim': 64, 'max_position_embeddings': 131072, 'rope_theta': 10000.0, 'layer_types': ['indexed_attention']},
    "bailing_hybrid": {'pairs': 'interleaved', 'hidden_size': 2560, 'num_attention_heads': 32, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 262144, 'rope_theta': 6000000.0, 'layer_types': ['full_attention', 'linear_attention']},
    "bamba": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 262144, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5, 'layer_types': ['linear_attention']},
    "beam": {'pairs': 'half', 'hidden_size': 5120, 'num_attention_heads': 48, 'max_position_embeddings': 8192, 'head_dim': 128, 'rope_rule': {'full_attention': None, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'whole': True},
    "bitnet": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 20, 'max_position_embeddings': 2048, 'rope_theta': 500000.0, 'whole': True},
    "blt_global_transformer": {'pairs': 'interleaved', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 4096, 'rope_theta': 500000.0, 'whole': True},
    "blt_local_decoder": {'pairs': 'interleaved', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 24576, 'rope_theta': 500000.0, 'whole': True},
    "blt_local_encoder": {'pairs': 'interleaved', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 24576, 'rope_theta': 500000.0, 'whole': True},
    "blt_patcher": {'pairs': 'interleaved', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True},
    "chameleon": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'rope_theta': 10000.0, 'whole': True},
    "codegen": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 16, 'max_position_embeddings': 2048, 'rotary_dim': 64, 'rope_theta': 10000.0, 'whole': True, 'unscaled': True},
    "cohere": {'pairs': 'interleaved', 'hidden_size': 8192, 'num_attention_heads': 64, 'max_position_embeddings': 8192, 'rope_theta': 500000.0, 'whole': True},
    "cohere2": {'pairs': 'interleaved', 'hidden_size': 8192, 'num_attention_heads': 64, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "cohere2_moe": {'pairs': 'interleaved', 'hidden_size': 8192, 'num_attention_heads': 64, 'max_position_embeddings': 8192, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'unscaled': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "cosmos3_edge_text": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_rule': {'mrope_section': [24, 20, 20], 'rope_theta': 100000000.0, 'rope_type': 'default'}, 'whole': True, 'mrope_section': [24, 20, 20], 'mrope_order': 'interleaved'},
    "csm": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 500000.0, 'whole': True},
    "csm_depth_decoder_model": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 8, 'max_position_embeddings': 33, 'rope_theta': 500000.0, 'whole': True},
    "cwm": {'pairs': 'half', 'hidden_size': 6144, 'num_attention_heads': 48, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 1000000.0, 'rope_rule': {'factor': 16.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0, 'original_max_position_embeddings': 8192, 'rope_theta': 1000000.0, 'rope_type': 'llama3'}, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "dbrx": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "deepseek_ocr2_encoder": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 32768, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention']},
    "deepseek_ocr2_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'fixed_head': True, 'rope_theta': 10000.0, 'whole': True},
    "deepseek_v2": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 32, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 2048, 'rope_theta': 10000.0},
    "deepseek_v3": {'pairs': 'interleaved', 'hidden_size': 7168, 'num_attention_heads': 128, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 4096, 'rope_interleave': True, 'rope_theta': 10000.0},
    "deepseek_v32": {'pairs': 'interleaved', 'hidden_size': 7168, 'num_attention_heads': 128, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 163840, 'rope_theta': 10000.0, 'layer_types': ['indexed_attention']},
    "dia_decoder": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 3072, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "dia_encoder": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 1024, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "diffllama": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "diffusion_gemma_text": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 131072, 'head_dim': 256, 'head_dims': {'full_attention': 512}, 'rope_rule': {'full_attention': {'partial_rotary_factor': 0.25, 'rope_theta': 1000000.0, 'rope_type': 'proportional'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}},
    "doge": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 8, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "dory": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 16, 'max_position_embeddings': 8192, 'head_dim': 256, 'rope_rule': {'full_attention': {'rope_theta': 10000000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 10000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "dots1": {'pairs': 'half', 'hidden_size': 4608, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention']},
    "dots3_note_audio_encoder": {'pairs': 'interleaved', 'hidden_size': 1280, 'num_attention_heads': 20, 'max_position_embeddings': 6000, 'fixed_head': True, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "embedding_gemma2_text": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 4, 'max_position_embeddings': 262144, 'head_dim': 256, 'head_dims': {'full_attention': 512}, 'rope_rule': {'full_attention': {'rope_theta': 1000000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'whole': True},
    "emu3_text_model": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 9216, 'rope_theta': 1000000.0, 'whole': True},
    "ernie4_5": {'pairs': 'interleaved', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 500000.0, 'whole': True},
    "ernie4_5_moe": {'pairs': 'interleaved', 'hidden_size': 2560, 'num_attention_heads': 20, 'max_position_embeddings': 131072, 'rope_theta': 500000.0, 'whole': True},
    "ernie4_5_vl_moe_text": {'pairs': 'interleaved', 'hidden_size': 2560, 'num_attention_heads': 20, 'max_position_embeddings': 131072, 'rope_theta': 500000.0, 'whole': True, 'mrope_section': [22, 22, 20], 'mrope_order': 'ernie'},
    "esm": {'pairs': 'half', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 1026, 'rope_theta': 10000.0, 'whole': True, 'unscaled': True},
    "esmc": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 40, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "eurobert": {'pairs': 'half', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True},
    "evolla": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 8192, 'rope_theta': 500000.0, 'whole': True},
    "exaone": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'rope_theta': 500000.0, 'whole': True},
    "exaone4": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "exaone_moe": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "falcon": {'pairs': 'half', 'hidden_size': 4544, 'num_attention_heads': 71, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "falcon_h1": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['hybrid']},
    "flex_olmo": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'rope_theta': 500000.0, 'whole': True},
    "flint": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 262144, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "gemma": {'pairs': 'half', 'hidden_size': 3072, 'num_attention_heads': 16, 'max_position_embeddings': 8192, 'head_dim': 256, 'rope_theta': 10000.0, 'whole': True},
    "gemma2": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 8192, 'head_dim': 256, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "gemma3_text": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 131072, 'head_dim': 256, 'rope_rule': {'full_attention': {'rope_theta': 1000000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 1000000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "gemma3n_text": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 8, 'max_position_embeddings': 32768, 'head_dim': 256, 'rope_rule': {'full_attention': {'rope_theta': 1000000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 1000000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "gemma4_text": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 131072, 'head_dim': 256, 'head_dims': {'full_attention': 512}, 'rope_rule': {'full_attention': {'partial_rotary_factor': 0.25, 'rope_theta': 1000000.0, 'rope_type': 'proportional'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'whole': True},
    "gemma4_unified_text": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 262144, 'head_dim': 256, 'head_dims': {'full_attention': 512}, 'rope_rule': {'full_attention': {'partial_rotary_factor': 0.25, 'rope_theta': 1000000.0, 'rope_type': 'proportional'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'whole': True},
    "glm": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "glm4": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "glm4_moe": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 96, 'max_position_embeddings': 131072, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "glm4_moe_lite": {'pairs': 'interleaved', 'hidden_size': 2048, 'num_attention_heads': 20, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 192, 'max_position_embeddings': 202752, 'rope_interleave': True, 'rope_theta': 10000.0},
    "glm4v_moe_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 96, 'max_position_embeddings': 65536, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5, 'mrope_section': [8, 12, 12], 'mrope_order': 'chunked'},
    "glm4v_text": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 32768, 'rope_theta': 10000.0, 'mrope_section': [8, 12, 12], 'mrope_order': 'chunked'},
    "glm_image_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 10000.0, 'mrope_section': [8, 12, 12], 'mrope_order': 'chunked'},
    "glm_moe_dsa": {'pairs': 'interleaved', 'hidden_size': 6144, 'num_attention_heads': 64, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 192, 'max_position_embeddings': 202752, 'rope_theta': 10000.0, 'layer_types': ['indexed_attention']},
    "glm_ocr_text": {'pairs': 'interleaved', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 131072, 'rope_theta': 10000.0, 'mrope_section': [8, 12, 12], 'mrope_order': 'chunked'},
    "glmasr_encoder": {'pairs': 'half', 'hidden_size': 1280, 'num_attention_heads': 20, 'max_position_embeddings': 1500, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "gpt_neox": {'pairs': 'half', 'hidden_size': 6144, 'num_attention_heads': 64, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25},
    "gpt_neox_japanese": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0},
    "gpt_oss": {'pairs': 'half', 'hidden_size': 2880, 'num_attention_heads': 64, 'max_position_embeddings': 131072, 'head_dim': 64, 'rope_theta': 150000.0, 'rope_rule': {'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': 32.0, 'original_max_position_embeddings': 4096, 'rope_type': 'yarn', 'truncate': False}, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "gptj": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 16, 'max_position_embeddings': 2048, 'rotary_dim': 64, 'rope_theta': 10000.0, 'whole': True, 'unscaled': True},
    "gradium_phonon_tts": {'pairs': 'half', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True},
    "granite": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "granite4_vision_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "granite_docling_text": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'rope_theta': 10000.0, 'whole': True},
    "granite_swa": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 20, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "granitemoe": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "granitemoe_swa": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "granitemoehybrid": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['linear_attention']},
    "granitemoeshared": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "gte": {'pairs': 'half', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 8192, 'rope_theta': 160000.0, 'whole': True},
    "helium": {'pairs': 'interleaved', 'hidden_size': 2560, 'num_attention_heads': 20, 'max_position_embeddings': 4096, 'head_dim': 128, 'rope_theta': 100000.0, 'whole': True},
    "higgs_audio_v2": {'pairs': 'half', 'hidden_size': 3072, 'num_attention_heads': 24, 'max_position_embeddings': 2048, 'head_dim': 128, 'rope_theta': 10000.0, 'rope_rule': {'factor': 32.0, 'high_freq_factor': 0.5, 'low_freq_factor': 0.125, 'original_max_position_embeddings': 1024, 'rope_theta': 500000.0, 'rope_type': 'llama3'}, 'whole': True},
    "hrm_text": {'pairs': 'half', 'hidden_size': 1536, 'num_attention_heads': 12, 'max_position_embeddings': 2048, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "hunyuan_v1_dense": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "hunyuan_v1_moe": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "hy_v3": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 64, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 11158840.0, 'whole': True},
    "hy_v4": {'pairs': 'half', 'hidden_size': 2816, 'num_attention_heads': 32, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 192, 'max_position_embeddings': 262144, 'rope_theta': 10000.0, 'layer_types': ['indexed_attention']},
    "hy_v4_vl_text": {'pairs': 'interleaved', 'hidden_size': 6144, 'num_attention_heads': 64, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 192, 'max_position_embeddings': 262144, 'rope_theta': 10000.0, 'layer_types': ['indexed_attention'], 'mrope_section': [12, 10, 10], 'mrope_order': 'interleaved'},
    "hyperclovax": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "idefics": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "internlm3": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 32768, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "iquestcoder": {'pairs': 'half', 'hidden_size': 5120, 'num_attention_heads': 40, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "jais2": {'pairs': 'half', 'hidden_size': 3328, 'num_attention_heads': 26, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True},
    "jetmoe": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "jina_embeddings_v3": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 8194, 'rope_theta': 20000.0, 'whole': True},
    "kolibri1": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 48, 'max_position_embeddings': 262144, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "kyutai_speech_to_text": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 750, 'rope_theta': 10000.0, 'whole': True},
    "laguna": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 48, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_rule': {'full_attention': {'partial_rotary_factor': 0.5, 'rope_theta': 500000.0, 'rope_type': 'default'}, 'sliding_attention': {'partial_rotary_factor': 1.0, 'rope_theta': 10000.0, 'rope_type': 'default'}}},
    "lara_mini": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'linear_attention', 'sliding_attention']},
    "lasr_encoder": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 10000, 'rope_theta': 10000.0, 'whole': True},
    "lfm2": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 32, 'max_position_embeddings': 128000, 'rope_theta': 1000000.0, 'whole': True, 'layer_types': ['full_attention']},
    "lfm2_moe": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 128000, 'rope_theta': 1000000.0, 'whole': True},
    "lfm3": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 128000, 'head_dim': 128, 'rope_rule': {'full_attention': {'partial_rotary_factor': 0.5, 'rope_theta': 1000000.0, 'rope_type': 'proportional'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 1000000.0, 'sliding_attention': 1000000.0}, 'whole': True},
    "llama": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "llama4_text": {'pairs': 'interleaved', 'hidden_size': 5120, 'num_attention_heads': 40, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 500000.0, 'whole': True, 'layer_types': ['chunked_attention', 'full_attention']},
    "longcat_flash": {'pairs': 'interleaved', 'hidden_size': 6144, 'num_attention_heads': 64, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 131072, 'rope_theta': 10000000.0},
    "mellum": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_rule': {'full_attention': {'rope_theta': 500000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}},
    "mimi": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 8000, 'rope_theta': 10000.0, 'whole': True},
    "mimi_decoder": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 8000, 'rope_theta': 10000.0, 'whole': True},
    "mimi_encoder": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 8000, 'rope_theta': 10000.0, 'whole': True},
    "mimo_v2_flash": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 64, 'max_position_embeddings': 131072, 'head_dim': 192, 'rope_rule': {'full_attention': {'partial_rotary_factor': 0.334, 'rope_theta': 5000000.0, 'rope_type': 'default'}, 'sliding_attention': {'partial_rotary_factor': 0.334, 'rope_theta': 10000.0, 'rope_type': 'default'}}},
    "minicpm3": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 40, 'qk_rope_head_dim': 32, 'qk_nope_head_dim': 64, 'max_position_embeddings': 32768, 'rope_theta': 10000.0},
    "minimax": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 1000000.0, 'whole': True, 'layer_types': ['full_attention', 'linear_attention']},
    "minimax_m2": {'pairs': 'half', 'hidden_size': 3072, 'num_attention_heads': 48, 'max_position_embeddings': 196608, 'head_dim': 128, 'rope_theta': 5000000.0},
    "minimax_m3_vl_text": {'pairs': 'half', 'hidden_size': 6144, 'num_attention_heads': 64, 'max_position_embeddings': 524288, 'head_dim': 128, 'rope_theta': 5000000.0, 'layer_types': ['full_attention']},
    "ministral": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['sliding_attention']},
    "ministral3": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 262144, 'head_dim': 128, 'rope_theta': 10000.0, 'rope_rule': {'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': 16.0, 'llama_4_scaling_beta': 0.1, 'max_position_embeddings': 262144, 'mscale': 1.0, 'mscale_all_dim': 1.0, 'original_max_position_embeddings': 16384, 'rope_theta': 1000000.0, 'rope_type': 'yarn', 'type': 'yarn'}, 'whole': True},
    "mistral": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 10000.0, 'whole': True},
    "mistral4": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 32, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 64, 'max_position_embeddings': 1048576, 'rope_interleave': True, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5, 'rope_rule': {'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': 128.0, 'llama_4_scaling_beta': 0.1, 'max_position_embeddings': 1048576, 'mscale': 1.0, 'mscale_all_dim': 1.0, 'original_max_position_embeddings': 8192, 'partial_rotary_factor': 0.5, 'rope_theta': 10000.0, 'rope_type': 'yarn', 'type': 'yarn'}},
    "mistral_large4_text": {'pairs': 'interleaved', 'hidden_size': 6144, 'num_attention_heads': 64, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 64, 'max_position_embeddings': 1048576, 'rope_theta': 10000.0, 'rope_rule': {'attention_factor': 1.0, 'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': 2048.0, 'original_max_position_embeddings': 512, 'rope_theta': 10000.0, 'rope_type': 'yarn'}, 'layer_types': ['indexed_attention']},
    "mixtral": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 1000000.0, 'whole': True},
    "mllama_text_model": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 500000.0, 'whole': True},
    "modernbert": {'pairs': 'half', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 8192, 'rope_rule': {'full_attention': {'rope_theta': 160000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 160000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "modernbert-decoder": {'pairs': 'half', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 8192, 'rope_rule': {'full_attention': {'rope_theta': 160000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 160000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "molmo2_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 36864, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "moonshine": {'pairs': 'interleaved', 'hidden_size': 288, 'num_attention_heads': 8, 'max_position_embeddings': 512, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.9},
    "moonshine_streaming": {'pairs': 'interleaved', 'hidden_size': 320, 'num_attention_heads': 8, 'max_position_embeddings': 4096, 'rope_theta': 10000.0, 'rope_rule': {'partial_rotary_factor': 0.8, 'rope_theta': 10000.0, 'rope_type': 'default'}},
    "moshi": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 3000, 'rope_theta': 10000.0, 'whole': True},
    "muse_glimmer_assistant": {'pairs': 'half', 'hidden_size': 6656, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 500000.0, 'whole': True, 'layer_types': ['sliding_attention']},
    "muse_glimmer_text": {'pairs': 'half', 'hidden_size': 6656, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "muse_spark_text": {'pairs': 'half', 'hidden_size': 8192, 'num_attention_heads': 128, 'max_position_embeddings': 1048576, 'head_dim': 64, 'rope_theta': 10000.0, 'rope_rule': {'rope_theta': 500000.0, 'rope_type': 'default'}, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "nemotron": {'pairs': 'half', 'hidden_size': 6144, 'num_attention_heads': 48, 'max_position_embeddings': 4096, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "nemotron3_5_transcribe_asr_audio": {'pairs': 'half', 'hidden_size': 1280, 'num_attention_heads': 10, 'max_position_embeddings': 5000, 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0, 'rope_rule': {'partial_rotary_factor': 0.5, 'rope_theta': 10000.0, 'rope_type': 'default'}},
    "nemotron3_5_transcribe_word_timestamp": {'pairs': 'half', 'hidden_size': 1280, 'num_attention_heads': 16, 'max_position_embeddings': 5000, 'rope_theta': 10000.0, 'rope_rule': {'partial_rotary_factor': 0.5, 'rope_theta': 10000.0, 'rope_type': 'default'}},
    "nemotron3_diarization_audio": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 5000, 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0},
    "neucodec": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 4096, 'head_dim': 64, 'rope_theta': 10000.0, 'whole': True},
    "nomic_bert": {'pairs': 'half', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 2048, 'rope_theta': 1000.0, 'whole': True},
    "olmo": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "olmo2": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'whole': True},
    "olmo3": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_rule': {'full_attention': {'rope_theta': 500000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 500000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 500000.0, 'sliding_attention': 500000.0}, 'whole': True},
    "olmo_hybrid": {'pairs': 'half', 'hidden_size': 3840, 'num_attention_heads': 30, 'max_position_embeddings': 65536, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'linear_attention']},
    "olmoe": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 4096, 'rope_theta': 10000.0, 'whole': True},
    "openai_privacy_filter": {'pairs': 'interleaved', 'hidden_size': 640, 'num_attention_heads': 14, 'max_position_embeddings': 131072, 'head_dim': 64, 'rope_theta': 150000.0, 'rope_rule': {'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': 32.0, 'original_max_position_embeddings': 4096, 'rope_type': 'yarn', 'truncate': False}, 'whole': True},
    "paddleocr_vl_text": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 500000.0, 'whole': True, 'mrope_section': [16, 24, 24], 'mrope_order': 'chunked'},
    "pe_audio_encoder": {'pairs': 'interleaved', 'hidden_size': 1792, 'num_attention_heads': 14, 'max_position_embeddings': 10000, 'head_dim': 128, 'rope_theta': 20000, 'whole': True},
    "pe_audio_video_encoder": {'pairs': 'interleaved', 'hidden_size': 1792, 'num_attention_heads': 14, 'max_position_embeddings': 10000, 'head_dim': 128, 'rope_theta': 20000, 'whole': True},
    "pe_video_encoder": {'pairs': 'interleaved', 'hidden_size': 1792, 'num_attention_heads': 14, 'max_position_embeddings': 10000, 'head_dim': 128, 'rope_theta': 20000, 'whole': True},
    "persimmon": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 64, 'max_position_embeddings': 16384, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "phi": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 2048, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5},
    "phi3": {'pairs': 'half', 'hidden_size': 3072, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'original_max_position_embeddings': 4096, 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0},
    "phi4_multimodal": {'pairs': 'half', 'hidden_size': 3072, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'original_max_position_embeddings': 4096, 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0},
    "phimoe": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 1000000.0, 'whole': True},
    "pocket_tts": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 8192, 'rope_theta': 10000.0, 'whole': True},
    "pocket_tts_audio_tokenizer": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 8000, 'rope_theta': 10000.0, 'whole': True},
    "pocket_tts_audio_tokenizer_decoder": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 8000, 'rope_theta': 10000.0, 'whole': True},
    "pocket_tts_audio_tokenizer_encoder": {'pairs': 'half', 'hidden_size': 512, 'num_attention_heads': 8, 'max_position_embeddings': 8000, 'rope_theta': 10000.0, 'whole': True},
    "qwen2": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 32768, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention']},
    "qwen2_5_omni_dit": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'head_dim': 64, 'rope_theta': 10000.0, 'whole': True},
    "qwen2_5_omni_talker": {'pairs': 'half', 'hidden_size': 3584, 'num_attention_heads': 28, 'max_position_embeddings': 32768, 'head_dim': 128, 'rope_theta': 1000000.0, 'whole': True, 'layer_types': ['full_attention'], 'mrope_section': [16, 24, 24], 'mrope_order': 'chunked'},
    "qwen2_5_omni_text": {'pairs': 'half', 'hidden_size': 3584, 'num_attention_heads': 28, 'max_position_embeddings': 32768, 'rope_theta': 1000000.0, 'whole': True, 'layer_types': ['full_attention'], 'mrope_section': [16, 24, 24], 'mrope_order': 'chunked'},
    "qwen2_5_vl_text": {'pairs': 'half', 'hidden_size': 8192, 'num_attention_heads': 64, 'max_position_embeddings': 32768, 'rope_theta': 1000000.0, 'whole': True, 'layer_types': ['full_attention'], 'mrope_section': [16, 24, 24], 'mrope_order': 'chunked'},
    "qwen2_moe": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention']},
    "qwen2_vl_text": {'pairs': 'half', 'hidden_size': 8192, 'num_attention_heads': 64, 'max_position_embeddings': 32768, 'rope_theta': 1000000.0, 'whole': True, 'layer_types': ['full_attention'], 'mrope_section': [16, 24, 24], 'mrope_order': 'chunked'},
    "qwen3": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 32768, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention']},
    "qwen3_5_moe_text": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'head_dim': 256, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25, 'layer_types': ['full_attention', 'linear_attention'], 'mrope_section': [11, 11, 10], 'mrope_order': 'interleaved'},
    "qwen3_5_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'head_dim': 256, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25, 'layer_types': ['full_attention', 'linear_attention'], 'mrope_section': [11, 11, 10], 'mrope_order': 'interleaved'},
    "qwen3_moe": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 32, 'max_position_embeddings': 32768, 'rope_theta': 10000.0, 'whole': True},
    "qwen3_next": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'head_dim': 256, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25, 'layer_types': ['full_attention', 'linear_attention']},
    "qwen3_omni_moe_talker_code_predictor": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention'], 'mrope_section': [24, 20, 20], 'mrope_order': 'interleaved'},
    "qwen3_omni_moe_talker_text": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'rope_theta': 10000.0, 'whole': True, 'mrope_section': [24, 20, 20], 'mrope_order': 'interleaved'},
    "qwen3_omni_moe_text": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 28, 'max_position_embeddings': 32768, 'rope_theta': 1000000.0, 'whole': True, 'mrope_section': [24, 20, 20], 'mrope_order': 'interleaved'},
    "qwen3_vl_moe_text": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 128000, 'rope_theta': 500000.0, 'whole': True, 'mrope_section': [24, 20, 20], 'mrope_order': 'interleaved'},
    "qwen3_vl_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 128000, 'head_dim': 128, 'rope_theta': 500000.0, 'whole': True, 'mrope_section': [24, 20, 20], 'mrope_order': 'interleaved'},
    "qwen4_exp_text": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'head_dim': 256, 'rope_theta': 10000.0, 'layer_types': ['indexed_attention', 'linear_attention'], 'mrope_section': [11, 11, 10], 'mrope_order': 'interleaved'},
    "recurrent_gemma": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 10, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5, 'layer_types': ['linear_attention', 'sliding_attention']},
    "roformer": {'pairs': 'interleaved', 'hidden_size': 768, 'num_attention_heads': 12, 'max_position_embeddings': 1536, 'rope_theta': 10000.0, 'whole': True, 'unscaled': True},
    "sarvam_mla": {'pairs': 'interleaved', 'hidden_size': 4096, 'num_attention_heads': 64, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 4096, 'rope_interleave': True, 'rope_theta': 10000.0},
    "sarvam_moe": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 64, 'max_position_embeddings': 131072, 'head_dim': 64, 'rope_theta': 8000000.0, 'partial_rotary_factor': 1.0},
    "seed_oss": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 80, 'max_position_embeddings': 524288, 'head_dim': 128, 'rope_theta': 10000.0, 'whole': True},
    "smollm3": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 16, 'max_position_embeddings': 32768, 'rope_theta': 2000000.0, 'whole': True, 'layer_types': ['full_attention']},
    "solar_open": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 64, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_theta': 1000000.0},
    "stablelm": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25},
    "starcoder2": {'pairs': 'half', 'hidden_size': 3072, 'num_attention_heads': 24, 'max_position_embeddings': 4096, 'rope_theta': 10000.0, 'whole': True},
    "step3p5": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 64, 'max_position_embeddings': 128000, 'head_dim': 128, 'rope_rule': {'full_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 10000.0}},
    "t5_gemma_module": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 8192, 'head_dim': 256, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "t5gemma2_decoder": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 131072, 'head_dim': 256, 'rope_rule': {'full_attention': {'rope_theta': 1000000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 1000000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "t5gemma2_text": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 131072, 'head_dim': 256, 'rope_rule': {'full_attention': {'rope_theta': 1000000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 1000000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "timesfm2_5": {'pairs': 'half', 'hidden_size': 1280, 'num_attention_heads': 16, 'max_position_embeddings': 16384, 'head_dim': 80, 'rope_theta': 10000.0, 'whole': True},
    "ultrabert": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 32768, 'rope_rule': {'full_attention': {'rope_theta': 2560000.0, 'rope_type': 'default'}, 'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'}}, 'rope_theta': {'full_attention': 10000.0, 'sliding_attention': 10000.0}, 'whole': True},
    "unlimited_ocr_text": {'pairs': 'half', 'hidden_size': 1280, 'num_attention_heads': 10, 'max_position_embeddings': 32768, 'fixed_head': True, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['reference_sliding_attention']},
    "vaultgemma": {'pairs': 'half', 'hidden_size': 2304, 'num_attention_heads': 8, 'max_position_embeddings': 8192, 'head_dim': 256, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['full_attention', 'sliding_attention']},
    "voxtral_realtime_encoder": {'pairs': 'half', 'hidden_size': 1280, 'num_attention_heads': 32, 'max_position_embeddings': 1500, 'head_dim': 64, 'rope_theta': 10000.0, 'whole': True},
    "voxtral_realtime_text": {'pairs': 'half', 'hidden_size': 4096, 'num_attention_heads': 32, 'max_position_embeddings': 131072, 'rope_theta': 10000.0, 'whole': True},
    "xcodec2": {'pairs': 'half', 'hidden_size': 1024, 'num_attention_heads': 16, 'max_position_embeddings': 4096, 'head_dim': 64, 'rope_theta': 10000.0, 'whole': True},
    "youtu": {'pairs': 'interleaved', 'hidden_size': 2048, 'num_attention_heads': 16, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'max_position_embeddings': 131072, 'rope_interleave': True, 'rope_theta': 10000.0},
    "zamba2": {'pairs': 'half', 'hidden_size': 2560, 'num_attention_heads': 32, 'max_position_embeddings': 4096, 'head_times': 2, 'rope_theta': 10000.0, 'whole': True, 'layer_types': ['hybrid', 'linear_attention']},
    "zaya": {'pairs': 'half', 'hidden_size': 2048, 'num_attention_heads': 8, 'max_position_embeddings': 131072, 'head_dim': 128, 'rope_rule': {'hybrid': {'partial_rotary_factor': 0.5, 'rope_theta': 5000000.0, 'rope_type': 'default'}, 'hybrid_sliding': {'partial_rotary_factor': 0.5, 'rope_theta': 10000.0, 'rope_type': 'default'}}},
}
# The model type of the text model inside.
_TEXTS = """
aimv2:aimv2_text_model align:align_text_model altclip:altclip_text_model apertus1p5:apertus1p5_text aria:aria_text audioflamingo3:qwen2 aya_vision:cohere2 blip-2:opt
blip:blip_text_model bridgetower:bridgetower_text_model chinese_clip:chinese_clip_text_model clap:clap_text_model clip:clip_text_model clipseg:clipseg_text_model clvp:clvp_encoder
cohere2_vision:cohere2 cohere_compass:cohere_compass_text cosmos3_edge:cosmos3_edge_text cosmos3_omni:qwen3_vl_text deepseek_ocr2:deepseek_ocr2_text deepseek_vl:llama
deepseek_vl_hybrid:llama diffusion_gemma:diffusion_gemma_text dots3_note:dots3_note_text embedding_gemma2:embedding_gemma2_text emu3:emu3_text_model
ernie4_5_vl_moe:ernie4_5_vl_moe_text exaone4_5:exaone4 fast_vlm:qwen2 flava:flava_text_model florence2:bart fun_asr_nano:qwen3 fuyu:persimmon gemma3:gemma3_text
gemma3n:gemma3n_text gemma4:gemma4_text gemma4_unified:gemma4_unified_text gemma4_unified_assistant:gemma4_unified_text glm46v:glm4v_text glm4v:glm4v_text glm4v_moe:glm4v_moe_text
glm5_next:glm5_next_text glm_image:glm_image_text glm_ocr:glm_ocr_text glmasr:llama glmga:glm4v_text got_ocr2:qwen2 granite4_vision:granite4_vision_text
granite_docling:granite_docling_text granite_speech:granite granite_speech_plus:granite grounding-dino:bert groupvit:groupvit_text_model hunyuan_vl:hunyuan_vl_text
hy_v4_vl:hy_v4_vl_text hyperclovax_vision_v2:hyperclovax idefics2:mistral idefics3:llama inkling2:inkling2_text inkling2_loop:inkling2_loop_text inkling_mm_model:inkling_text
instructblip:opt instructblipvideo:opt internvl:qwen2 janus:llama jev:qwen3_5_text kimi_k25:deepseek_v3 kosmos-2.5:kosmos_2_5_text_model kosmos-2:kosmos_2_text_model lfm2_vl:lfm2
lfm3_vl:lfm3 lighton_ocr:qwen3 llama4:llama4_text llava:llama llava_next:llama llava_next_video:llama llava_onevision:qwen2 metaclip_2:metaclip_2_text_model
minicpm_ocr:qwen3_5_text minicpmv4_6:qwen3_5_text minicpmv4_7:qwen3_5_text minimax_m3_vl:minimax_m3_vl_text mistral3:mistral mistral_large4:mistral_large4_text
mllama:mllama_text_model mm-grounding-dino:bert modernvbert:modernbert molmo2:molmo2_text moss_transcribe_diarize:qwen3 muse_glimmer:muse_glimmer_text muse_spark:muse_spark_text
musicflamingo:qwen2 nemo_speechlm:nemotron_h nemotron_h_omni:nemotron_h omdet-turbo:clip_text_model omniasr:llama ovis2:qwen2 owlv2:owlv2_text_model owlvit:owlvit_text_model
paddleocr_vl:paddleocr_vl_text paligemma:gemma pe_audio:modernbert pe_audio_video:modernbert pe_video:modernbert perception_lm:llama pix2struct:pix2struct_text_model
pp_chart2table:qwen2 pp_formulanet:pp_formulanet_text qianfan_ocr:qwen3 qwen2_5_omni_thinker:qwen2_5_omni_text qwen2_5_vl:qwen2_5_vl_text qwen2_audio:qwen2 qwen2_vl:qwen2_vl_text
qwen3_5:qwen3_5_text qwen3_5_moe:qwen3_5_moe_text qwen3_asr:qwen3 qwen3_omni_moe_thinker:qwen3_omni_moe_text qwen3_vl:qwen3_vl_text qwen3_vl_moe:qwen3_vl_moe_text
qwen4_exp:qwen4_exp_text sam3:clip_text_model sam3_lite_text:sam3_lite_text_text_model shieldgemma2:gemma3_text siglip2:siglip2_text_model siglip:siglip_text_model smolvlm:llama
step3p7:step3p5 t5gemma2_encoder:t5gemma2_text tipsv2:tipsv2_text_model ultravbert:ultrabert unlimited_ocr:unlimited_ocr_text vibevoice:qwen2 vibevoice_asr:qwen2
video_llama_3:qwen2 video_llava:llama videoprism:videoprism_text_model vipllava:llama vision-text-dual-encoder:bert voxtral:llama voxtral_realtime:voxtral_realtime_text
xclip:xclip_text_model
"""
TEXT_TYPES = dict(word.split(":") for word in _TEXTS.split())
# Nothing in the code of these models rotates.
_WITHOUT = """
albert align_text_model align_vision_model altclip_text_model altclip_vision_model audio-spectrogram-transformer audioflamingo3_encoder autoformer bart beit bert bert-generation
big_bird bigbird_pegasus biogpt bit blenderbot blenderbot-small blip_2_qformer blip_2_vision_model blip_text_model blip_vision_model bloom bridgetower_text_model
bridgetower_vision_model camembert canine chinese_clip_text_model chinese_clip_vision_model clap_audio_model clap_text_model clip_text_model clip_vision_model clipseg_text_model
clipseg_vision_model coarse_acoustics convbert convnext convnextv2 cpmant ctrl cvt dac data2vec-audio data2vec-text data2vec-vision deberta deberta-v2 decision_transformer deit
dinat dinov2 dinov2_with_registers dinov3_convnext donut-swin dpr edgetam_mask_decoder edgetam_prompt_encoder efficientnet electra encodec eomt ernie falcon_mamba
fastspeech2_conformer fastspeech2_conformer_hifigan fine_acoustics flaubert flava_image_codebook flava_image_model flava_multimodal_model flava_text_model florence_vision fnet
focalnet fsmt fun_asr_nano_encoder git_vision_model glpn got_ocr2_vision gpt2 gpt_bigcode gpt_neo granite_speech5_encoder granite_speech_encoder granite_speech_plus_encoder
groupvit_text_model groupvit_vision_model hgnet_v2 hiera hubert ibert idefics2_perceiver idefics2_vision idefics3_vision ijepa imagegpt informer inkling2_loop_text inkling_audio
inkling_text inkling_vision instructblip_qformer instructblip_vision_model instructblipvideo_qformer instructblipvideo_vision_model internvl_vision janus_vision_model janus_vqgan
kosmos_2_5_text_model kosmos_2_5_vision_model kosmos_2_text_model kosmos_2_vision_model layoutlm layoutlmv2 layoutlmv3 led levit lilt longformer longt5 luke lxmert m2m_100 mamba
mamba2 marian markuplm maskformer-swin mbart megatron-bert metaclip_2_text_model metaclip_2_vision_model mgp-str minicpm_ocr_vision minicpmv4_6_vision mobilebert mobilenet_v1
mobilenet_v2 mobilevit mobilevitv2 moss_transcribe_diarize_audio mpnet mra mt5 musicgen_decoder musicgen_melody_decoder mvp nllb-moe nystromformer omniasr_audio openai-gpt opt
ovis2_vision owlv2_text_model owlv2_vision_model owlvit_text_model owlvit_vision_model patchtsmixer patchtst pegasus pegasus_x perceiver pix2struct_text_model
pix2struct_vision_model pixio plbart poolformer pop2piano pp_formulanet_text pp_formulanet_vision pp_lcnet pp_lcnet_v3 pp_lcnet_v4 prophetnet pvt pvt_v2 qianfan_ocr_vision
qwen2_audio_encoder qwen3_asr_encoder radio rag reformer regnet rembert resnet roberta roberta-prelayernorm roc_bert rwkv sam2_hiera_det_model sam2_mask_decoder sam2_prompt_encoder
sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder sam3_lite_text_text_model sam3_tracker_mask_decoder
sam3_tracker_prompt_encoder sam_hq_mask_decoder sam_hq_prompt_encoder sam_hq_vision_model sam_mask_decoder sam_prompt_encoder sam_vision_model seamless_m4t_v2 segformer seggpt
semantic sew sew-d siglip2_text_model siglip2_vision_model siglip_text_model siglip_vision_model slanext_vision smolvlm_vision speech_to_text speecht5 speecht5_hifigan splinter
squeezebert superpoint swiftformer swin swin2sr swinv2 switch_transformers t5 tapas textnet time_series_transformer timesfm timesformer timm_backbone timm_wrapper tipsv2_text_model
tipsv2_vision_model trocr udop umt5 unispeech unispeech-sat univnet uvdoc_backbone vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder
vibevoice_acoustic_tokenizer_encoder vibevoice_diffusion videomae videomt vilt visual_bert vit vit_msn vitdet vitpose_backbone vits vivit voxtral_encoder wav2vec2 wavlm
wavtokenizer wavtokenizer_encoder whisper xclip_text_model xclip_vision_model xglm xlm xlm-roberta xlm-roberta-xl xlstm xmod yolos yoso zamba
"""
WITHOUT_POSITIONS = frozenset(_WITHOUT.split())
