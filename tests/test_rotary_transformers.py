"""Tables with precision="float32" against the rotary modules of transformers, bit for bit."""

import functools
import importlib

import pytest
import torch
from rope_cases import assert_bits

from posenc_ext import (
    RotaryPositionalEmbedding,
    axial_positions,
    axial_rope_table,
    mrope_position_ids,
    rope_table,
)

try:
    import transformers
    from packaging.version import Version
except ImportError:
    REASON = "transformers is not installed"
else:
    REASON = ""
    if Version(transformers.__version__) < Version("5"):
        REASON = f"transformers is {transformers.__version__}, the test is written for 5"

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "ready")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONGEST = {"max_position_embeddings": 131072}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 16 for i in range(16)],
    "long_factor": [1.0 + i for i in range(16)],
}
DEEPSEEK = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
# name: (model type, prefix of its classes, config, layer types)
FAMILIES = {
    "llama": ("llama", "Llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}, None),
    "llama linear": ("llama", "Llama", {"rope_scaling": LINEAR}, None),
    "qwen2": ("qwen2", "Qwen2", {"rope_theta": 1e6, "rope_scaling": YARN, **LONGEST}, None),
    "qwen3": ("qwen3", "Qwen3", {"rope_theta": 1e6, "head_dim": 64}, None),
    "mistral": ("mistral", "Mistral", {"rope_theta": 1e6, "head_dim": 64}, None),
    "gemma3": (
        "gemma3",
        "Gemma3",
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "layer_types": ["sliding_attention", "full_attention"],
        },
        ["sliding_attention", "full_attention"],
    ),
    "phi3": (
        "phi3",
        "Phi3",
        {
            "rope_scaling": LONG,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 2048,
            "partial_rotary_factor": 0.5,
        },
        None,
    ),
    "gpt_neox": ("gpt_neox", "GPTNeoX", {"rotary_pct": 0.25, "rotary_emb_base": 20000}, None),
    "gpt_neox default": ("gpt_neox", "GPTNeoX", {}, None),
    "glm": ("glm", "Glm", {"partial_rotary_factor": 0.5, "head_dim": 64}, None),
    "deepseek_v3": (
        "deepseek_v3",
        "DeepseekV3",
        {"rope_scaling": DEEPSEEK, "max_position_embeddings": 163840, "qk_rope_head_dim": 64},
        None,
    ),
    "gpt_oss": ("gpt_oss", "GptOss", {"head_dim": 64}, None),
    "cohere": ("cohere", "Cohere", {"rope_theta": 8e6}, None),
    "olmo": ("olmo", "Olmo", {"rope_theta": 1e4}, None),
    "olmo2": ("olmo2", "Olmo2", {"rope_theta": 5e5}, None),
    "modernbert": (
        "modernbert",
        "ModernBert",
        {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0},
        ["sliding_attention", "full_attention"],
    ),
}  # fmt: skip


@functools.cache
def modeling(model_type):
    return importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")


def config_of(model_type, **keys):
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 8}
    if model_type == "gemma3":
        return transformers.Gemma3TextConfig(**sizes | keys)
    return transformers.AutoConfig.for_model(model_type, **sizes | keys)


def theirs(module, positions, n, layer_type, dtype=torch.float32):
    x = torch.zeros(1, dtype=dtype)
    tables = module(x, positions, *([layer_type] if layer_type else []))
    return [t if t.shape[-1] == n else _half(t, n) for t in tables]


def _half(table, n):
    tiled = torch.cat([table[..., :n]] * 2, -1)
    return table[..., :n] if torch.equal(tiled, table) else table[..., ::2]


