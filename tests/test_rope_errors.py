"""Every check of rope and apply_rope: its exception, its text in the one form, and that nothing was written."""

import re

import posenc_ext
import pytest
import torch
from rope_cases import assert_bits, odd_offset, table, uniform

I32, I64 = torch.int32, torch.int64


def ints(*values, dtype=I64):
    return torch.tensor(values, dtype=dtype)


def per_token(batch=2, length=5, n=8):
    return {"cos": uniform((batch, length, n), seed=1), "sin": uniform((batch, length, n), seed=2)}


def tables(n=8, dtype=torch.float32, length=64):
    return dict(zip(("cos", "sin"), table(n, dtype, length)))


def packed(*bounds, dtype=I64, **more):
    return {
        "x": uniform((5, 3, 16)),
        "layout": "thd",
        "cu_seqlens": ints(*bounds, dtype=dtype),
        **more,
    }


def x_of(dtype):
    return torch.ones(2, 5, 3, 16, dtype=dtype)


# case: (exception, argument at fault, what the text must contain, what differs from a good call).
# The good call: x float32 [2, 5, 3, 16] as "bshd", cos and sin float32 [64, 8].
SHAPES = {
    "layout_unknown": (ValueError, "layout", ["bhds", "bshd"], {"layout": "bhds"}),
    "layout_empty": (ValueError, "layout", [], {"layout": ""}),
    "layout_upper_case": (ValueError, "layout", ["BSHD"], {"layout": "BSHD"}),
    "layout_not_a_string": (TypeError, "layout", [], {"layout": 4}),
    "rank_3": (ValueError, "x", ["bshd", "[5, 3, 16]"], {"x": uniform((5, 3, 16))}),
    "rank_5": (ValueError, "x", ["[1, 2, 5, 3, 16]"], {"x": uniform((1, 2, 5, 3, 16))}),
    "rank_1": (ValueError, "x", ["sd", "[16]"], {"x": uniform((16,)), "layout": "sd"}),
    "rank_4_for_thd": (ValueError, "x", ["thd", "[2, 5, 3, 16]"], {"layout": "thd"}),
    "x_not_a_tensor": (TypeError, "x", ["list"], {"x": [1.0]}),
    "x_int": (TypeError, "x", ["int64|Long"], {"x": x_of(I64)}),
    "x_bool": (TypeError, "x", ["bool|Bool"], {"x": x_of(torch.bool)}),
    "x_complex": (TypeError, "x", ["complex|Complex"], {"x": x_of(torch.complex64)}),
    "cos_1d": (
        ValueError,
        "cos",
        [r"\[L, R/2\]", r"\[8\]"],
        {"cos": uniform((8,)), "sin": uniform((8,))},
    ),
    "cos_4d": (ValueError, "cos", [], {"cos": uniform((2, 5, 1, 8)), "sin": uniform((2, 5, 1, 8))}),
    "cos_full_width": (
        ValueError,
        "cos",
        [r"cos\[\.\.\., :R/2\]", "16", r"\[64, 16\]"],
        tables(16),
    ),
    "cos_one_too_wide": (ValueError, "cos", ["16", r"\[64, 9\]"], tables(9)),
    "cos_int": (
        TypeError,
        "cos",
        [],
        {"cos": torch.ones(64, 8, dtype=I64), "sin": torch.ones(64, 8, dtype=I64)},
    ),
    "cos_double": (
        TypeError,
        "cos",
        ["float64|Double|double", "float32|Float|float"],
        tables(8, torch.float64),
    ),
    "cos_half": (TypeError, "cos", ["bfloat16|BFloat16"], tables(8, torch.bfloat16)),
    "cos_other_half": (
        TypeError,
        "cos",
        [],
        {"x": x_of(torch.bfloat16), **tables(8, torch.float16)},
    ),
    "cos_double_for_half": (
        TypeError,
        "cos",
        [],
        {"x": x_of(torch.float16), **tables(8, torch.float64)},
    ),
    "cos_not_a_tensor": (TypeError, "cos", [], {"cos": [1.0]}),
    "sin_not_a_tensor": (TypeError, "sin", [], {"sin": 1.0}),
    "sin_missing": (TypeError, "sin", [], {"sin": None}),
    "sin_shape": (ValueError, "sin", [r"\[64, 8\]", r"\[63, 8\]"], {"sin": uniform((63, 8))}),
    "sin_width": (ValueError, "sin", [r"\[64, 8\]", r"\[64, 7\]"], {"sin": uniform((64, 7))}),
    "sin_dtype": (TypeError, "sin", [], {"sin": torch.ones(64, 8, dtype=torch.bfloat16)}),
    "sin_complex": (TypeError, "sin", [], {"sin": torch.ones(64, 8, dtype=torch.complex64)}),
    "complex_with_sin": (ValueError, "sin", [], {"cos": table(8, torch.complex64)[0]}),
    "complex_double": (TypeError, "cos", [], {"cos": table(8, torch.complex128)[0], "sin": None}),
    "complex_wide": (ValueError, "cos", [], {"cos": table(9, torch.complex64)[0], "sin": None}),
    "per_token_batch": (ValueError, "cos", [r"\[3, 5, 8\]"], per_token(batch=3)),
    "per_token_length": (ValueError, "cos", [r"\[2, 4, 8\]"], per_token(length=4)),
    "per_token_longer": (ValueError, "cos", [r"\[2, 6, 8\]"], per_token(length=6)),
    "per_token_no_batch": (
        ValueError,
        "cos",
        [],
        {"x": uniform((5, 3, 16)), "layout": "thd", **per_token()},
    ),
    "per_token_positions": (
        ValueError,
        "positions",
        [],
        {**per_token(), "positions": torch.arange(5)},
    ),
    "per_token_offset": (ValueError, "offset", [], {**per_token(), "offset": 1}),
    "per_token_offsets": (ValueError, "offset", [], {**per_token(), "offset": ints(1, 1)}),
    "per_token_cu_seqlens": (ValueError, "cu_seqlens", [], packed(0, 5, **per_token(1))),
    "positions_list": (TypeError, "positions", [], {"positions": [0, 1, 2, 3, 4]}),
    "positions_float": (TypeError, "positions", [], {"positions": torch.arange(5.0)}),
    "positions_int16": (
        TypeError,
        "positions",
        [],
        {"positions": ints(0, 1, 2, 3, 4, dtype=torch.int16)},
    ),
    "positions_bool": (TypeError, "positions", [], {"positions": torch.ones(5, dtype=torch.bool)}),
    "positions_length": (ValueError, "positions", [r"\[4\]"], {"positions": torch.arange(4)}),
    "positions_batch": (
        ValueError,
        "positions",
        [r"\[3, 5\]"],
        {"positions": torch.zeros(3, 5, dtype=I64)},
    ),
    "positions_0d": (ValueError, "positions", [], {"positions": torch.tensor(1)}),
    "positions_3d": (ValueError, "positions", [], {"positions": torch.zeros(1, 2, 5, dtype=I64)}),
    "positions_transposed": (
        ValueError,
        "positions",
        [],
        {"positions": torch.zeros(5, 2, dtype=I64)},
    ),
    "positions_and_offset": (
        ValueError,
        "positions|offset",
        [],
        {"positions": torch.arange(5), "offset": 1},
    ),
    "positions_and_offsets": (
        ValueError,
        "positions|offset",
        [],
        {"positions": torch.arange(5), "offset": ints(0, 0)},
    ),
    "positions_and_cu_seqlens": (
        ValueError,
        "positions|cu_seqlens",
        [],
        packed(0, 5, positions=torch.arange(5)),
    ),
    "offset_float": (TypeError, "offset", [], {"offset": 1.0}),
    "offset_none": (TypeError, "offset", [], {"offset": None}),
    "offset_negative": (IndexError, "offset", ["-1", "64"], {"offset": -1}),
    "offset_past_the_end": (IndexError, "offset", ["60", "64"], {"offset": 60}),
    "offset_huge": (IndexError, "offset", [str(2**63 - 1)], {"offset": 2**63 - 1}),
    "offset_very_negative": (IndexError, "offset", [], {"offset": -(2**63)}),
    "offsets_float": (TypeError, "offset", [], {"offset": torch.ones(2)}),
    "offsets_shape": (ValueError, "offset", [r"\[3\]"], {"offset": ints(0, 0, 0)}),
    "offsets_one_for_two": (ValueError, "offset", [r"\[1\]"], {"offset": ints(0)}),
    "offsets_2d": (ValueError, "offset", [], {"offset": torch.zeros(2, 1, dtype=I64)}),
    "table_too_short": (IndexError, "cos|offset", ["4", "5"], tables(length=4)),
    "table_empty": (IndexError, "cos|offset", [], tables(length=0)),
    "cu_seqlens_layout": (ValueError, "cu_seqlens", ["thd", "bshd"], {"cu_seqlens": ints(0, 5)}),
    "cu_seqlens_list": (TypeError, "cu_seqlens", [], packed(0) | {"cu_seqlens": [0, 5]}),
    "cu_seqlens_float": (
        TypeError,
        "cu_seqlens",
        [],
        packed(0, 5) | {"cu_seqlens": torch.tensor([0.0, 5.0])},
    ),
    "cu_seqlens_2d": (
        ValueError,
        "cu_seqlens",
        [],
        packed(0, 5) | {"cu_seqlens": ints(0, 5)[None]},
    ),
    "cu_seqlens_none_at_all": (ValueError, "cu_seqlens", [], packed()),
    "cu_seqlens_offsets": (ValueError, "offset", [r"\[3\]"], packed(0, 2, 5, offset=ints(0, 0, 0))),
    "inplace_expanded": (
        ValueError,
        "x",
        [],
        {"x": uniform((1, 5, 3, 16)).expand(2, 5, 3, 16), "inplace": True},
    ),
    "inplace_leaf": (
        ValueError,
        "x",
        [],
        {"x": uniform((2, 5, 3, 16)).requires_grad_(), "inplace": True},
    ),
    "inplace_view_of_leaf": (
        ValueError,
        "x",
        [],
        {"x": uniform((1, 5, 3, 16)).requires_grad_()[:], "inplace": True},
    ),
}

