"""The attention modules in small sizes, each with its formula in oracle_attention."""

import numpy as np
import oracle_attention as oracle
import torch

import posenc_ext
from posenc_ext import RotaryPositionalEmbedding

D_MODEL, HEADS, BATCH, LENGTH = 24, 3, 2, 9
DIM = D_MODEL // HEADS


def values(module):
    """Its parameters in float64 arrays."""
    return {k: v.detach().double().numpy() for k, v in module.state_dict().items()}


def shaw(left, right=None, **fixed):
    def make(**options):
        return posenc_ext.RelativeSelfAttention(D_MODEL, HEADS, left, right, **fixed, **options)

    def right_answer(module, x, keep):
        ends = left, left if right is None else right
        return oracle.relative_self_attention(x, values(module), HEADS, *ends, keep)

    return make, right_answer


def bert(form, longest=LENGTH + 3):
    def make(**options):
        return posenc_ext.BertRelativeAttention(D_MODEL, HEADS, longest, form=form, **options)

    def right_answer(module, x, keep):
        return oracle.bert_relative_attention(x, values(module), HEADS, longest, form, keep)

    return make, right_answer


def transformer_xl(convention, clamp_len=None, bias=False):
    def make(**options):
        fixed = {"convention": convention, "clamp_len": clamp_len, "bias": bias}
        return posenc_ext.TransformerXLAttention(D_MODEL, HEADS, **fixed, **options)

    def right_answer(module, x, keep):
        memory, p = x[:, :0], values(module)
        return oracle.transformer_xl_attention(x, memory, p, HEADS, convention, clamp_len, keep)

    return make, right_answer


def deberta(longest, buckets=None, terms=("c2p", "p2c"), share=False):
    def make(**options):
        return posenc_ext.DebertaDisentangledAttention(
            D_MODEL, HEADS, longest, position_buckets=buckets, terms=terms, share_att_key=share,
            **options,
        )  # fmt: skip

    def right_answer(module, x, keep):
        p = values(module)
        table = p["rel_embeddings.weight"]
        return oracle.deberta_attention(
            x, p, HEADS, longest, buckets, terms, share, table, keep
        )  # fmt: skip

    return make, right_answer


def rotary(kv_heads, width=DIM, interleaved=False, rotate_values=False):
    def make(**options):
        rope = RotaryPositionalEmbedding(width, interleaved=interleaved) if width else False
        return posenc_ext.RotaryAttention(
            D_MODEL, HEADS, kv_heads, rotary=rope, rotate_values=rotate_values, **options
        )

    def right_answer(module, x, keep):
        sizes = HEADS, kv_heads, [0] * len(x), width, interleaved, rotate_values
        return oracle.rotary_attention(x, values(module), *sizes, keep)[0]

    return make, right_answer


# name: (make(**options) -> module, right_answer(module, x, keep) -> y)
CASES = {
    "shaw": shaw(3),
    "shaw beyond the length": shaw(LENGTH + 5),
    "shaw nothing to the right": shaw(4, 0),
    "shaw keys, asymmetric": shaw(5, 2, values=False),
    "bert key": bert("relative_key"),
    "bert key query": bert("relative_key_query"),
    "transformer-xl": transformer_xl("concatenated"),
    "transformer-xl clamped": transformer_xl("concatenated", 4),
    "conformer": transformer_xl("interleaved", bias=True),
    "deberta": deberta(6),
    "deberta beyond the length": deberta(LENGTH + 7),
    "deberta buckets": deberta(6, 4),
    "deberta wide buckets": deberta(40, 16),
    "deberta buckets ahead of distances": deberta(LENGTH, LENGTH - 1),
    "deberta c2p": deberta(6, 4, ("c2p",)),
    "deberta p2c, shared": deberta(6, 4, ("p2c",), True),
    "deberta shared": deberta(6, 4, share=True),
    "deberta content only": deberta(6, None, ()),
    "rotary": rotary(HEADS),
    "rotary GQA, interleaved": rotary(1, 4, True),
    "rotary values": rotary(HEADS, interleaved=True, rotate_values=True),
    "no positions": rotary(HEADS, 0),
}


def module_of(name, seed=3, **options):
    torch.manual_seed(seed)
    module = CASES[name][0](**{"dtype": torch.float64} | options)
    with torch.no_grad():  # zeros would hide terms
        for key, p in module.named_parameters():
            if key.startswith("pos_bias"):
                p.normal_()
    return module


def seen(causal, batch=BATCH, length=LENGTH, keys=None, real=None):
    """keep [B, Q, K] for the oracle. real: bool [B, K]."""
    keys = length if keys is None else keys
    keep = np.ones((batch, length, keys), bool)
    if causal:
        keep &= np.tril(keep[0], keys - length)
    return keep if real is None else keep & real.numpy()[:, None, :]


def same(a, b, tolerance=1e-11):
    b = b if isinstance(b, torch.Tensor) else torch.from_numpy(b)
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
