"""Every check of norm_rope and qk_norm_rope beside those of rope; nothing is written."""

import pytest
import torch
from rope_cases import uniform
from rope_refusals import on_meta, refused, tables

X, W = uniform((2, 5, 3, 16)), uniform((16,), seed=1)
BF16 = torch.bfloat16

# case: (exception, argument at fault, what the text must contain, what differs from a good call).
CASES = {
    "weight_type": (TypeError, "weight", ["float"], {"weight": 1.0}),
    "weight_dtype": (TypeError, "weight", ["float32", "Half"], {"weight": W.half()}),
    "weight_shape": (ValueError, "weight", ["[D] = [16]", "[15]"], {"weight": W[:15]}),
    "weight_rank": (ValueError, "weight", ["[D] = [16]", "[1, 16]"], {"weight": W[None]}),
    "weight_of_all": (ValueError, "weight", ["[H * D] = [48]", "[16]"], {"norm_dims": "all"}),
    "weight_device": (ValueError, "weight", ["cpu", "meta"], {"weight": W.to("meta")}),
    "bias_shape": (ValueError, "bias", ["[D] = [16]", "[17]"], {"bias": uniform((17,))}),
    "bias_dtype": (TypeError, "bias", ["Double|float64"], {"bias": W.double()}),
    "norm": (ValueError, "norm", ["'rms', 'layer', 'l2'", "'batch'"], {"norm": "batch"}),
    "norm_type": (TypeError, "norm", ["int"], {"norm": 2}),
    "norm_dims": (ValueError, "norm_dims", ["'head', 'all'"], {"norm_dims": "token"}),
    "order": (ValueError, "order", ["'norm_first', 'rope_first'"], {"order": "last"}),
    "rounding": (ValueError, "rounding", ["'once', 'norm', 'transformers'"], {"rounding": "up"}),
    "eps_negative": (ValueError, "eps", ["at least 0", "-1"], {"eps": -1.0}),
    "eps_nan": (ValueError, "eps", ["nan"], {"eps": float("nan")}),
    "eps_type": (TypeError, "eps", ["str"], {"eps": "1e-6"}),
    "offset_infinite": (ValueError, "weight_offset", ["inf"], {"weight_offset": float("inf")}),
    "rank": (ValueError, "x", ["bshd"], {"x": X[0]}),
    "cos_width": (ValueError, "cos", ["R <= D = 16"], tables(9)),
    "position": (IndexError, "cos", ["L = 64"], {"offset": 60}),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals(case):
    exception, argument, fragments, changes = CASES[case]
    call = {"x": X.clone(), "weight": W.clone(), **tables(), **changes}
    texts = [
        refused("norm_rope", exception, argument, fragments, call | more)
        for more in ({}, {"inplace": True}, {"out": torch.empty_like(X)})
    ]
    assert len(set(texts)) == 1
    if case == "weight_device":
        return
    meta = {key: on_meta(value) for key, value in call.items()}
    assert refused("norm_rope", exception, argument, fragments, meta).replace("meta", "cpu")


def test_refusals_of_the_pair():
    good = {
        "q": X.clone(), "k": X[:, :, :1].clone(), "q_weight": W.clone(), "k_weight": None,
        **tables(),
    }  # fmt: skip
    for exception, argument, changes in (
        (ValueError, "k_weight", {"k_weight": W[:3]}),
        (ValueError, "q_bias", {"q_bias": W[:3]}),
        (TypeError, "k_bias", {"k_bias": [1.0]}),
        (TypeError, "k", {"k": X.double()}),
        (ValueError, "k", {"k": X[:1]}),
        (
            ValueError,
            "k_weight",
            {"norm_dims": "all", "q_weight": None, "k_weight": uniform((48,))},
        ),
    ):
        for more in ({}, {"inplace": True}):
            refused("qk_norm_rope", exception, argument, [], good | changes | more)


def test_what_is_written_is_apart():
    memory = uniform((4000,))
    x = memory[: X.numel()].view(X.shape)
    call = {"x": x, "weight": memory[5:21], **tables(), "inplace": True}
    refused("norm_rope", ValueError, "x", ["weight"], call)
    call = {"x": x, "weight": None, "bias": memory[5:21], **tables(), "inplace": True}
    refused("norm_rope", ValueError, "x", ["bias"], call)
    call = {"x": x, "weight": W, **tables(), "out": memory[1 : X.numel() + 1].view(X.shape)}
    refused("norm_rope", ValueError, "out", ["x"], call)
    pair = {"q": x, "k": X.clone(), "q_weight": None, "k_weight": memory[:16], **tables()}
    refused("qk_norm_rope", ValueError, "q", ["k_weight"], {**pair, "inplace": True})
    leaf = X.clone().requires_grad_()
    refused(
        "norm_rope", ValueError, "x", ["leaf"], {**call, "x": leaf, "inplace": True, "out": None}
    )
    refused("norm_rope", ValueError, "out", ["gradient"], {**call, "x": leaf, "out": X.clone()})
    one = {"x": X.clone(), "weight": W, **tables(), "inplace": True, "out": X.clone()}
    refused("norm_rope", ValueError, "out", ["inplace"], one)
