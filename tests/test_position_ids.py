"""Position ids against their rules, the golden numbers and transformers."""

import numpy as np
import oracle_learned
import pytest
import torch

import posenc_ext

I32, I64 = torch.int32, torch.int64
# Padding on the right, on the left, inside, everywhere, nowhere.
IDS = torch.tensor([[5, 6, 7, 1, 1], [1, 1, 5, 6, 7], [5, 1, 6, 7, 8], [1] * 5, [9] * 5])
MASK = IDS != 1


@pytest.mark.parametrize("dtype", [I32, I64])
@pytest.mark.parametrize("past", [0, 10, "batch", "scalar"])
def test_padding_aware_positions(dtype, past):
    given = {"batch": torch.tensor([0, 3, 7, 2, 1], dtype=dtype), "scalar": torch.tensor(4)}
    past = given.get(past, past)
    found = posenc_ext.padding_aware_positions(IDS.to(dtype), 1, past=past)
    right = oracle_learned.padding_aware_positions(IDS.numpy(), 1, past=np.asarray(past))
    assert found.dtype == I64
    assert found.tolist() == right.tolist()
    if not isinstance(past, torch.Tensor):
        one = posenc_ext.padding_aware_positions(IDS[2].to(dtype), 1, past=past)
        assert one.tolist() == right[2].tolist()


def test_no_rows_with_past():
    none = torch.zeros(0, 5, dtype=torch.int64)
    assert posenc_ext.padding_aware_positions(none, 1, past=none[:, 0]).shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.bool, I32, I64])
@pytest.mark.parametrize("past", [0, 2, 5])
@pytest.mark.parametrize("rule", [(0, 1), (2, 1), (0, None), (2, 7)])
def test_attention_mask_positions(dtype, rule, past):
    options = {"first": rule[0], "fill": rule[1], "past": past}
    found = posenc_ext.attention_mask_positions(MASK.to(dtype), **options)
    assert found.dtype == I64
    right = oracle_learned.attention_mask_positions(MASK.numpy(), **options)
    assert found.tolist() == right.tolist()


def test_sequential_positions():
    assert posenc_ext.sequential_positions(3).tolist() == [0, 1, 2]
    assert posenc_ext.sequential_positions(3, first=2, past=7).tolist() == [9, 10, 11]
    assert posenc_ext.sequential_positions(0, first=2).shape == (0,)
    assert posenc_ext.sequential_positions(2, device="meta").device.type == "meta"


def test_golden(golden):
    for name in ("roberta", "roberta_past10"):
        case = golden[f"position_ids/{name}"]
        given = case["inputs"]
        found = posenc_ext.padding_aware_positions(
            torch.tensor(given["input_ids"]), given["padding_idx"], past=given.get("past", 0)
        )
        assert found.tolist() == case["expected"]
    case = golden["position_ids/opt"]
    mask = torch.tensor(case["inputs"]["attention_mask"])
    found = posenc_ext.attention_mask_positions(mask, first=case["inputs"]["offset"])
    assert found.tolist() == case["expected"]
    case = golden["position_ids/generate_left_pad"]
    mask = torch.tensor(case["inputs"]["attention_mask"])
    found = posenc_ext.attention_mask_positions(mask, fill=case["inputs"]["fill"])
    assert found.tolist() == case["expected"]


@pytest.mark.parametrize("split", range(6))
def test_a_call_after_a_cache_goes_on(split):
    """Real tokens before the split, given as past, leave the positions after it as they were."""
    whole = posenc_ext.padding_aware_positions(IDS, 1)
    past = MASK[:, :split].sum(1)
    rest = posenc_ext.padding_aware_positions(IDS[:, split:], 1, past=past)
    assert torch.equal(rest, whole[:, split:])


def test_empty():
    assert posenc_ext.padding_aware_positions(IDS[:, :0], 1).shape == (5, 0)
    assert posenc_ext.padding_aware_positions(IDS[:0], 1).shape == (0, 5)
    assert posenc_ext.attention_mask_positions(MASK[:, :0]).shape == (5, 0)


