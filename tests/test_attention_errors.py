"""Every check of the attention modules: its exception and its text, in the one form."""

import re

import pytest
import torch
from attention_cases import D_MODEL, HEADS

import posenc_ext

F16, I64 = torch.float16, torch.int64
NAMES = {
    "RelativeSelfAttention": (D_MODEL, HEADS, 3),
    "BertRelativeAttention": (D_MODEL, HEADS, 9),
    "TransformerXLAttention": (D_MODEL, HEADS),
    "DebertaDisentangledAttention": (D_MODEL, HEADS, 16),
    "RotaryAttention": (D_MODEL, HEADS),
}
every = pytest.mark.parametrize("name", NAMES)
SHAW, BERT, XL, DEBERTA, ROTARY = NAMES
EMBEDDING = "RelativePositionalEmbedding"
X = torch.zeros(2, 4, D_MODEL)
KEYS = torch.zeros(2, HEADS, 2, D_MODEL // HEADS)
PAIR = (KEYS, KEYS)


def refused(exception, op, argument, call, *parts):
    with pytest.raises(exception) as caught:
        call()
    text = str(caught.value)
    assert re.fullmatch(rf"posenc_ext\.{op}: {argument} must .+, got .+", text, re.DOTALL), text
    for part in parts:
        assert part in text, text


def make(name, *sizes, **options):
    return getattr(posenc_ext, name)(*(sizes or NAMES.get(name, ())), **options)


# fmt: off
# case: (exception, argument, what differs from a good construction, what the text must contain)
SHARED_OPTIONS = {
    "d_model_zero": (ValueError, "d_model", (0, 1), {}, ["0"]),
    "d_model_float": (TypeError, "d_model", (12.0, 3), {}, ["float"]),
    "d_model_bool": (TypeError, "d_model", (True, 1), {}, ["bool"]),
    "heads_zero": (ValueError, "num_heads", (12, 0), {}, ["0"]),
    "heads_text": (TypeError, "num_heads", (12, "3"), {}, ["str"]),
    "heads_odd": (ValueError, "d_model", (12, 5), {}, ["5", "12"]),
    "dropout_big": (ValueError, "dropout", (12, 3), {"dropout": 1.5}, ["1.5"]),
    "dropout_nan": (ValueError, "dropout", (12, 3), {"dropout": float("nan")}, ["nan"]),
    "dropout_text": (TypeError, "dropout", (12, 3), {"dropout": "0.1"}, ["str"]),
}
WIDE = posenc_ext.RotaryPositionalEmbedding(64)
OTHER_LAYOUT = posenc_ext.RotaryPositionalEmbedding(4, layout="bhsd")
OWN_OPTIONS = {
    "left_negative": (SHAW, ValueError, "left", (12, 3, -1), {}, ["-1"]),
    "left_float": (SHAW, TypeError, "left", (12, 3, 2.0), {}, ["float"]),
    "right_negative": (SHAW, ValueError, "right", (12, 3, 2, -2), {}, ["-2"]),
    "embedding_dim": (EMBEDDING, ValueError, "dim", (0, 3), {}, ["0"]),
    "embedding_left": (EMBEDDING, ValueError, "left", (8, -3), {}, ["-3"]),
    "embedding_right": (EMBEDDING, TypeError, "right", (8, 3, "2"), {}, ["str"]),
    "bert_positions": (BERT, ValueError, "max_positions", (12, 3, 0), {}, ["0"]),
    "bert_form": (BERT, ValueError, "form", (12, 3, 9), {"form": "absolute"},
        ["relative_key", "'absolute'"]),
    "xl_clamp": (XL, ValueError, "clamp_len", (12, 3), {"clamp_len": 0}, ["0"]),
    "xl_convention": (XL, ValueError, "convention", (12, 3), {"convention": "xl"}, ["'xl'"]),
    "xl_bias_type": (XL, TypeError, "pos_bias_u", (12, 3), {"pos_bias_u": torch.zeros(3, 4)},
        ["Tensor"]),
    "xl_bias_shape": (XL, ValueError, "pos_bias_v", (12, 3),
        {"pos_bias_v": torch.nn.Parameter(torch.zeros(4, 3))}, ["[3, 4]", "[4, 3]"]),
    "deberta_positions": (DEBERTA, ValueError, "max_relative_positions", (12, 3, -1), {}, ["-1"]),
    "deberta_buckets_negative": (DEBERTA, ValueError, "position_buckets", (12, 3, 16),
        {"position_buckets": -1}, ["-1"]),
    "deberta_buckets_few": (DEBERTA, ValueError, "position_buckets", (12, 3, 16),
        {"position_buckets": 3}, ["3"]),
    "deberta_buckets_many": (DEBERTA, ValueError, "position_buckets", (12, 3, 16),
        {"position_buckets": 30}, ["15", "30"]),
    "deberta_terms": (DEBERTA, ValueError, "terms", (12, 3, 16), {"terms": ("c2p", "p2p")},
        ["c2p", "p2p"]),
    "deberta_terms_text": (DEBERTA, ValueError, "terms", (12, 3, 16), {"terms": "c2p|p2c"},
        ["c2p|p2c"]),
    "deberta_norm": (DEBERTA, ValueError, "norm_rel_ebd", (12, 3, 16),
        {"shared_table": True, "norm_rel_ebd": True}, ["shared_table"]),
    "deberta_dropout": (DEBERTA, ValueError, "position_dropout", (12, 3, 16),
        {"position_dropout": -0.1}, ["-0.1"]),
    "kv_heads": (ROTARY, ValueError, "num_kv_heads", (12, 3, 2), {}, ["3", "2"]),
    "kv_heads_zero": (ROTARY, ValueError, "num_kv_heads", (12, 3, 0), {}, ["0"]),
    "rotary_type": (ROTARY, TypeError, "rotary", (12, 3), {"rotary": 10000.0}, ["float"]),
    "rotary_layout": (ROTARY, ValueError, "rotary", (12, 3), {"rotary": OTHER_LAYOUT},
        ["bshd", "bhsd"]),
    "rotary_width": (ROTARY, ValueError, "rotary", (12, 3), {"rotary": WIDE}, ["4", "64"]),
    "rotary_odd": (ROTARY, ValueError, "d_model / num_heads", (15, 5), {}, ["even", "3"]),
    "rotary_values": (ROTARY, ValueError, "rotate_values", (12, 3),
        {"rotary": False, "rotate_values": True}, ["True"]),
}
# case: (exception, argument, what is given to forward, what the text must contain)
SHARED_CALLS = {
    "x_list": (TypeError, "x", {"x": [1.0]}, ["list"]),
    "x_int": (TypeError, "x", {"x": X.to(I64)}, ["int64"]),
    "x_2d": (ValueError, "x", {"x": X[0]}, ["[B, S, d_model]", "[4, 24]"]),
    "x_width": (ValueError, "x", {"x": X[..., :-1]}, ["d_model = 24", "23"]),
    "padding_list": (TypeError, "key_padding_mask", {"key_padding_mask": [True]}, ["list"]),
    "padding_int": (TypeError, "key_padding_mask",
        {"key_padding_mask": torch.ones(2, 4, dtype=I64)}, ["int64", "True = keep"]),
    "padding_shape": (ValueError, "key_padding_mask",
        {"key_padding_mask": torch.ones(2, 5).bool()}, ["[2, 4]", "[2, 5]"]),
    "mask_list": (TypeError, "attn_mask", {"attn_mask": [[True]]}, ["list"]),
    "mask_int": (TypeError, "attn_mask", {"attn_mask": torch.ones(4, 4, dtype=I64)}, ["int64"]),
    "mask_shape": (ValueError, "attn_mask", {"attn_mask": torch.ones(4, 5).bool()},
        ["[2, 3, 4, 4]", "[4, 5]"]),
    "padding_device": (ValueError, "key_padding_mask",
        {"key_padding_mask": torch.ones(2, 4, device="meta").bool()}, ["of x (cpu)", "meta"]),
    "mask_device": (ValueError, "attn_mask", {"attn_mask": torch.ones(4, 4, device="meta")},
        ["of x (cpu)", "meta"]),
    "mask_5d": (ValueError, "attn_mask", {"attn_mask": torch.ones(1, 1, 1, 4, 4)},
        ["[1, 1, 1, 4, 4]"]),
}
OWN_CALLS = {
    "bert_long": (BERT, ValueError, "x", {"x": torch.zeros(2, 10, D_MODEL)}, ["9", "10"]),
    "memory_list": (XL, TypeError, "memory", {"memory": [X]}, ["list"]),
    "memory_width": (XL, ValueError, "memory", {"memory": X[..., :-1]}, ["[2, 4, 23]"]),
    "memory_batch": (XL, ValueError, "memory", {"memory": X[:1]}, ["B = 2", "[1, 4, 24]"]),
    "memory_dtype": (XL, ValueError, "memory", {"memory": X.double()}, ["float64"]),
    "memory_device": (XL, ValueError, "memory", {"memory": X.to("meta")}, ["cpu", "meta"]),
    "memory_mask": (XL, ValueError, "key_padding_mask",
        {"memory": X, "key_padding_mask": torch.ones(2, 4).bool()}, ["[2, 8]", "[2, 4]"]),
    "offset_text": (ROTARY, TypeError, "offset", {"offset": "1"}, ["str"]),
    "offset_float": (ROTARY, TypeError, "offset", {"offset": torch.zeros(2)}, ["float32"]),
    "offset_shape": (ROTARY, ValueError, "offset", {"offset": torch.zeros(3, dtype=I64)},
        ["[2]", "[3]"]),
    "table_own": (DEBERTA, ValueError, "rel_embeddings", {"rel_embeddings": X[0]}, ["Tensor"]),
}
for name in (SHAW, ROTARY):
    OWN_CALLS |= {
        f"past_{name}": (name, TypeError, "past", {"past": KEYS}, ["Tensor"]),
        f"past_none_{name}": (name, TypeError, "past", {"past": (KEYS, None)}, ["tuple"]),
        f"past_3d_{name}": (name, ValueError, "past", {"past": (KEYS[0], KEYS[0])},
            ["[B, H, K - S, D]"]),
        f"past_one_{name}": (name, ValueError, "past", {"past": (KEYS,)}, ["[2, 3, 2, 8]"]),
        f"past_empty_{name}": (name, ValueError, "past", {"past": ()}, ["[]"]),
        f"past_heads_{name}": (name, ValueError, "past", {"past": (KEYS[:, :2], KEYS[:, :2])},
            ["[2, 2, 2, 8]"]),
        f"past_lengths_{name}": (name, ValueError, "past", {"past": (KEYS, KEYS[:, :, :1])},
            ["[2, 3, 1, 8]"]),
        f"past_dtype_{name}": (name, TypeError, "past", {"past": (KEYS.to(F16), KEYS.to(F16))},
            ["float16", "float32"]),
        f"past_device_{name}": (name, ValueError, "past",
            {"past": (KEYS.to("meta"), KEYS.to("meta"))}, ["of x (cpu)", "meta"]),
        f"past_dtypes_{name}": (name, TypeError, "past", {"past": (KEYS, KEYS.to(F16))},
            ["got torch.float32 and torch.float16"]),
        f"past_mask_{name}": (name, ValueError, "key_padding_mask",
            {"past": PAIR, "key_padding_mask": torch.ones(2, 4).bool()}, ["[2, 6]", "[2, 4]"]),
    }
# fmt: on


@every
@pytest.mark.parametrize("case", SHARED_OPTIONS)
def test_shared_options(case, name):
    exception, argument, sizes, options, parts = SHARED_OPTIONS[case]
    sizes += NAMES[name][2:]
    refused(exception, name, argument, lambda: make(name, *sizes, **options), *parts)


@pytest.mark.parametrize("case", OWN_OPTIONS)
def test_own_options(case):
    name, exception, argument, sizes, options, parts = OWN_OPTIONS[case]
    # The distances belong to the embedding, which names itself.
    op = EMBEDDING if name == SHAW else name
    refused(exception, op, argument, lambda: make(name, *sizes, **options), *parts)


@every
@pytest.mark.parametrize("case", SHARED_CALLS)
def test_shared_arguments(case, name):
    exception, argument, given, parts = SHARED_CALLS[case]
    module, given = make(name), {"x": X} | given
    refused(exception, name, argument, lambda: module(**given), *parts)
    assert module(X).shape == X.shape


@pytest.mark.parametrize("case", OWN_CALLS)
def test_own_arguments(case):
    name, exception, argument, given, parts = OWN_CALLS[case]
    module, given = make(name), {"x": X} | given
    refused(exception, name, argument, lambda: module(**given), *parts)


def test_deberta_with_the_table_of_the_model():
    module = make(DEBERTA, shared_table=True)
    for exception, given, part in (
        (TypeError, None, "NoneType"),
        (ValueError, torch.zeros(32, 5), "d_model = 24"),
        (ValueError, torch.zeros(31, D_MODEL), "2 * span = 32"),
        (TypeError, torch.zeros(32, D_MODEL, dtype=I64), "int64"),
    ):
        call = {"x": X, "rel_embeddings": given}
        refused(exception, DEBERTA, "rel_embeddings", lambda call=call: module(**call), part)
    assert module(X, rel_embeddings=torch.zeros(32, D_MODEL)).shape == X.shape


def test_embedding():
    embedding = posenc_ext.RelativePositionalEmbedding(8, 2)
    q, weights = torch.zeros(3, 8), torch.zeros(3, 5)
    for exception, argument, call, part in (
        (TypeError, "q", lambda: embedding([1.0]), "list"),
        (TypeError, "q", lambda: embedding(q.to(I64)), "int64"),
        (ValueError, "q", lambda: embedding(q[0]), "[..., Q, D]"),
        (ValueError, "q", lambda: embedding(q[:, :7]), "D = 8"),
        (TypeError, "k_len", lambda: embedding(q, 3.0), "float"),
        (ValueError, "k_len", lambda: embedding(q, 2), "Q = 3"),
        (TypeError, "weights", lambda: embedding.values(1.0), "float"),
        (ValueError, "weights", lambda: embedding.values(weights[0]), "[..., Q, K]"),
        (ValueError, "weights", lambda: embedding.values(weights[:, :2]), "[3, 2]"),
    ):
        refused(exception, EMBEDDING, argument, call, part)
    assert embedding(q, 5).shape == weights.shape
    assert embedding.values(weights).shape == q.shape