# What only the values or the addresses of tensors tell; a meta tensor has neither.
VALUES = {
    "positions_negative": (
        IndexError,
        "positions",
        ["-1", "64"],
        {"positions": ints(0, 1, -1, 3, 4)},
    ),
    "positions_past_the_end": (
        IndexError,
        "positions",
        ["64"],
        {"positions": ints(0, 1, 2, 63, 64)},
    ),
    "positions_2**31": (
        IndexError,
        "positions",
        [str(2**31)],
        {"positions": ints(0, 1, 2, 3, 2**31)},
    ),
    "positions_2**40": (
        IndexError,
        "positions",
        [str(2**40)],
        {"positions": ints(2**40, 1, 2, 3, 4)},
    ),
    "positions_2**63": (IndexError, "positions", [], {"positions": ints(0, 1, -(2**63), 3, 4)}),
    "positions_int32": (
        IndexError,
        "positions",
        ["-1"],
        {"positions": ints(-1, 0, 1, 2, 3, dtype=I32)},
    ),
    "positions_in_batch_1": (
        IndexError,
        "positions",
        ["99"],
        {"positions": torch.stack([ints(1), ints(99)]).expand(2, 5)},
    ),
    "offsets_negative": (IndexError, "offset", ["-1"], {"offset": ints(0, -1)}),
    "offsets_past_the_end": (IndexError, "offset", ["60"], {"offset": ints(0, 60)}),
    "offsets_huge": (IndexError, "offset", [], {"offset": ints(2**63 - 1, 0)}),
    "offsets_0d": (IndexError, "offset", ["60"], {"offset": torch.tensor(60, dtype=I32)}),
    "cu_seqlens_start": (ValueError, "cu_seqlens", ["1"], packed(1, 5)),
    "cu_seqlens_decreases": (ValueError, "cu_seqlens", [], packed(0, 4, 3, 5)),
    "cu_seqlens_negative": (ValueError, "cu_seqlens", [], packed(0, -3, 5, dtype=I32)),
    "cu_seqlens_jumps_out": (ValueError, "cu_seqlens", [], packed(0, 2**40, 5)),
    "cu_seqlens_end": (ValueError, "cu_seqlens", ["4", "5"], packed(0, 4)),
    "cu_seqlens_past_the_end": (ValueError, "cu_seqlens", ["6", "5"], packed(0, 6)),
    "cu_seqlens_only_zero": (ValueError, "cu_seqlens", [], packed(0)),
    "cu_seqlens_too_long": (
        IndexError,
        "cos|cu_seqlens",
        ["3"],
        packed(0, 1, 5, **tables(length=3)),
    ),
    "cu_seqlens_offset": (IndexError, "offset|cu_seqlens", [], packed(0, 2, 5, offset=62)),
    "cu_seqlens_offsets_value": (
        IndexError,
        "offset|cu_seqlens",
        [],
        packed(0, 2, 5, offset=ints(0, 62)),
    ),
}


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
    for t, (values, version) in zip(tensors, before):
        assert t._version == version
        if t.device.type == "cpu" and t.is_floating_point():
            assert_bits(t.detach(), values)
        elif t.device.type == "cpu":
            assert torch.equal(t, values)
    return text


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("op", ["rope", "apply_rope"])
@pytest.mark.parametrize("case", SHAPES | VALUES)
def test_refusals(case, op, inplace):
    exception, argument, fragments, changes = (SHAPES | VALUES)[case]
    if op == "apply_rope":
        argument = re.sub(r"\bx\b", "q", argument)
    refused(op, exception, argument, fragments, good(op, {"inplace": inplace, **changes}))


