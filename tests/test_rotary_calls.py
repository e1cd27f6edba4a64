"""What a call of RotaryPositionalEmbedding may say about positions: one check whatever the way,
rows found once, errors in the module's own terms."""

import copy
import pickle

import pytest
import torch
from rope_cases import assert_bits, uniform

import posenc_ext
from posenc_ext import RotaryPositionalEmbedding

Q, K = uniform((3, 4, 6, 16)), uniform((3, 4, 2, 16), seed=1)
PACKED = uniform((10, 6, 16))
WHERE = "posenc_ext.RotaryPositionalEmbedding: "


@pytest.fixture
def built(monkeypatch):
    """How many tables were built."""
    from posenc_ext.nn import rotary_tables

    counts = []
    real = rotary_tables.rope_table
    monkeypatch.setattr(
        rotary_tables, "rope_table", lambda *a, **k: counts.append(1) or real(*a, **k)
    )
    return counts


@pytest.mark.parametrize("way", ["positions", "offset", "packed", "three axes"])
def test_layers_share_the_rows_of_one_call(way, built):
    sections = [3, 3, 2] if way == "three axes" else None
    module = RotaryPositionalEmbedding(16, sections=sections)
    call, q = {
        "positions": ({"positions": torch.tensor([[9, 2, 5, 7]] * 3)}, Q),
        "offset": ({"offset": torch.tensor([3, 0, 70])}, Q),
        "packed": (
            {
                "cu_seqlens": torch.tensor([0, 3, 10]),
                "offset": torch.tensor([5, 6]),
                "layout": "thd",
            },
            PACKED,
        ),
        "three axes": ({"positions": torch.arange(12).view(3, 1, 4).expand(3, 3, 4)}, Q),
    }[way]
    first = module(q, **call)
    count = len(built)
    assert count == (3 if sections else 1)
    for _ in range(3):
        assert_bits(module(q, **call), first)
    assert len(built) == count
    tensor = call["positions"] if "positions" in call else call["offset"]
    again = copy.deepcopy(call)
    assert_bits(module(q, **again), first)  # the same values in another tensor
    assert len(built) == count
    call["positions" if "positions" in call else "offset"] = tensor.clone()
    changed = call["positions"] if "positions" in call else call["offset"]
    changed.numpy()[...] += 1  # torch is not told
    other = module(q, **call)
    assert not torch.equal(other, first)
    fresh = RotaryPositionalEmbedding(16, sections=sections)
    assert_bits(other, fresh(q, **copy.deepcopy(call)))


