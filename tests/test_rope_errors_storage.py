"""The checks of what may be written: out=, in place, and q beside k."""

import pytest
import torch
from rope_cases import odd_offset, uniform
from rope_refusals import X, good, packed, per_token, refused, tables


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


# fmt: off
# case: (exception, argument at fault, what the text must contain, what differs from a good call).
OUT = {
    "shape": (ValueError, "out", ["[2, 5, 3, 16]", "[2, 5, 3, 15]"],
        {"out": torch.empty(2, 5, 3, 15)}),
    "rank": (ValueError, "out", [], {"out": torch.empty(480)}),
    "dtype": (TypeError, "out", ["float64|Double|double"], out_like(X, dtype=torch.float64)),
    "device": (ValueError, "out", ["meta", "cpu"], out_like(X, device="meta")),
    "type": (TypeError, "out", [], {"out": [1.0]}),
    "expanded": (ValueError, "out", [], {"out": torch.empty(1, 5, 3, 16).expand(2, 5, 3, 16)}),
    "overlap": (ValueError, "out", [], overlapping_out()),
    "overlap_table": (ValueError, "out", ["cos"], out_over_table()),
    "transposed_x": (ValueError, "out", [],
        {"x": (t := torch.ones(3, 3, 3, 16)), "out": t.transpose(1, 2)}),
    "inplace": (ValueError, "out|inplace", [], {"out": torch.empty_like(X), "inplace": True}),
    "x_grad": (ValueError, "out", [],
        {"x": uniform(X.shape).requires_grad_(), "out": torch.empty_like(X)}),
    "cos_grad": (ValueError, "out", [],
        {"cos": tables()["cos"].requires_grad_(), "out": torch.empty_like(X)}),
    "out_grad": (ValueError, "out", [], {"out": torch.empty_like(X, requires_grad=True)}),
    "inplace_over_table": (ValueError, "x", ["cos"], inplace_over_table()),
}
# fmt: on


@pytest.mark.parametrize("case", OUT)
def test_out(case):
    exception, argument, fragments, changes = OUT[case]
    refused("rope", exception, argument, fragments, good("rope", changes))


SHARED = uniform((2, 5, 4, 16))

# fmt: off
BOTH = {
    "k_type": (TypeError, "k", [], {"k": 3}),
    "k_rank": (ValueError, "k", ["[5, 3, 16]"], {"k": uniform((5, 3, 16))}),
    "k_dtype": (TypeError, "k", ["float64|Double|double", "float32|Float|float"],
        {"k": uniform((2, 5, 3, 16), torch.float64)}),
    "k_device": (ValueError, "k", ["cpu", "meta"], {"k": X.to("meta")}),
    "k_batch": (ValueError, "k", ["[2, 5, 3, 16]", "[3, 5, 3, 16]"], {"k": uniform((3, 5, 3, 16))}),
    "k_batch_1": (ValueError, "k", [], {"k": uniform((1, 5, 3, 16))}),
    "k_width": (ValueError, "k", ["16", "18"], {"k": uniform((2, 5, 3, 18))}),
    "lengths_positions": (ValueError, "k|positions", [],
        {"k": uniform((2, 6, 3, 16)), "positions": torch.arange(5)}),
    "lengths_per_token": (ValueError, "k|cos", [], {"k": uniform((2, 6, 3, 16)), **per_token()}),
    "lengths_packed": (ValueError, "k|cu_seqlens", [], {**packed(0, 5), "k": uniform((6, 3, 16))}),
    "k_past_the_table": (IndexError, "cos|offset", ["64"],
        {"k": uniform((2, 9, 3, 16)), "offset": 58}),
    "k_expanded": (ValueError, "k", [],
        {"k": uniform((2, 5, 1, 16)).expand(2, 5, 3, 16), "inplace": True}),
    "k_leaf": (ValueError, "k", [], {"k": odd_offset(X).requires_grad_(), "inplace": True}),
    "k_is_q": (ValueError, "q|k", ["q"], {"x": SHARED, "k": SHARED, "inplace": True}),
    "k_shares_a_head": (ValueError, "q|k", [],
        {"x": SHARED[:, :, :3], "k": SHARED[:, :, 2:], "inplace": True}),
}
# fmt: on


@pytest.mark.parametrize("case", BOTH)
def test_q_against_k(case):
    exception, argument, fragments, changes = BOTH[case]
    call = good("apply_rope", {k: v for k, v in changes.items() if k != "k"}) | {"k": changes["k"]}
    refused("apply_rope", exception, argument, fragments, call)