def test_transformers():
    roberta = pytest.importorskip(
        "transformers.models.roberta.modeling_roberta", reason="transformers is not installed"
    ).RobertaEmbeddings
    right = roberta.create_position_ids_from_input_ids(IDS, 1, 10)
    assert torch.equal(posenc_ext.padding_aware_positions(IDS, 1, past=10), right)
    right = roberta.create_position_ids_from_inputs_embeds(torch.zeros(2, 5, 4), 1)
    assert torch.equal(posenc_ext.sequential_positions(5, first=2).expand(2, 5), right)

    from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding
    from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding

    # A table whose row r is the number r shows the positions it was read at.
    rows = torch.arange(32.0)[:, None]
    opt = OPTLearnedPositionalEmbedding(30, 1)
    opt.weight.data = rows
    for past in (0, 2):
        right = opt(MASK.long(), past)[..., 0].long()
        assert torch.equal(posenc_ext.attention_mask_positions(MASK, first=2, past=past), right)
    bart = BartLearnedPositionalEmbedding(30, 1)
    bart.weight.data = rows
    right = bart(IDS, 3)[..., 0].long()
    assert torch.equal(posenc_ext.sequential_positions(5, first=2, past=3).expand(5, 5), right)


# fmt: off
REFUSALS = [
    ("padding_aware_positions", TypeError, "input_ids", ([[1]], 1), {}),
    ("padding_aware_positions", TypeError, "input_ids", (MASK, 1), {}),
    ("padding_aware_positions", TypeError, "input_ids", (IDS.float(), 1), {}),
    ("padding_aware_positions", ValueError, "input_ids", (torch.tensor(3), 1), {}),
    ("padding_aware_positions", ValueError, "padding_idx", (IDS, -1), {}),
    ("padding_aware_positions", TypeError, "padding_idx", (IDS, None), {}),
    ("padding_aware_positions", ValueError, "past", (IDS, 1), {"past": -1}),
    ("padding_aware_positions", TypeError, "past", (IDS, 1), {"past": 1.0}),
    ("padding_aware_positions", TypeError, "past", (IDS, 1), {"past": torch.zeros(5)}),
    ("padding_aware_positions", ValueError, "past", (IDS, 1), {"past": torch.zeros(4).long()}),
    ("padding_aware_positions", ValueError, "past", (IDS, 1), {"past": -torch.ones(5).long()}),
    ("padding_aware_positions", ValueError, "past", (IDS[0], 1), {"past": torch.zeros(5).long()}),
    ("attention_mask_positions", TypeError, "attention_mask", (MASK.float(),), {}),
    ("attention_mask_positions", TypeError, "attention_mask", (None,), {}),
    ("attention_mask_positions", ValueError, "attention_mask", (torch.tensor(True),), {}),
    ("attention_mask_positions", ValueError, "past", (MASK,), {"past": 6}),
    ("attention_mask_positions", ValueError, "past", (MASK,), {"past": -1}),
    ("attention_mask_positions", TypeError, "first", (MASK,), {"first": "2"}),
    ("attention_mask_positions", TypeError, "fill", (MASK,), {"fill": 0.5}),
    ("sequential_positions", ValueError, "length", (-1,), {}),
    ("sequential_positions", ValueError, "past", (1,), {"past": -1}),
    ("sequential_positions", TypeError, "first", (1,), {"first": torch.tensor(1)}),
    ("sequential_positions", ValueError, "first", (2,), {"first": 2**63 - 2}),
    ("sequential_positions", ValueError, "first", (1,), {"first": 2**62, "past": 2**62}),
]
# fmt: on


@pytest.mark.parametrize(("op", "exception", "argument", "args", "options"), REFUSALS)
def test_refusals(op, exception, argument, args, options):
    with pytest.raises(exception, match=rf"^posenc_ext\.{op}: {argument} must .+, got .+") as e:
        getattr(posenc_ext, op)(*args, **options)
    assert type(e.value) is exception


def test_compile_with_any_length():
    torch._dynamo.reset()

    def positions(ids, mask):
        made = posenc_ext.padding_aware_positions(ids, 1, past=3)
        counted = posenc_ext.attention_mask_positions(mask, first=2, past=1)
        return made, counted, posenc_ext.sequential_positions(ids.shape[1], past=2)

    compiled = torch.compile(positions, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 4, 3):
        given = IDS[:, :length], MASK[:, :length]
        for a, b in zip(compiled(*given), positions(*given), strict=True):
            assert torch.equal(a, b)
