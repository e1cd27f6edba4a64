"""Wrong arguments of the borrowed signatures: the one form of error, never one of torch's own."""

import pytest
import torch
from rope_cases import table, uniform

from posenc_ext.compat import flash_attn, llama, transformers, vllm

COS, SIN = table(8)
WIDE = uniform((1, 5, 8)).repeat(1, 1, 2)
WIDE_ROWS = uniform((9, 8)).repeat(1, 2)
TOKENS = torch.arange(5)


def hugging_face(dtype, rounding, rows):
    tables = {"cos": WIDE_ROWS if rows else WIDE, "sin": WIDE_ROWS if rows else WIDE}
    tensors = {"q": uniform((2, 8, 5, 16)), "k": uniform((2, 2, 5, 16))} | tables
    tensors = {name: t.to(dtype) for name, t in tensors.items()}
    if rows:
        tensors["position_ids"] = TOKENS.expand(2, -1)
    return transformers.apply_rotary_pos_emb, tensors, {"rounding": rounding}


CALLS = {
    f"transformers {dtype} {rounding} {rows}": hugging_face(dtype, rounding, rows)
    for dtype in (torch.float32, torch.bfloat16)
    for rounding in ("once", "transformers")
    for rows in (False, True)
} | {
    "flash_attn": (
        flash_attn.apply_rotary_emb,
        {"x": uniform((2, 5, 4, 16)), "cos": COS, "sin": SIN},
        {},
    ),
    "flash_attn qkv": (
        flash_attn.apply_rotary_emb_qkv_,
        {"qkv": uniform((2, 5, 3, 4, 16)), "cos": COS, "sin": SIN, "cos_k": COS, "sin_k": SIN},
        {},
    ),
    "flash_attn kv": (
        flash_attn.apply_rotary_emb_kv_,
        {"kv": uniform((2, 5, 2, 4, 16)), "cos": COS, "sin": SIN},
        {},
    ),
    "llama": (
        llama.apply_rotary_emb,
        {
            "xq": uniform((2, 5, 4, 16)),
            "xk": uniform((2, 5, 4, 16)),
            "freqs_cis": llama.precompute_freqs_cis(16, 5),
        },
        {},
    ),
    "vllm": (
        vllm.rotary_embedding,
        {
            "positions": TOKENS,
            "query": uniform((5, 64)),
            "key": uniform((5, 32)),
            "cos_sin_cache": WIDE_ROWS,
        },
        {"head_size": 16, "is_neox": True},
    ),
}
WRONG = {
    "number": 3,
    "text": "x",
    "list": [1.0],
    "sparse": uniform((2, 8, 5, 16)).to_sparse(),
    "scalar": torch.tensor(1.0),
    "vector": uniform((3,)),
    "rank 5": uniform((2, 8, 5, 16, 1)),
    "far": torch.full((2, 5), 9),
    "complex": uniform((2, 8, 5, 16)).to(torch.complex64),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_tensor_is_refused_in_the_one_form(call, wrong):
    function, tensors, options = CALLS[call]
    function(**{name: t.clone() for name, t in tensors.items()}, **options)
    for name in tensors:
        spoilt = {n: t.clone() for n, t in tensors.items()} | {name: WRONG[wrong]}
        with pytest.raises(
            (TypeError, ValueError, IndexError, NotImplementedError),
            match=r"^posenc_ext\.\w+: .* must .*, got ",
        ):
            function(**spoilt, **options)


@pytest.mark.parametrize("rounding", ["once", "transformers"])
@pytest.mark.parametrize("dim", [0, 3, -1, 1.5, "x", None, True])
def test_an_axis_of_heads_that_is_none(dim, rounding):
    _, tensors, _ = hugging_face(torch.bfloat16, rounding, False)
    with pytest.raises((TypeError, ValueError), match=r"^posenc_ext\.\w+: unsqueeze_dim must "):
        transformers.apply_rotary_pos_emb(*tensors.values(), dim, rounding=rounding)
