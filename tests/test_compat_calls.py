"""`patch` and the calls after it: tables that are checked, functions that a model calls."""

import functools
import sys
import types

import pytest
import torch
from patch_cases import COS, SIN, K, Q, llama, rows_of_image, table
from rope_cases import assert_bits, uniform

from posenc_ext.compat.transformers import apply_rotary_pos_emb, patch, unpatch


def three(q, k, v, cos, sin):
    return (*llama(q, k, cos, sin), v)


UNTIED = table(2, 5, 8, tied=False)
TEXT = r"^posenc_ext\.apply_rotary_pos_emb: (cos|sin) must be equal in columns i and i \+ 8, .*"


@pytest.mark.parametrize("rounding", ["once", "transformers"])
def test_tables_whose_halves_differ(module, rounding):
    """Height and width in the halves: a rotation by one half would be silently wrong."""
    module.apply_rotary_pos_emb = llama
    patch(module, rounding=rounding)
    for function in (
        module.apply_rotary_pos_emb,
        functools.partial(apply_rotary_pos_emb, rounding=rounding),
    ):
        for tables in ((UNTIED, SIN), (COS, UNTIED)):
            with pytest.raises(ValueError, match=TEXT):
                function(Q, K, *tables)
        cos = COS.clone()
        function(Q, K, cos, SIN)
        cos[1, 4, 9] += 1  # the note of the table is of another version
        with pytest.raises(ValueError, match=TEXT):
            function(Q, K, cos, SIN)
    unpatch(module)
    assert_bits(module.apply_rotary_pos_emb(Q, K, UNTIED, SIN)[0], llama(Q, K, UNTIED, SIN)[0])


def test_tables_whose_neighbours_differ(module):
    module.apply_rotary_pos_emb = rows_of_image
    patch(module)
    with pytest.raises(ValueError, match=r"cos must be equal in columns 2i and 2i \+ 1"):
        module.apply_rotary_pos_emb(Q, K, COS[0], SIN[0])


def test_a_note_holds_for_the_form_that_was_looked_at(module):
    cos, sin = COS[0].clone(), SIN[0].clone()
    module.apply_rotary_pos_emb = llama
    patch(module)
    module.apply_rotary_pos_emb(Q, K, cos, sin, 0)
    unpatch(module)
    module.apply_rotary_pos_emb = rows_of_image
    patch(module)
    with pytest.raises(ValueError, match=r"cos must be equal in columns 2i and 2i \+ 1"):
        module.apply_rotary_pos_emb(Q, K, cos, sin)


def test_a_call_like_the_last_one_is_looked_at_as_well(module, turns):
    """Decoding makes one for each layer; what is not in their shapes must still be seen."""
    module.apply_rotary_pos_emb = llama
    patch(module)
    turns.clear()
    for scale in (1, 2, 3):
        ours = module.apply_rotary_pos_emb(Q * scale, K, COS.clone(), SIN)
        for mine, right in zip(ours, llama(Q * scale, K, COS, SIN), strict=True):
            assert_bits(mine, right)
    assert len(turns) == 1
    for tables in ((UNTIED, SIN), (COS, UNTIED)):
        with pytest.raises(ValueError, match=TEXT):
            module.apply_rotary_pos_emb(Q, K, *tables)
    learned = COS.clone().requires_grad_()
    sum(x.sum() for x in module.apply_rotary_pos_emb(Q, K, learned, SIN)).backward()
    assert learned.grad[..., 8:].any()
    for args in ((Q.double(), K.double(), COS.double(), SIN.double()),
                 (Q[:, :, :1], K, COS[:, :1], SIN[:, :1]), (Q, K, COS, SIN)):  # fmt: skip
        for mine, right in zip(module.apply_rotary_pos_emb(*args), llama(*args), strict=True):
            assert_bits(mine, right)


def test_a_table_is_looked_at_once(monkeypatch):
    compared, equal = [], torch.equal
    monkeypatch.setattr(torch, "equal", lambda *args: (compared.append(args), equal(*args))[1])
    cos, sin = COS.clone(), SIN.clone()
    for _ in range(3):
        apply_rotary_pos_emb(Q, K, cos, sin)
    assert len(compared) == 2
    not_a_number = COS * float("nan")
    apply_rotary_pos_emb(Q, K, not_a_number, not_a_number)