POSITIONS = torch.tensor([[0, 1, 2, 3, 4095, 4096], [131071, 100000, 54321, 7, 6, 5]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, dtype):
    model_type, prefix, keys, layers = FAMILIES[family]
    config = config_of(model_type, **keys)
    module = getattr(modeling(model_type), prefix + "RotaryEmbedding")(config)
    for layer in layers or [None]:
        ours = RotaryPositionalEmbedding.from_config(config, layer_type=layer, precision="float32")
        for positions in (POSITIONS[:, :3], POSITIONS):
            right = theirs(module, positions, ours.dim // 2, layer, dtype)
            kept = right[0].dtype  # OLMo keeps float32
            for mine, wanted in zip(ours.table(positions, dtype=kept), right, strict=True):
                assert_bits(mine, wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_config_objects_and_their_old_and_new_dicts_agree(family):
    model_type, _, keys, layers = FAMILIES[family]
    config = config_of(model_type, **keys)
    sizes = {"model_type": model_type, "hidden_size": 256, "num_attention_heads": 4}
    new = config.to_dict()
    old = sizes | {k: v for k, v in config.to_dict().items() if k.startswith(("max_", "head_"))}
    old |= {k: v for k, v in new.items() if k in ("qk_rope_head_dim", "rope_interleave")} | keys
    if family == "gpt_oss":  # its defaults hold the rule
        old |= {"rope_scaling": dict(new["rope_parameters"])}
    for layer in layers or [None]:
        modules = [
            RotaryPositionalEmbedding.from_config(c, layer_type=layer) for c in (config, new, old)
        ]
        for other in modules[1:]:
            assert other.interleaved == modules[0].interleaved
            assert_bits(other.frequencies().inv_freq, modules[0].frequencies().inv_freq)
            assert other.attention_factor == modules[0].attention_factor


def test_gptj():
    """Its table has a fixed length, sin before cos."""
    config = config_of("gptj", n_embd=256, n_head=4, rotary_dim=32, n_positions=512)
    ours = RotaryPositionalEmbedding.from_config(config, precision="float32")
    assert ours.interleaved
    assert ours.dim == 32
    sin, cos = modeling("gptj").create_sinusoidal_positions(512, 32).chunk(2, -1)
    for mine, right in zip(ours.table(512), (cos, sin), strict=True):
        assert_bits(mine, right)


def test_dynamic_ntk_differs_by_the_rounding_of_the_base():
    """transformers computes the grown base in float32 tensors, from a length that is a tensor; here
    it is a Python float. The frequencies differ by less than 1e-6 relative."""
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    config = config_of("llama", rope_scaling=scaling, max_position_embeddings=2048)
    module = modeling("llama").LlamaRotaryEmbedding(config)
    ours = RotaryPositionalEmbedding.from_config(config, precision="float32")
    n = ours.dim // 2
    short, long = torch.arange(100)[None], torch.arange(4096)[None]
    for mine, right in zip(ours.table(short), theirs(module, short, n, None), strict=True):
        assert_bits(mine, right)
    theirs(module, long, n, None)
    torch.testing.assert_close(ours.frequencies(4096).inv_freq, module.inv_freq, rtol=1e-6, atol=0)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_mrope(family):
    prefix = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VLText"}[family]
    section = [24, 20, 20] if family == "qwen3_vl" else [16, 24, 24]
    rule = {"rope_type": "default", "mrope_section": section, "rope_theta": 1e6}
    sizes = {"hidden_size": 512, "num_attention_heads": 4, "head_dim": 128}
    config = transformers.AutoConfig.for_model(
        family, text_config={**sizes, "rope_parameters": rule}
    )
    text = config.text_config
    module = getattr(modeling(family), prefix + "RotaryEmbedding")(text)
    ours = RotaryPositionalEmbedding.from_config(config, precision="float32")
    ids, _ = mrope_position_ids([3, (1, 4, 6), 2], spatial_merge_size=2)
    positions = torch.stack([ids, ids + 1000], 1)
    for mine, right in zip(ours.table(positions), theirs(module, positions, 64, None), strict=True):
        assert_bits(mine, right)


def test_vision_towers():
    positions = torch.stack(torch.meshgrid(torch.arange(5), torch.arange(7), indexing="ij"))
    positions = positions.flatten(1)
    vision = transformers.AutoConfig.for_model("qwen2_vl").vision_config
    module = modeling("qwen2_vl").Qwen2VLVisionRotaryEmbedding(vision)
    dim = 4 * len(module.inv_freq)
    ours = axial_rope_table(5, 7, dim, precision="float32")[:2]
    angle = (positions[..., None].float() * module.inv_freq).transpose(0, 1).flatten(1)
    for mine, right in zip(ours, (angle.cos(), angle.sin()), strict=True):
        assert_bits(mine, right)

    vision = transformers.Llama4VisionConfig(
        image_size=28, patch_size=4, hidden_size=256, num_attention_heads=4
    )
    freqs = modeling("llama4").Llama4VisionRotaryEmbedding._compute_freqs_ci(vision).squeeze(1)
    for mine, right in zip(
        axial_rope_table(7, 7, 64, "llama4", after=1, precision="float32")[:2],
        (freqs.real, freqs.imag),
        strict=True,
    ):
        assert_bits(mine, right.contiguous())


def test_pixtral():
    vision = transformers.PixtralVisionConfig(
        hidden_size=256, num_attention_heads=4, image_size=64, patch_size=8
    )
    module = modeling("pixtral").PixtralVisionRotaryEmbedding(vision)
    positions = axial_positions(5, 7, "pixtral")
    right = module(torch.zeros(1), positions.T)
    for mine, wanted in zip(
        axial_rope_table(5, 7, 64, "pixtral", precision="float32")[:2], right, strict=True
    ):
        assert_bits(mine, _half(wanted, 32))


def test_sam2():
    """Its module takes the positions as its caller orders them: x, then y."""
    config = transformers.Sam2VideoConfig()
    module = modeling("sam2_video").Sam2VideoVisionRotaryEmbedding(config)
    dim = 4 * len(module.inv_freq)
    height, width = 6, 9
    token = torch.arange(height * width)
    right = module(torch.zeros(1), torch.stack([token % width, token // width], -1))
    ours = axial_rope_table(height, width, dim, "sam2", precision="float32")[:2]
    for mine, wanted in zip(ours, right, strict=True):
        assert_bits(mine, wanted[0, :, ::2].contiguous())


def test_dinov3_rounds_coordinates_and_periods_otherwise():
    """DINOv3 computes coordinates in float32 and 1 / 100**k of k = 0, 4/D ..: within 2e-6."""
    module = (
        modeling("dinov3_vit")
        .DINOv3ViTRopePositionEmbedding(
            transformers.DINOv3ViTConfig(hidden_size=256, num_attention_heads=4, patch_size=4)
        )
        .eval()
    )
    right = module(torch.zeros(1, 3, 20, 28))
    ours = axial_rope_table(5, 7, 64, "dinov3", precision="float32")[:2]
    for mine, wanted in zip(ours, right, strict=True):
        torch.testing.assert_close(mine, wanted[:, :32], rtol=0, atol=2e-6)


def test_the_exact_table_is_the_rounded_truth_where_float32_is_not():
    config = config_of("llama", rope_theta=5e5)
    exact = RotaryPositionalEmbedding.from_config(config)
    parity = RotaryPositionalEmbedding.from_config(config, precision="float32")
    positions = torch.tensor([131071])
    right = rope_table(positions, exact.frequencies().inv_freq, dtype=torch.float64)[0]
    assert (exact.table(positions)[0] - right).abs().max() < 6e-8
    assert (parity.table(positions)[0] - right).abs().max() > 1e-4
