"""Every check of the ALiBi functions: its exception, its text, and that nothing was written."""

import pytest
import torch
from alibi_cases import scores_of, slopes_of
from rope_cases import uniform
from rope_refusals import on_meta, refused

import posenc_ext

I64, F64 = torch.int64, torch.float64
NAN = float("nan")
SLOPES = slopes_of()


def over_slopes():
    buffer = uniform((2 * 3 * 4 * 5,))
    return {"scores": buffer.view(2, 3, 4, 5), "slopes": buffer[:3], "inplace": True}


GOOD = {
    "alibi_slopes": lambda: {"num_heads": 4},
    "alibi_bias": lambda: {"slopes": slopes_of(), "q_len": 4, "k_len": 5},
    "alibi_row_bias": lambda: {"slopes": slopes_of(), "k_len": 5},
    "add_alibi": lambda: {"scores": scores_of((4, 5)), "slopes": slopes_of()},
    "alibi_softmax": lambda: {"scores": scores_of((4, 5)), "slopes": slopes_of()},
    "alibi_score_mod": lambda: {"slopes": slopes_of(), "q_len": 4, "k_len": 5},
}

# fmt: off
# case: (functions, exception, argument at fault, what the text must contain, what differs from a
# good call)
WITH_SCORES = ("add_alibi", "alibi_softmax")
WITH_SLOPES = (*WITH_SCORES, "alibi_bias", "alibi_row_bias", "alibi_score_mod")
WITH_LENGTHS = ("alibi_bias", "alibi_score_mod")
CASES = {
    "scores_list": (WITH_SCORES, TypeError, "scores", ["list"], {"scores": [1.0]}),
    "scores_3d": (WITH_SCORES, ValueError, "scores", ["[B, H, Q, K]", "[3, 4, 5]"],
        {"scores": uniform((3, 4, 5))}),
    "scores_5d": (WITH_SCORES, ValueError, "scores", [], {"scores": uniform((1, 2, 3, 4, 5))}),
    "scores_int": (WITH_SCORES, TypeError, "scores", ["Long"],
        {"scores": torch.ones(2, 3, 4, 5, dtype=I64)}),
    "scores_complex": (WITH_SCORES, TypeError, "scores", [],
        {"scores": torch.ones(2, 3, 4, 5, dtype=torch.complex64)}),
    "slopes_float": (WITH_SLOPES, TypeError, "slopes", ["float"], {"slopes": 0.5}),
    "slopes_int": (WITH_SLOPES, TypeError, "slopes", [], {"slopes": torch.ones(3, dtype=I64)}),
    "slopes_double": (("alibi_bias", "alibi_row_bias", *WITH_SCORES), TypeError, "slopes",
        ["Double|float64"], {"slopes": slopes_of(dtype=F64)}),
    "slopes_0d": (WITH_SLOPES, ValueError, "slopes", ["[H] or [B, H]"],
        {"slopes": torch.tensor(0.5)}),
    "slopes_3d": (WITH_SLOPES, ValueError, "slopes", ["[3, 1, 1]"],
        {"slopes": SLOPES[:, None, None]}),
    "slopes_heads": (WITH_SCORES, ValueError, "slopes", ["H = 3", "[4]"], {"slopes": slopes_of(4)}),
    "slopes_one": (WITH_SCORES, ValueError, "slopes", ["[1]"], {"slopes": slopes_of(1)}),
    "slopes_batch": (WITH_SCORES, ValueError, "slopes", ["B = 2", "[4, 3]"],
        {"slopes": slopes_of(batch=4)}),
    "slopes_device": (WITH_SCORES, ValueError, "slopes", ["meta", "cpu"],
        {"slopes": SLOPES.to("meta")}),
    "q_len_negative": (WITH_LENGTHS, ValueError, "q_len", ["-1"], {"q_len": -1}),
    "q_len_float": (WITH_LENGTHS, TypeError, "q_len", ["float"], {"q_len": 4.0}),
    "q_len_huge": (WITH_LENGTHS, ValueError, "q_len", [str(2**70)], {"q_len": 2**70}),
    "k_len_negative": ((*WITH_LENGTHS, "alibi_row_bias"), ValueError, "k_len", ["-3"],
        {"k_len": -3}),
    "k_len_bool": ((*WITH_LENGTHS, "alibi_row_bias"), TypeError, "k_len", ["bool"],
        {"k_len": True}),
    "k_len_huge": ((*WITH_LENGTHS, "alibi_row_bias"), ValueError, "k_len", [str(2**30)],
        {"k_len": 2**30}),
    "dtype_int": (("alibi_bias", "alibi_row_bias", "alibi_slopes"), TypeError, "dtype", ["int64"],
        {"dtype": I64}),
    "dtype_text": (("alibi_bias", "alibi_slopes"), TypeError, "dtype", [], {"dtype": "float32"}),
    "positions_list": (("alibi_bias",), TypeError, "key_positions", [], {"key_positions": [[0]]}),
    "positions_float": (("alibi_bias",), TypeError, "key_positions", ["Float"],
        {"key_positions": torch.zeros(2, 5)}),
    "positions_1d": (("alibi_bias",), ValueError, "key_positions", ["[B, K]", "[5]"],
        {"key_positions": torch.arange(5)}),
    "positions_length": (("alibi_bias",), ValueError, "key_positions", ["[2, 6]"],
        {"key_positions": torch.zeros(2, 6, dtype=I64)}),
    "positions_batch": (("alibi_bias",), ValueError, "key_positions", [],
        {"slopes": slopes_of(batch=2), "key_positions": torch.zeros(3, 5, dtype=I64)}),
    "positions_device": (("alibi_bias",), ValueError, "key_positions", ["meta"],
        {"key_positions": torch.zeros(2, 5, dtype=I64, device="meta")}),
    "positions_long_q": (("alibi_bias",), ValueError, "q_len", ["6", "5"],
        {"q_len": 6, "key_positions": torch.zeros(2, 5, dtype=I64)}),
    "heads_negative": (("alibi_slopes",), ValueError, "num_heads", ["-1"], {"num_heads": -1}),
    "heads_float": (("alibi_slopes",), TypeError, "num_heads", [], {"num_heads": 8.0}),
    "max_bias_zero": (("alibi_slopes",), ValueError, "max_bias", ["0"], {"max_bias": 0}),
    "max_bias_nan": (("alibi_slopes",), ValueError, "max_bias", ["nan"], {"max_bias": NAN}),
    "max_bias_text": (("alibi_slopes",), TypeError, "max_bias", ["str"], {"max_bias": "8"}),
    "scale_tensor": (("alibi_softmax",), TypeError, "scale", ["Tensor"],
        {"scale": torch.tensor(0.5)}),
    "scale_infinite": (("alibi_softmax",), ValueError, "scale", ["inf"], {"scale": float("inf")}),
    "mask_list": (("alibi_softmax",), TypeError, "key_padding_mask", [],
        {"key_padding_mask": [[True]]}),
    "mask_float": (("alibi_softmax",), TypeError, "key_padding_mask", ["True = keep", "Float"],
        {"key_padding_mask": torch.ones(2, 5)}),
    "mask_1d": (("alibi_softmax",), ValueError, "key_padding_mask", ["[2, 5]", "[5]"],
        {"key_padding_mask": torch.ones(5, dtype=torch.bool)}),
    "mask_of_queries": (("alibi_softmax",), ValueError, "key_padding_mask", ["[2, 4]"],
        {"key_padding_mask": torch.ones(2, 4, dtype=torch.bool)}),
    "mask_device": (("alibi_softmax",), ValueError, "key_padding_mask", ["meta"],
        {"key_padding_mask": torch.ones(2, 5, dtype=torch.bool, device="meta")}),
    "inplace_expanded": (("add_alibi",), ValueError, "scores", ["overlap"],
        {"scores": scores_of((4, 5))[:1].expand(2, 3, 4, 5), "inplace": True}),
    "inplace_over_slopes": (("add_alibi",), ValueError, "scores", ["slopes"], over_slopes()),
    "inplace_negated": (("add_alibi",), ValueError, "scores", ["resolve_neg"],
        {"scores": torch.ones(2, 3, 4, 5, dtype=torch.complex64).conj().imag, "inplace": True}),
}
CASES |= {
    "causal_text": ((*WITH_SCORES, *WITH_LENGTHS), TypeError, "causal", ["str"], {"causal": "no"}),
    "inplace_text": (("add_alibi",), TypeError, "inplace", ["str"], {"inplace": "no"}),
}
LEAVES = {
    "leaf": scores_of((4, 5)).requires_grad_(),
    "view_of_leaf": scores_of((4, 5)).requires_grad_()[:],
}
# fmt: on


