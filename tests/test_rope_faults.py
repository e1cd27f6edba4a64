"""Faults found by attack: wild reads, half-written results, and refusals of the wrong form."""

import numpy as np
import pytest
import torch
from rope_cases import assert_bits, table, uniform
from rope_refusals import good, ints, packed, refused
from torch.autograd import forward_ad

import posenc_ext

SIZE = (2, 5, 3, 16)
OPS = pytest.mark.parametrize("op", ["rope", "apply_rope"])


def wide(device="cpu"):
    """2^62 columns: twice as many is the smallest int64."""
    return torch.ones(1, 1, device=device).expand(1, 2**62)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@OPS
def test_a_table_of_2_to_the_62_columns_is_refused(op, device):
    call = good(op, {"x": torch.ones(1, 1, 1, 16, device=device)})
    call |= {"cos": wide(device), "sin": wide(device)}
    match = rf"^posenc_ext\.{op}: cos must .+ with R <= D = 16, got \[1, {2**62}\]"
    with pytest.raises(ValueError, match=match):
        getattr(posenc_ext, op)(**call)


# ---- Refused before anything is written. ----


def view_without_grad(x):
    with torch.no_grad():
        return x[:2]


VIEWS_THAT_AUTOGRAD_REFUSES = {
    "no_grad": view_without_grad,
    "unbind": lambda x: x.view(2, *SIZE).unbind(0)[0],
    "split": lambda x: x.split(2)[0],
}


@pytest.mark.parametrize("view", VIEWS_THAT_AUTOGRAD_REFUSES)
@pytest.mark.parametrize("place", ["x", "k"])
def test_inplace_of_a_view_that_cannot_get_a_graph_writes_nothing(view, place):
    cos, sin = table(8)
    cos.requires_grad_()  # x and k have no gradient: the tables alone ask for the graph
    base, q = uniform((4, *SIZE[1:])), uniform(SIZE)
    before, q_before = base.clone(), q.clone()
    x = VIEWS_THAT_AUTOGRAD_REFUSES[view](base)
    tensors = (x,) if place == "x" else (q, x)
    op = posenc_ext.rope if place == "x" else posenc_ext.apply_rope
    with pytest.raises((RuntimeError, ValueError), match="view"):
        op(*tensors, cos, sin, inplace=True)
    assert_bits(base, before)
    assert_bits(q.detach(), q_before)
    assert not q.requires_grad


def inferred(value):
    with torch.inference_mode():
        return value.clone()


@pytest.mark.parametrize("what", ["cos", "sin", "positions", "offset", "cu_seqlens"])
@OPS
def test_inplace_with_grad_and_an_inference_tensor_writes_nothing(op, what):
    changes = {
        "positions": {"positions": inferred(ints(0, 1, 2, 3, 4))},
        "offset": {"offset": inferred(ints(0, 1))},
        "cu_seqlens": packed() | {"cu_seqlens": inferred(ints(0, 5))},
    }.get(what, {})
    call = good(op, {**changes, "inplace": True})
    if what in ("cos", "sin"):
        call[what] = inferred(call[what])
    tensors = [name for name in ("x", "q", "k") if name in call]
    for name in tensors:
        call[name] = call[name].clone().requires_grad_() * 1
    before = [call[name].detach().clone() for name in tensors]
    with pytest.raises(ValueError, match=rf"posenc_ext\.{op}: {what} must .*inference"):
        getattr(posenc_ext, op)(**call)
    for name, right in zip(tensors, before, strict=True):
        assert_bits(call[name].detach(), right)


@pytest.mark.parametrize("tables_need_grad", [False, True])
@pytest.mark.parametrize("place", ["x", "out", "k"])
def test_an_inference_tensor_is_not_written_outside_inference_mode(place, tables_need_grad):
    cos, sin = table(8)
    if place != "out":
        cos.requires_grad_(tables_need_grad)
    target = inferred(uniform(SIZE, seed=1))
    x, before = uniform(SIZE), target.clone()
    x_before = x.clone()
    tensors = (x, target) if place == "k" else (target if place == "x" else x,)
    op = posenc_ext.apply_rope if place == "k" else posenc_ext.rope
    where = {"out": target} if place == "out" else {"inplace": True}
    with pytest.raises(ValueError, match=rf"posenc_ext\.\w+: {place} must .*inference"):
        op(*tensors, cos, sin, **where)
    assert_bits(target.clone(), before)
    assert_bits(x.detach(), x_before)


# ---- Tensors without their memory. ----


@pytest.mark.parametrize("bytes_left", [0, 4])
@pytest.mark.parametrize("what", ["x", "cos", "sin", "positions", "offset", "cu_seqlens", "out"])
def test_a_freed_storage_is_refused(what, bytes_left):
    call = good("rope", packed(0, 5, offset=ints(0)) if what == "cu_seqlens" else {})
    call["cos"], call["sin"] = call["cos"].clone(), call["sin"].clone()
    if what == "positions":
        call["positions"] = ints(0, 1, 2, 3, 4)
    if what == "offset":
        call["offset"] = ints(0, 1)
    if what == "out":
        call["out"] = torch.empty_like(call["x"])
    call[what].untyped_storage().resize_(bytes_left)
    with pytest.raises(ValueError, match=rf"^posenc_ext\.rope: {what} must .*storage"):
        posenc_ext.rope(**call)


