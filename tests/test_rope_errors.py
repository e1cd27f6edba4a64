"""Every check of rope and apply_rope: its exception, its text, and that nothing was written."""

import re

import pytest
import torch
from rope_cases import table, uniform
from rope_refusals import good, ints, on_meta, packed, per_token, refused, tables, x_of

I32, I64 = torch.int32, torch.int64

# fmt: off
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
    "cos_1d": (ValueError, "cos", [r"\[L, R/2\]", r"\[8\]"],
        {"cos": uniform((8,)), "sin": uniform((8,))}),
    "cos_4d": (ValueError, "cos", [], {"cos": uniform((2, 5, 1, 8)), "sin": uniform((2, 5, 1, 8))}),
    "cos_full_width": (ValueError, "cos", [r"cos\[\.\.\., :R // 2\]", "16", r"\[64, 16\]"],
        tables(16)),
    "cos_one_too_wide": (ValueError, "cos", ["16", r"\[64, 9\]"], tables(9)),
    "cos_int": (TypeError, "cos", [],
        {"cos": torch.ones(64, 8, dtype=I64), "sin": torch.ones(64, 8, dtype=I64)}),
    "cos_double": (TypeError, "cos", ["float64|Double|double", "float32|Float|float"],
        tables(8, torch.float64)),
    "cos_half": (TypeError, "cos", ["bfloat16|BFloat16"], tables(8, torch.bfloat16)),
    "cos_other_half": (TypeError, "cos", [],
        {"x": x_of(torch.bfloat16), **tables(8, torch.float16)}),
    "cos_double_for_half": (TypeError, "cos", [],
        {"x": x_of(torch.float16), **tables(8, torch.float64)}),
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
    "per_token_no_batch": (ValueError, "cos", [],
        {"x": uniform((5, 3, 16)), "layout": "thd", **per_token()}),
    "per_token_positions": (ValueError, "cos|positions", [],
        {**per_token(), "positions": torch.arange(5)}),
    "per_token_offset": (ValueError, "cos|offset", [], {**per_token(), "offset": 1}),
    "per_token_offsets": (ValueError, "cos|offset", [], {**per_token(), "offset": ints(1, 1)}),
    "per_token_cu_seqlens": (ValueError, "cos|cu_seqlens", [], packed(0, 5, **per_token(1))),
    "positions_list": (TypeError, "positions", [], {"positions": [0, 1, 2, 3, 4]}),
    "positions_float": (TypeError, "positions", [], {"positions": torch.arange(5.0)}),
    "positions_int16": (TypeError, "positions", [],
        {"positions": ints(0, 1, 2, 3, 4, dtype=torch.int16)}),
    "positions_bool": (TypeError, "positions", [], {"positions": torch.ones(5, dtype=torch.bool)}),
    "positions_length": (ValueError, "positions", [r"\[4\]"], {"positions": torch.arange(4)}),
    "positions_batch": (ValueError, "positions", [r"\[3, 5\]"],
        {"positions": torch.zeros(3, 5, dtype=I64)}),
    "positions_0d": (ValueError, "positions", [], {"positions": torch.tensor(1)}),
    "positions_3d": (ValueError, "positions", [], {"positions": torch.zeros(1, 2, 5, dtype=I64)}),
    "positions_transposed": (ValueError, "positions", [],
        {"positions": torch.zeros(5, 2, dtype=I64)}),
    "positions_and_offset": (ValueError, "positions|offset", [],
        {"positions": torch.arange(5), "offset": 1}),
    "positions_and_offsets": (ValueError, "positions|offset", [],
        {"positions": torch.arange(5), "offset": ints(0, 0)}),
    "positions_and_cu_seqlens": (ValueError, "positions|cu_seqlens", [],
        packed(0, 5, positions=torch.arange(5))),
    "offset_float": (TypeError, "offset", [], {"offset": 1.0}),
    "offset_none": (TypeError, "offset", [], {"offset": None}),
    "offset_negative": (IndexError, "cos|offset", ["-1", "64"], {"offset": -1}),
    "offset_past_the_end": (IndexError, "cos|offset", ["60", "64"], {"offset": 60}),
    "offset_huge": (IndexError, "cos|offset", [str(2**63 - 1)], {"offset": 2**63 - 1}),
    "offset_very_negative": (IndexError, "cos|offset", [], {"offset": -(2**63)}),
    "offset_beyond_int64": (IndexError, "cos|offset", [str(2**70)], {"offset": 2**70}),
    "offsets_float": (TypeError, "offset", [], {"offset": torch.ones(2)}),
    "offsets_shape": (ValueError, "offset", [r"\[3\]"], {"offset": ints(0, 0, 0)}),
    "offsets_one_for_two": (ValueError, "offset", [r"\[1\]"], {"offset": ints(0)}),
    "offsets_2d": (ValueError, "offset", [], {"offset": torch.zeros(2, 1, dtype=I64)}),
    "table_too_short": (IndexError, "cos|offset", ["4", "5"], tables(length=4)),
    "table_empty": (IndexError, "cos|offset", [], tables(length=0)),
    "cu_seqlens_layout": (ValueError, "cu_seqlens", ["thd", "bshd"], {"cu_seqlens": ints(0, 5)}),
    "cu_seqlens_list": (TypeError, "cu_seqlens", [], packed(0) | {"cu_seqlens": [0, 5]}),
    "cu_seqlens_float": (TypeError, "cu_seqlens", [],
        packed(0, 5) | {"cu_seqlens": torch.tensor([0.0, 5.0])}),
    "cu_seqlens_2d": (ValueError, "cu_seqlens", [],
        packed(0, 5) | {"cu_seqlens": ints(0, 5)[None]}),
    "cu_seqlens_none_at_all": (ValueError, "cu_seqlens", [], packed()),
    "cu_seqlens_offsets": (ValueError, "offset", [r"\[3\]"], packed(0, 2, 5, offset=ints(0, 0, 0))),
    "inplace_expanded": (ValueError, "x", [],
        {"x": uniform((1, 5, 3, 16)).expand(2, 5, 3, 16), "inplace": True}),
    "inplace_leaf": (ValueError, "x", [],
        {"x": uniform((2, 5, 3, 16)).requires_grad_(), "inplace": True}),
    "inplace_view_of_leaf": (ValueError, "x", [],
        {"x": uniform((1, 5, 3, 16)).requires_grad_()[:], "inplace": True}),
}

