"""The native ops of norm_rope that no row of the PyTorch table reaches: schema, fake tensors,
autograd registration and traced graphs."""

import pytest
import torch
from norm_cases import parameter
from rope_cases import assert_bits, shape, table, uniform

from posenc_ext._native import _C

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


def test_short_calls_are_those_of_the_ops():
    """And are left to the long way where there is more to do than to call the op."""
    q, k, weight = uniform(shape("bshd")), uniform(shape("bshd", h=1)), parameter(40)
    rows = (*ROPE[:2], "bshd", None, 1, None, False, False, False)

    def one(x=q, weight=weight, norm=NORM, out=None):
        return _C.norm_rope(x, weight, None, *rows, *norm, out)

    def pair(q=q, k=k, weight=weight, norm=NORM):
        return _C.qk_norm_rope(q, k, weight, None, None, None, *rows, *norm)

    assert_bits(one(), OPS.norm_rope(q, weight, None, *ROPE, *NORM))
    rights = OPS.qk_norm_rope(q, k, weight, None, None, None, *ROPE, *NORM)
    for given, right in zip(pair(), rights, strict=True):
        assert_bits(given, right)
    trained = weight.clone().requires_grad_()
    for changed in (
        {"weight": trained}, {"weight": 1.0}, {"norm": (1, *NORM[1:])},
        {"norm": (float("nan"), *NORM[1:])}, {"norm": (*NORM[:2], None, *NORM[3:])},
    ):  # fmt: skip
        assert one(**changed) is None
        assert pair(**changed) is None
    assert one(x=q.clone().requires_grad_()) is None
    assert one(out=torch.empty_like(q)) is None
    with torch.no_grad():
        assert one(weight=trained) is not None
