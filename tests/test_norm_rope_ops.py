"""The native ops of norm_rope that no row of the PyTorch table reaches: schema, fake tensors,
autograd registration and traced graphs."""

import pytest
import torch
from norm_cases import parameter
from rope_cases import shape, table, uniform

OPS = torch.ops.posenc_ext
ROPE = (*table(8), None, None, None, 1, "bshd", False, False, False)
NORM = (1e-6, 0.5, "layer", "head", "norm_first", "once")


def arguments(name):
    q, k = uniform(shape("bshd")), uniform(shape("bshd", h=1), seed=1)
    weight, bias = parameter(q.shape[-1]), parameter(q.shape[-1], seed=6)
    if name == "qk_norm_rope_":
        return (q, k, weight, None, bias, None, *ROPE, *NORM), {}
    if name == "norm_rope_grad":
        return (q.flip(0), q, weight, bias, True, *ROPE, *NORM), {}
    out = {"out": torch.empty_like(q)} if name == "norm_rope_out" else {}
    return (q, weight, bias, *ROPE, *NORM), out


@pytest.mark.parametrize("name", ["norm_rope_", "qk_norm_rope_", "norm_rope_out", "norm_rope_grad"])
def test_opcheck(name):
    args, kwargs = arguments(name)
    results = torch.library.opcheck(getattr(OPS, name).default, args, kwargs)
    assert set(results.values()) == {"SUCCESS"}


def test_pairs_in_another_order_are_refused():
    args, _ = arguments("norm_rope_")
    at = args.index("bshd")
    args = (*args[: at + 1], False, False, True, *args[at + 4 :])
    with pytest.raises(ValueError, match=r"norm_rope: interleaved_out must equal interleaved"):
        OPS.norm_rope(*args)