# What only the values of tensors tell; a meta tensor has none.
VALUES = {
    "positions_negative": (IndexError, "positions", ["-1", "64"],
        {"positions": ints(0, 1, -1, 3, 4)}),
    "positions_past_the_end": (IndexError, "positions", ["64"],
        {"positions": ints(0, 1, 2, 63, 64)}),
    "positions_2**31": (IndexError, "positions", [str(2**31)],
        {"positions": ints(0, 1, 2, 3, 2**31)}),
    "positions_2**40": (IndexError, "positions", [str(2**40)],
        {"positions": ints(2**40, 1, 2, 3, 4)}),
    "positions_2**63": (IndexError, "positions", [], {"positions": ints(0, 1, -(2**63), 3, 4)}),
    "positions_int32": (IndexError, "positions", ["-1"],
        {"positions": ints(-1, 0, 1, 2, 3, dtype=I32)}),
    "positions_in_batch_1": (IndexError, "positions", ["99"],
        {"positions": torch.stack([ints(1), ints(99)]).expand(2, 5)}),
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
    "cu_seqlens_too_long": (IndexError, "cos|cu_seqlens", ["3"],
        packed(0, 1, 5, **tables(length=3))),
    "cu_seqlens_offset": (IndexError, "offset|cu_seqlens", [], packed(0, 2, 5, offset=62)),
    "cu_seqlens_offsets_value": (IndexError, "offset|cu_seqlens", [],
        packed(0, 2, 5, offset=ints(0, 62))),
}
# fmt: on


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
    meta = {key: on_meta(value) for key, value in call.items()}
    texts = [refused(op, exception, argument, [], c) for c in (call, meta)]
    assert texts[0] == texts[1]
