"""Calls of rope and apply_rope that must be refused: how to make and to check them."""

import re

import pytest
import torch
from rope_cases import assert_bits, table, uniform

import posenc_ext

X = uniform((2, 5, 3, 16))


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def per_token(batch=2, length=5, n=8):
    return {"cos": uniform((batch, length, n), seed=1), "sin": uniform((batch, length, n), seed=2)}


def tables(n=8, dtype=torch.float32, length=64):
    return dict(zip(("cos", "sin"), table(n, dtype, length), strict=True))


def packed(*bounds, dtype=torch.int64, **more):
    return {
        "x": uniform((5, 3, 16)),
        "layout": "thd",
        "cu_seqlens": ints(*bounds, dtype=dtype),
        **more,
    }


def x_of(dtype):
    return torch.ones(2, 5, 3, 16, dtype=dtype)


def good(op, changes):
    first = "x" if op == "rope" else "q"
    call = {"x": uniform((2, 5, 3, 16)), **tables(), **changes}
    x = call.pop("x")
    call = {first: x, **call}
    if op == "apply_rope":
        call["k"] = x.detach().clone() if isinstance(x, torch.Tensor) else x
    return call


def refused(op, exception, argument, fragments, call):
    """The text of the refusal, after checking its form and that no argument was written."""
    tensors = [v for v in call.values() if isinstance(v, torch.Tensor)]
    before = [(t.detach().clone(), t._version) for t in tensors]
    with pytest.raises(exception) as caught:
        getattr(posenc_ext, op)(**call)
    text = str(caught.value)
    assert type(caught.value) is exception
    assert re.match(rf"posenc_ext\.{op}: ({argument}) must .+, got .+", text), text
    assert "\n" not in text
    for fragment in fragments:
        assert re.search(
            fragment if "|" in fragment or "\\" in fragment else re.escape(fragment), text
        ), text
    for t, (values, version) in zip(tensors, before, strict=True):
        assert t._version == version
        if t.device.type == "cpu" and t.is_floating_point():
            assert_bits(t.detach(), values)
        elif t.device.type == "cpu":
            assert torch.equal(t, values)
    return text


def on_meta(value):
    """A meta tensor of the same shape, strides, dtype and place in the autograd graph."""
    if not isinstance(value, torch.Tensor):
        return value
    meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    view_of_leaf = value.requires_grad and not value.is_leaf
    meta.requires_grad_(value.requires_grad)
    return meta[:] if view_of_leaf else meta
