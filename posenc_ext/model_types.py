"""Model types of Hugging Face transformers by the pairs of channels that they rotate, from their
source in version 5.24."""

# Pairs (x[2i], x[2i + 1]).
_INTERLEAVED = """
    blt codegen cohere cohere2 cohere2_moe deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5
    ernie4_5_moe ernie4_5_vl_moe glm glm4 glm4v glm_ocr glm4_moe_lite gptj helium llama4
    mistral4 moonshine roformer youtu longcat_flash
"""
# Pairs (x[i], x[i + R/2]).
_HALF = """
    afmoe apertus arcee bamba bitnet chameleon csm cwm dbrx dia diffllama doge dots1 emu3 esm
    eurobert exaone4 exaone_moe falcon falcon_h1 flex_olmo gemma gemma2 gemma3 gemma3n glm4_moe
    glm4v_moe gpt_neox gpt_neox_japanese gpt_oss granite granitemoe granitemoehybrid
    granitemoeshared gte hunyuan_v1_dense hunyuan_v1_moe idefics jais2 jamba jetmoe lfm2
    lfm2_moe llama mimi mimo_v2_flash minicpm3 minimax minimax_m2 ministral ministral3 mistral
    mixtral mllama modernbert modernbert_decoder moshi nanochat nemotron nemotron_h nomic_bert
    olmo olmo2 olmo3 olmo_hybrid olmoe paddleocr_vl persimmon phi phi3 phi4_multimodal phimoe
    pixtral qwen2 qwen2_5_omni qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe
    qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe recurrent_gemma seed_oss smollm3 solar_open
    stablelm starcoder2 t5gemma t5gemma2 vaultgemma zamba2
"""
INTERLEAVED = frozenset(_INTERLEAVED.split())
HALF = frozenset(_HALF.split())
