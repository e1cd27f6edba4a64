"""Tiny models of transformers with random weights, one for each family that `patch` knows."""

import functools
import importlib

import torch

try:
    import transformers
    from packaging.version import Version
except ImportError:
    REASON = "transformers is not installed"
else:
    REASON = ""
    if Version(transformers.__version__) < Version("5"):
        REASON = f"transformers is {transformers.__version__}, the test is written for 5"

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GPTJ = {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "n_positions": 64, "n_inner": 96}
# model type: what differs from SIZES. Every one but GPT-NeoX, GPT-J and the last two is GQA.
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 8},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8,
                    "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.5},
    "gptj": GPTJ,
    "glm": {"head_dim": 16, "partial_rotary_factor": 0.5},
    "glm4": {"head_dim": 16, "partial_rotary_factor": 0.5},
    "cohere": {},
    "cohere2": {"sliding_window": 8},
    "olmo": {},
    "olmo2": {},
    "bloom": {"n_head": 6, "hidden_size": 96, "n_layer": 2},
    "mpt": {"d_model": 96, "n_heads": 6, "n_layers": 2, "max_seq_len": 64},
}  # fmt: skip
MORE = {
    "codegen": GPTJ,
    "deepseek_v3": {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
                    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
                    "n_routed_experts": 4, "n_group": 2,
                    "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                    "first_k_dense_replace": 1},
    "falcon": {"alibi": True},
    "helium": {"head_dim": 16},
    "olmo3": {"sliding_window": 8},
    "qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
                  "shared_expert_intermediate_size": 32},
}  # fmt: skip


def modeling(family):
    """The module of a family's code."""
    name = family.removesuffix("_text")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


@functools.cache
def model_of(family):
    sizes = SIZES | {**FAMILIES, **MORE}[family]
    config = transformers.AutoConfig.for_model(family, **sizes)
    if family == "gemma2":
        config._attn_implementation = "eager"
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def tokens(length=11, batch=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, SIZES["vocab_size"], (batch, length), generator=generator)


def padded():
    """Two prompts, the first with 3 tokens of padding on its left."""
    ids, mask = tokens(7), torch.ones(2, 7, dtype=torch.int64)
    ids[0, :3], mask[0, :3] = 0, 0
    return ids, mask


def logits_and_gradients(model, forward=None):
    """The logits of a prompt, the loss, and the gradient of every parameter."""
    model.zero_grad()
    options = {}
    if model.config.model_type in ("bloom", "falcon"):  # without a mask BLOOM builds no bias
        options["attention_mask"] = torch.ones_like(tokens())
    out = (model if forward is None else forward)(input_ids=tokens(), labels=tokens(), **options)
    out.loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": out.logits.detach(), "loss": out.loss.detach(), **grads}


def generated(model, **options):
    ids, mask = padded()
    with torch.no_grad():
        return model.generate(
            ids, attention_mask=mask, max_new_tokens=6, do_sample=False, **options
        )


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    differ = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
    assert differ == []
