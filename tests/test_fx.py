"""torch.fx.symbolic_trace goes through models that call the functions and modules."""

import pytest
import torch
from fuzz_calls import FUNCTIONS
from fuzz_modules import MODULES
from torch import nn
from torch.fx import symbolic_trace

import posenc_ext


def flat(result):
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if part is not None]


@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - {"alibi_score_mod", "KVCache"}))
def test_functions(name):
    arguments = FUNCTIONS[name]
    first, *_ = arguments

    def model(given):
        return getattr(posenc_ext, name)(**{**arguments, first: given})

    traced = symbolic_trace(model)
    calls = [node for node in traced.graph.nodes if node.op.startswith("call")]
    assert len(calls) == 1
    for a, b in zip(flat(traced(arguments[first])), flat(model(arguments[first])), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a model"])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, inside):
    made, methods = MODULES[name]
    module = getattr(posenc_ext, name)(**made).eval()
    (_, value), *_ = methods["forward"].items()
    if name in ("T5RelativePositionBias", "RobertaEmbeddings"):
        model = module  # the first argument is a length, or ids
    else:
        model = nn.Sequential(nn.ReLU(), module) if inside else module
    traced = symbolic_trace(model)
    calls = [n.target for n in traced.graph.nodes if n.op == "call_module"]
    assert traced.get_submodule(calls[-1]) is module
    for a, b in zip(flat(traced(value)), flat(model(value)), strict=True):
        assert torch.equal(a, b)
    assert len(list(traced.parameters())) == len(list(module.parameters()))


def test_results_are_unpacked():
    cos, sin = posenc_ext.rope_table(5, posenc_ext.rope_frequencies(16).inv_freq)

    def model(q, k):
        q, k = posenc_ext.apply_rope(q, k, cos, sin)
        return (q * k).sum(-1)

    q, k = torch.randn(2, 1, 5, 3, 16).unbind()
    assert torch.equal(symbolic_trace(model)(q, k), model(q, k))