# ---- Derivatives. ----


def test_forward_mode_through_the_gradient_of_a_table():
    """x and the incoming gradient have no tangent, only cos has: so its gradient has none."""
    cos, sin = table(8)
    cos.requires_grad_()
    x = uniform(SIZE)
    with forward_ad.dual_level():
        y = posenc_ext.rope(x, forward_ad.make_dual(cos, torch.ones_like(cos)), sin)
        (grad,) = torch.autograd.grad(y.sum(), cos)
        tangent = forward_ad.unpack_dual(grad).tangent
    (right,) = torch.autograd.grad(posenc_ext.rope(x, cos, sin).sum(), cos)
    assert_bits(grad, right)
    assert tangent is None or not tangent.any()


@pytest.mark.parametrize("with_tangent", ["q", "k"])
def test_forward_mode_of_one_of_q_and_k(with_tangent):
    cos, sin = table(8)
    x, tangent = uniform(SIZE), uniform(SIZE, seed=1)
    with forward_ad.dual_level():
        inputs = {"q": x, "k": x} | {with_tangent: forward_ad.make_dual(x, tangent)}
        outputs = dict(zip("qk", posenc_ext.apply_rope(**inputs, cos=cos, sin=sin), strict=True))
        tangents = {name: forward_ad.unpack_dual(y).tangent for name, y in outputs.items()}
    assert_bits(tangents.pop(with_tangent), posenc_ext.rope(tangent, cos, sin))
    (other,) = tangents.values()
    assert other is None or not other.any()


def test_out_inside_a_dual_level_that_it_takes_no_part_in():
    cos, sin = table(8)
    x, out = uniform(SIZE), torch.empty(SIZE)
    with forward_ad.dual_level():
        assert posenc_ext.rope(x, cos, sin, out=out) is out
        with pytest.raises(ValueError, match="out must not be given when a gradient is needed"):
            posenc_ext.rope(forward_ad.make_dual(x, x), cos, sin, out=out)
    assert_bits(out, posenc_ext.rope(x, cos, sin))


# ---- Wrong types. ----

NOT_DENSE = {
    "sparse": lambda t: t.to_sparse(),
    "mkldnn": lambda t: t.to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "nested": lambda t: torch.nested.nested_tensor([t]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about quantized and nested tensors
@pytest.mark.parametrize("what", ["x", "cos", "sin"])
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_tensors_that_are_not_dense(kind, what):
    call = good("rope", {})
    call[what] = NOT_DENSE[kind](call[what])
    with pytest.raises(TypeError, match=rf"^posenc_ext\.rope: {what} must be a dense tensor, got "):
        posenc_ext.rope(**call)


@pytest.mark.parametrize("value", ["False", "half", None, np.ones(2)], ids=str)
@pytest.mark.parametrize("flag", ["interleaved", "inverse", "inplace"])
@OPS
def test_flags_must_be_bools(op, flag, value):
    """inplace="False" is true in Python, and would write."""
    refused(op, TypeError, flag, ["bool"], good(op, {flag: value}))


LINEAR = {"rope_type": "linear"}
LONG = {
    "rope_type": "longrope", "long_factor": [1.0] * 8, "factor": 2.0,
    "original_max_position_embeddings": 4,
}  # fmt: skip
BAD_FREQUENCIES = {
    "base": (ValueError, {"base": 10**400}),
    "rope_theta": (ValueError, {"scaling": {"rope_theta": 10**400}}),
    "dim": (ValueError, {"dim": 2**70}),
    "seq_len": (ValueError, {"seq_len": 2**70}),
    "rope_type": (TypeError, {"scaling": {"rope_type": ["linear"]}}),
    "factor": (TypeError, {"scaling": LINEAR | {"factor": "2"}}),
    "factor_list": (TypeError, {"scaling": LINEAR | {"factor": [2.0]}}),
    "factor_bool": (TypeError, {"scaling": LINEAR | {"factor": True}}),
    "attention_factor": (TypeError,
        {"scaling": LONG | {"short_factor": [1.0] * 8, "attention_factor": "1"}}),
    "short_factor": (TypeError, {"scaling": LONG | {"short_factor": 1.0}}),
    "truncate": (TypeError, {"scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": "no",
        "original_max_position_embeddings": 4}}),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FREQUENCIES)
def test_arguments_of_rope_frequencies(case):
    exception, call = BAD_FREQUENCIES[case]
    with pytest.raises(exception, match=r"^posenc_ext\.rope_frequencies: \w+ must .+, got "):
        posenc_ext.rope_frequencies(**({"dim": 16} | call))


def test_a_table_of_2_to_the_70_positions():
    inv_freq = posenc_ext.rope_frequencies(16).inv_freq
    with pytest.raises(ValueError, match=r"^posenc_ext\.rope_table: positions must .+, got "):
        posenc_ext.rope_table(2**70, inv_freq)


def test_out_may_be_x_whatever_the_stride_of_a_single_entry():
    cos, sin = table(8)
    x = uniform((1, *SIZE[1:]))
    right = posenc_ext.rope(x, cos, sin)
    out = x.as_strided(x.shape, (7, *x.stride()[1:]))
    assert_bits(posenc_ext.rope(x, cos, sin, out=out), right)
