"""Constants that are made once: of the device and the arguments alone, and of no trace."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import posenc_ext
from posenc_ext import kept

CPU = torch.device("cpu")


@pytest.fixture
def fresh(monkeypatch):
    """A store that is empty, so that each test is the first to ask."""
    store = {}
    monkeypatch.setattr(kept, "_constants", store)
    return store


def made():
    return kept.constant(kept.of_integers, CPU, 3, 1, 2)


def test_made_once_for_its_arguments(fresh):
    first = made()
    assert first.tolist() == [3, 1, 2]
    assert made() is first
    assert kept.constant(kept.of_integers, CPU, 3, 1) is not first
    assert kept.constant(kept.of_integers, torch.device("meta"), 3, 1, 2).is_meta
    assert len(fresh) == 3


def test_what_a_trace_makes_is_not_kept(fresh):
    with FakeTensorMode():
        made()
    assert not fresh
    torch.func.grad(lambda x: (x * made()).sum())(torch.ones(3))
    for tensor in fresh.values():
        assert kept.is_plain(tensor)
    with torch.inference_mode():
        assert not made().is_inference()
    first = made()
    with FakeTensorMode():
        assert made() is not first
    assert made() is first


def test_a_compiled_call_keeps_nothing(fresh):
    call = torch.compile(posenc_ext.t5_relative_index, fullgraph=True, backend="aot_eager")
    actual = call(4, 6)
    assert not fresh
    assert torch.equal(actual, posenc_ext.t5_relative_index(4, 6))
    assert fresh


def test_no_more_than_models_have(fresh, monkeypatch):
    monkeypatch.setattr(kept, "MOST_CONSTANTS", 2)
    values = [kept.constant(kept.of_integers, CPU, i).item() for i in range(4)]
    assert values == [0, 1, 2, 3]
    assert len(fresh) == 2


CALLS = {
    "t5": lambda: posenc_ext.t5_relative_index(4, 6),
    "deberta": lambda: posenc_ext.deberta_relative_index(9, position_buckets=8),
    "axial": lambda: posenc_ext.axial_rope_table(2, 4, 8)[0],
    "xpos": lambda: posenc_ext.xpos_table(5, torch.ones(4)).cos_q,
    "sinusoidal": lambda: posenc_ext.add_sinusoidal(torch.ones(2, 8, requires_grad=True)),
    "mrope": lambda: posenc_ext.rope_table(
        torch.arange(6).view(2, 3), torch.ones(4), sections=torch.tensor([0, 1, 0, 1])
    )[0],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_later_calls_make_no_constant(call, fresh):
    right = call()
    known = dict(fresh)
    assert known
    assert torch.equal(call(), right)
    assert all(fresh[key] is known[key] for key in known)
    assert fresh.keys() == known.keys()