@pytest.mark.parametrize("case", CASES)
def test_refusals(case):
    functions, exception, argument, fragments, changes = CASES[case]
    for op in functions:
        refused(op, exception, argument, fragments, {**GOOD[op](), **changes})


@pytest.mark.parametrize("case", LEAVES)
def test_leaves_are_not_written(case):
    call = {"scores": LEAVES[case], "slopes": SLOPES, "inplace": True}
    refused("add_alibi", ValueError, "scores", ["leaf"], call)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if not c.endswith(("device", "over_slopes", "expanded"))],
)
def test_meta_tensors_give_the_same_text(case):
    functions, exception, argument, _, changes = CASES[case]
    for op in functions:
        call = {**GOOD[op](), **changes}
        if case == "inplace_negated":
            continue  # a meta tensor made anew is not negated
        texts = [
            refused(op, exception, argument, [], c)
            for c in (call, {key: on_meta(value) for key, value in call.items()})
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("argument", ["scores", "slopes"])
@pytest.mark.parametrize("op", WITH_SCORES)
def test_sparse_tensors_are_refused(op, argument):
    call = GOOD[op]()
    call[argument] = call[argument].to_sparse()
    with pytest.raises(TypeError, match=rf"posenc_ext\.{op}: {argument} must be a dense .+, got"):
        getattr(posenc_ext, op)(**call)


@pytest.mark.parametrize("argument", ["scores", "slopes"])
@pytest.mark.parametrize("op", WITH_SCORES)
def test_freed_storage_is_not_read(op, argument):
    call = GOOD[op]()
    call[argument].untyped_storage().resize_(0)
    with pytest.raises(
        ValueError, match=rf"posenc_ext\.{op}: {argument} must have a storage .+ got 0"
    ):
        getattr(posenc_ext, op)(**call)


def test_ops_check_their_arguments_themselves():
    """Called without the public functions, as from an exported graph, they are as safe."""
    ops, scores, slopes = torch.ops.posenc_ext, scores_of((4, 5)), slopes_of()
    positions = torch.zeros(3, 5, dtype=I64)
    calls = [
        (ValueError, ops.alibi_bias, slopes, -1, 5, False, torch.float32, None),
        (ValueError, ops.alibi_bias, slopes, 5, 2**31, False, torch.float32, None),
        (TypeError, ops.alibi_bias, slopes, 5, 5, False, I64, None),
        (ValueError, ops.add_alibi, scores[0], slopes, False),
        (ValueError, ops.add_alibi_, scores, slopes[:2], False),
        (TypeError, ops.alibi_softmax, scores.int(), slopes, 1.0, False, None),
        (ValueError, ops.alibi_slope_grad, scores[0, 0], slopes, False, None),
        (ValueError, ops.alibi_slope_grad, scores[:, :2], slopes, False, None),
        (ValueError, ops.alibi_slope_grad, scores[0], slopes_of(batch=2), False, None),
        (ValueError, ops.alibi_slope_grad, scores, slopes, False, positions),
        (ValueError, ops.alibi_slope_grad, scores[0], slopes, False, positions[:2]),
        (TypeError, ops.alibi_softmax_grad, scores.double(), scores, 1.0, False),
        (ValueError, ops.alibi_softmax_grad, scores[:, :2], scores, 1.0, False),
        (ValueError, ops.alibi_softmax_slope_grad, scores, scores, slopes[:2], False),
        (ValueError, ops.alibi_softmax_slope_grad, scores[:1], scores, slopes, False),
    ]
    for exception, op, *args in calls:
        with pytest.raises(exception, match=r"posenc_ext\.\w+: \w+ must .+, got .+"):
            op(*args)


def test_module_refusals():
    x, attention = torch.zeros(2, 4, 12), posenc_ext.ALiBiAttention(12, 3)
    past = tuple(torch.zeros(2, 3, 5, 4) for _ in range(2))
    keep = torch.ones(2, 4, dtype=torch.bool)
    calls = [
        (ValueError, "d_model", lambda: posenc_ext.ALiBiAttention(12, 5)),
        (TypeError, "x", lambda: attention(x.long())),
        (TypeError, "past", lambda: attention(x, past=(torch.zeros(2, 3, 1, 4).double(),) * 2)),
        (ValueError, "d_model", lambda: posenc_ext.ALiBiAttention(0, 1)),
        (ValueError, "num_heads", lambda: posenc_ext.ALiBiAttention(12, 0)),
        (TypeError, "num_heads", lambda: posenc_ext.ALiBiAttention(12, 3.0)),
        (ValueError, "query_block", lambda: posenc_ext.ALiBiAttention(12, 3, query_block=0)),
        (ValueError, "dropout", lambda: posenc_ext.ALiBiAttention(12, 3, dropout=1.5)),
        (TypeError, "x", lambda: attention([1.0])),
        (ValueError, "x", lambda: attention(x[0])),
        (ValueError, "x", lambda: attention(x[..., :6])),
        (TypeError, "key_padding_mask", lambda: attention(x, key_padding_mask=keep.float())),
        (TypeError, "key_padding_mask", lambda: attention(x, key_padding_mask=[True])),
        (ValueError, "key_padding_mask", lambda: attention(x, key_padding_mask=keep, past=past)),
        (ValueError, "past", lambda: attention(x, past=past[:1])),
        (ValueError, "past", lambda: attention(x, past=tuple(t[:1] for t in past))),
        (ValueError, "past", lambda: attention(x, past=(past[0], past[1][:, :, 1:]))),
        (TypeError, "past", lambda: attention(x, past=past[0])),
        (TypeError, "past", lambda: attention(x, past=(None, None))),
    ]
    for exception, argument, call in calls:
        with pytest.raises(
            exception, match=rf"posenc_ext\.ALiBiAttention: {argument} must .+, got"
        ):
            call()
    with pytest.raises(ValueError, match=r"posenc_ext\.alibi_slopes: max_bias must .+, got"):
        posenc_ext.ALiBiAttention(12, 3, max_bias=-1)