@pytest.mark.parametrize("op", ["rope", "apply_rope"])
@pytest.mark.parametrize("case", SHAPES)
def test_meta_tensors_give_the_same_text(case, op):
    exception, argument, _, changes = SHAPES[case]
    if op == "apply_rope":
        argument = re.sub(r"\bx\b", "q", argument)
    call = good(op, changes)
    meta = {}
    for key, value in call.items():
        moved = isinstance(value, torch.Tensor)
        meta[key] = (
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            if moved
            else value
        )
        if moved and value.requires_grad:
            meta[key].requires_grad_()
    texts = [refused(op, exception, argument, [], c) for c in (call, meta)]
    assert texts[0] == texts[1]


def out_like(x, **changes):
    return {"x": x, "out": torch.empty_like(x, **changes)}


def overlapping_out():
    buffer = uniform((2 * 5 * 3 * 16 + 16,))
    return {"x": buffer[16:].view(2, 5, 3, 16), "out": buffer[:-16].view(2, 5, 3, 16)}


def out_over_table():
    cos = torch.empty(64, 8).copy_(tables()["cos"])
    return {"cos": cos, "out": cos.view(-1)[:480].view(2, 5, 3, 16)}


def inplace_over_table():
    cos = torch.empty(64, 8).copy_(tables()["cos"])
    return {"cos": cos, "x": cos.view(-1)[:480].view(2, 5, 3, 16), "inplace": True}