def test_remembered_rows_follow_dtype_length_and_grad_mode():
    module, positions = RotaryPositionalEmbedding(16), torch.tensor([3, 9, 1, 2])
    with torch.inference_mode():
        module(Q, positions=positions)
    x = Q.clone().requires_grad_()
    module(x, positions=positions).sum().backward()
    assert x.grad is not None
    double = module(Q.double(), positions=positions)
    assert_bits(double, RotaryPositionalEmbedding(16)(Q.double(), positions=positions))
    floating = positions.double().requires_grad_()
    for _ in range(2):
        (grad,) = torch.autograd.grad(module(Q, positions=floating).sum(), floating)
        assert grad.abs().sum() > 0
    pickle.loads(pickle.dumps(module))(Q, positions=positions)
    dynamic = RotaryPositionalEmbedding(
        16, scaling={"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
    )
    one, two = (dynamic(Q, positions=positions, seq_len=n) for n in (16, 40))
    assert not torch.equal(one, two)


def test_rows_are_picked_from_a_table_that_is_there(built):
    module = RotaryPositionalEmbedding(16)
    module.reserve(64)
    assert len(built) == 1
    fresh = RotaryPositionalEmbedding(16)
    for call in ({"positions": torch.tensor([63, 0, 5, 7])}, {"offset": torch.tensor([60, 1, 7])}):
        assert_bits(module(Q, **call), fresh(Q, **call))
    count = len(built)
    assert_bits(
        module(Q, positions=torch.tensor([64, -1, 5, 7])),
        fresh(Q, positions=torch.tensor([64, -1, 5, 7])),
    )
    assert len(built) > count


@pytest.mark.parametrize("offset", [-3, -1, -100])
def test_negative_offsets_as_ints_and_tensors(offset):
    module = RotaryPositionalEmbedding(16)
    module.reserve(32)
    tensor = module(Q, K, offset=torch.tensor(offset))
    for a, b in zip(module(Q, K, offset=offset), tensor, strict=True):
        assert_bits(a, b)
    at = torch.arange(4) + offset
    assert_bits(tensor[0], posenc_ext.rope(Q, *(t[None] for t in module.table(at))))
    packed = {"cu_seqlens": torch.tensor([0, 4, 10]), "layout": "thd"}
    assert_bits(
        module(PACKED, offset=offset, **packed),
        module(PACKED, offset=torch.tensor(offset), **packed),
    )


def test_layout_of_a_call():
    module = RotaryPositionalEmbedding(16)
    heads_first = module(Q.transpose(1, 2), layout="bhsd", offset=3)
    assert_bits(heads_first.transpose(1, 2), module(Q, offset=3))
    packed = module(Q.flatten(0, 1), layout="thd", cu_seqlens=torch.tensor([0, 4, 8, 12]))
    assert_bits(packed.view_as(Q), module(Q))
    with pytest.raises(ValueError, match=WHERE + "layout must be one of"):
        module(Q, layout="hbsd")


@pytest.mark.parametrize("offset", [0, torch.tensor(0), torch.tensor([0] * 2)])
@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([0, 3, 8], "end with T = 10, got 8"),
        ([1, 3, 10], "start with 0, got 1"),
        ([0, 6, 3, 10], "not decrease"),
        ([0, 3, 12], "nor pass T = 10"),
    ],
)
def test_packed_boundaries_are_checked_whatever_the_offset(bounds, message, offset):
    module = RotaryPositionalEmbedding(16, layout="thd")
    if isinstance(offset, torch.Tensor) and offset.dim():
        offset = offset.new_zeros(len(bounds) - 1)
    for t in (torch.tensor(bounds), torch.tensor(bounds, dtype=torch.int32)):
        with pytest.raises(ValueError, match=WHERE + "cu_seqlens must .*" + message):
            module(PACKED, cu_seqlens=t, offset=offset)


def test_errors_are_in_the_terms_of_the_module():
    module, q = RotaryPositionalEmbedding(16), Q
    with pytest.raises(ValueError, match=WHERE + r"q must have at least dim = 32 channels, got"):
        RotaryPositionalEmbedding(32)(q)
    with pytest.raises(ValueError, match=WHERE + r"k must have at least dim = 16 channels, got"):
        module(q, K[..., :8])
    with pytest.raises(ValueError, match=r"positions must be \[S\] or \[B, S\].*sections"):
        module(q, positions=torch.zeros(2, 3, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"positions must be \[S\] or \[B, S\] with B = 3"):
        module(q, positions=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=WHERE + "positions must hold values for q on cpu"):
        module(q, positions=torch.zeros(4, dtype=torch.long, device="meta"))
    with pytest.raises(ValueError, match=WHERE + r"offset must .* shape \[B\] = \[3\], got \[1\]"):
        module(q, offset=torch.tensor([2]))
    with pytest.raises(ValueError, match=WHERE + r"offset must .* shape \[N\] = \[2\], got \[3\]"):
        module(PACKED, cu_seqlens=torch.tensor([0, 4, 10]), offset=torch.ones(3, dtype=int),
               layout="thd")  # fmt: skip
    with pytest.raises(ValueError, match=WHERE + "cu_seqlens must be used with layout 'thd'"):
        module(q, cu_seqlens=torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"cos\[\.\.\., :R // 2\]"):  # Python, for a paste
        posenc_ext.rope(Q, *(torch.zeros(4, 12) for _ in "cs"))


def test_empty_packed_input():
    rule = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
    module = RotaryPositionalEmbedding(16, layout="thd", scaling=rule)
    for offset in (0, torch.tensor(0), torch.zeros(0, dtype=torch.long)):
        y = module(PACKED[:0], cu_seqlens=torch.tensor([0]), offset=offset)
        assert y.shape == (0, 6, 16)