def test_in_a_graph_the_check_is_an_assert_once_for_each_table():
    def layers(q, k, half):
        cos = torch.cat([half, half * scale], -1)
        for _ in range(3):
            q, k = apply_rotary_pos_emb(q, k, cos, cos)
        return q

    half, scale = uniform((2, 5, 8), seed=3), 1.0
    right = layers(Q, K, half)
    torch.compiler.reset()
    compiled = torch.compile(layers, backend="aot_eager", fullgraph=True)
    assert_bits(compiled(Q, K, half), right)
    scale = 2.0
    with pytest.raises(RuntimeError, match="must be equal in columns i and i"):
        compiled(Q, K, half)
    scale = 1.0
    graph = torch.export.export(Module(layers), (Q, K, half)).graph
    asserts = [node for node in graph.nodes if "_assert_async" in str(node.target)]
    assert len(asserts) == 1


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def test_too_many_columns():
    wide = table(1, 5, 48)
    with pytest.raises(ValueError, match=r"cos must have an even number of columns, at most D = "
                       r"64, got \[1, 5, 96\]"):  # fmt: skip
        apply_rotary_pos_emb(uniform((1, 2, 5, 64)), uniform((1, 2, 5, 64)), wide, wide)


SOURCE = """
import torch
class Attention(torch.nn.Module):
    def forward(self, q, k, cos, sin):
        return helper(q, k, cos, sin)[0]
def helper(*args):
    return apply_rotary_pos_emb(*args)
class Without(torch.nn.Module):
    def forward(self, q, k, cos, sin):
        return q
"""


@pytest.fixture
def family(monkeypatch):
    """A module of code with two functions, one of them unknown and never called."""
    family = types.ModuleType("modeling_family")
    monkeypatch.setitem(sys.modules, "modeling_family", family)
    family.apply_rotary_pos_emb, family.apply_rotary_pos_emb_vision = llama, three
    exec(SOURCE, vars(family))
    yield family
    unpatch(family)


def test_only_functions_that_the_model_calls(family):
    model = torch.nn.Sequential(family.Attention())
    (swap,) = patch(model)
    assert swap.function == "apply_rotary_pos_emb"
    assert family.apply_rotary_pos_emb_vision is three
    assert unpatch(model) == ["modeling_family.apply_rotary_pos_emb"]
    with pytest.raises(ValueError, match=r"must come from code that calls .*got Without, where no "
                       r"code looks up apply_rotary_pos_emb"):  # fmt: skip
        patch(family.Without())
    with pytest.raises(ValueError, match=r"apply_rotary_pos_emb_vision, which was not called"):
        patch(family)


def test_a_class(family):
    del family.apply_rotary_pos_emb_vision
    assert len(patch(family.Attention)) == 1
    assert unpatch(family.Attention) == ["modeling_family.apply_rotary_pos_emb"]


def test_patching_without_gradients(module):
    module.apply_rotary_pos_emb = llama
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert patch(module)
            assert_bits(module.apply_rotary_pos_emb(Q, K, COS, SIN)[0], llama(Q, K, COS, SIN)[0])
        unpatch(module)


def single_precision(q, k, cos, sin, unsqueeze_dim=1):
    """As Cohere: float32 within."""
    results = llama(q.float(), k.float(), cos.float(), sin.float(), unsqueeze_dim)
    return tuple(x.to(q.dtype) for x in results)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_bits_of_the_original_in_every_dtype(module, dtype):
    module.apply_rotary_pos_emb = single_precision
    args = [x.to(dtype) for x in (Q, K, COS, SIN)]
    patch(module, rounding="transformers")
    right = single_precision(*args)[0]
    assert_bits(module.apply_rotary_pos_emb(*args)[0], right)
    patch(module)
    ours = module.apply_rotary_pos_emb(*args)[0]
    assert torch.equal(ours, right) == (dtype != torch.float64)