X = uniform((2, 5, 3, 16))
OUT = {
    "shape": (
        ValueError,
        "out",
        ["[2, 5, 3, 16]", "[2, 5, 3, 15]"],
        {"out": torch.empty(2, 5, 3, 15)},
    ),
    "rank": (ValueError, "out", [], {"out": torch.empty(480)}),
    "dtype": (TypeError, "out", ["float64|Double|double"], out_like(X, dtype=torch.float64)),
    "device": (ValueError, "out", ["meta", "cpu"], out_like(X, device="meta")),
    "type": (TypeError, "out", [], {"out": [1.0]}),
    "expanded": (ValueError, "out", [], {"out": torch.empty(1, 5, 3, 16).expand(2, 5, 3, 16)}),
    "overlap": (ValueError, "out", [], overlapping_out()),
    "overlap_table": (ValueError, "out", ["cos"], out_over_table()),
    "transposed_x": (
        ValueError,
        "out",
        [],
        {"x": (t := torch.ones(3, 3, 3, 16)), "out": t.transpose(1, 2)},
    ),
    "inplace": (ValueError, "out|inplace", [], {"out": torch.empty_like(X), "inplace": True}),
    "x_grad": (
        ValueError,
        "out",
        [],
        {"x": uniform(X.shape).requires_grad_(), "out": torch.empty_like(X)},
    ),
    "cos_grad": (
        ValueError,
        "out",
        [],
        {"cos": tables()["cos"].requires_grad_(), "out": torch.empty_like(X)},
    ),
    "out_grad": (ValueError, "out", [], {"out": torch.empty_like(X, requires_grad=True)}),
    "inplace_over_table": (ValueError, "x", ["cos"], inplace_over_table()),
}


@pytest.mark.parametrize("case", OUT)
def test_out(case):
    exception, argument, fragments, changes = OUT[case]
    refused("rope", exception, argument, fragments, good("rope", changes))


def misaligned():
    return odd_offset(uniform((2, 5, 3, 16), seed=1))


SHARED = uniform((2, 5, 4, 16))
BOTH = {
    "k_type": (TypeError, "k", [], {"k": 3}),
    "k_rank": (ValueError, "k", ["[5, 3, 16]"], {"k": uniform((5, 3, 16))}),
    "k_dtype": (
        TypeError,
        "k",
        ["float64|Double|double", "float32|Float|float"],
        {"k": uniform((2, 5, 3, 16), torch.float64)},
    ),
    "k_device": (ValueError, "k", ["cpu", "meta"], {"k": X.to("meta")}),
    "k_batch": (ValueError, "k", ["[2, 5, 3, 16]", "[3, 5, 3, 16]"], {"k": uniform((3, 5, 3, 16))}),
    "k_batch_1": (ValueError, "k", [], {"k": uniform((1, 5, 3, 16))}),
    "k_width": (ValueError, "k", ["16", "18"], {"k": uniform((2, 5, 3, 18))}),
    "lengths_positions": (
        ValueError,
        "k",
        [],
        {"k": uniform((2, 6, 3, 16)), "positions": torch.arange(5)},
    ),
    "lengths_per_token": (ValueError, "k", [], {"k": uniform((2, 6, 3, 16)), **per_token()}),
    "lengths_packed": (ValueError, "k", [], {**packed(0, 5), "k": uniform((6, 3, 16))}),
    "k_past_the_table": (
        IndexError,
        "cos|offset",
        ["64"],
        {"k": uniform((2, 9, 3, 16)), "offset": 58},
    ),
    "k_expanded": (
        ValueError,
        "k",
        [],
        {"k": uniform((2, 5, 1, 16)).expand(2, 5, 3, 16), "inplace": True},
    ),
    "k_leaf": (ValueError, "k", [], {"k": misaligned().requires_grad_(), "inplace": True}),
    "k_is_q": (ValueError, "k", ["q"], {"x": SHARED, "k": SHARED, "inplace": True}),
    "k_shares_a_head": (
        ValueError,
        "k",
        [],
        {"x": SHARED[:, :, :3], "k": SHARED[:, :, 2:], "inplace": True},
    ),
}


@pytest.mark.parametrize("case", BOTH)
def test_q_against_k(case):
    exception, argument, fragments, changes = BOTH[case]
    call = good("apply_rope", {k: v for k, v in changes.items() if k != "k"}) | {"k": changes["k"]}
    refused("apply_rope", exception, argument, fragments, call)
