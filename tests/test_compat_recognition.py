"""`patch` on modeling code of one's own: what it takes, what it refuses and why."""

import functools
import sys
import types

import pytest
import torch
from rope_cases import assert_bits, rotate_half, uniform

from posenc_ext.compat import hf_rotations
from posenc_ext.compat.transformers import apply_rotary_pos_emb, patch, unpatch


def turned(x, cos, sin, interleaved=False):
    return x * cos + rotate_half(x, interleaved) * sin


def llama(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return turned(q, cos, sin), turned(k, cos, sin)


def tail(x, cos, sin, unsqueeze_dim=1):
    """As DeepSeek-V4: the last channels, interleaved."""
    cos, sin = (t.repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for t in (cos, sin))
    rest, part = x[..., : -cos.shape[-1]], x[..., -cos.shape[-1] :]
    return torch.cat([rest, (turned(part.float(), cos, sin, True)).to(x.dtype)], -1)


def prefixed(q, k, cos, sin, **kwargs):
    """As DINOv3: the first tokens have no position."""
    sizes = (q.shape[-2] - sin.shape[-2], sin.shape[-2])
    parts = [x.split(sizes, -2) for x in (q, k)]
    return tuple(torch.cat([first, turned(rest, cos, sin)], -2) for first, rest in parts)


def optional(q, k=None, cos=None, sin=None, unsqueeze_dim=1):
    """As Qwen4-exp."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return turned(q, cos, sin) if k is None else (turned(q, cos, sin), turned(k, cos, sin))


def optional_pair(q, k, cos, sin, unsqueeze_dim=1):
    """As Mistral Large 4."""
    result = optional(q, k, cos, sin, unsqueeze_dim)
    return (result, None) if k is None else result


def complex_tables(xq, xk, freqs_cis, axis):
    as_complex = [torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) for x in (xq, xk)]
    freqs_cis = freqs_cis.unsqueeze(axis)
    return tuple(torch.view_as_real(x * freqs_cis).flatten(-2).type_as(xq) for x in as_complex)


def llama4(xq, xk, freqs_cis):
    return complex_tables(xq, xk, freqs_cis, 2)


def deepseek_v2(xq, xk, freqs_cis):
    return complex_tables(xq, xk, freqs_cis, 1)


def rows_of_image(q, k, cos, sin):
    """As SAM 3: tables line up by broadcasting."""
    return turned(q, cos, sin, True), turned(k, cos, sin, True)


@pytest.fixture
def module():
    module = types.ModuleType("modeling_mine")
    yield module
    unpatch(module)


@pytest.fixture
def turns(monkeypatch):
    """A list that grows with each rotation by ours."""
    made, rotate = [], hf_rotations.rotate
    monkeypatch.setattr(hf_rotations, "rotate", lambda *args: (made.append(args), rotate(*args))[1])
    return made


def table(*shape, tied=True):
    half = uniform(shape, seed=3)
    return torch.cat([half, half if tied else uniform(shape, seed=4)], -1)


Q, K = uniform((2, 4, 5, 16)), uniform((2, 2, 5, 16), seed=1)
QT, KT = uniform((2, 5, 4, 16)), uniform((2, 5, 2, 16), seed=1)
COS, SIN = table(2, 5, 8), table(2, 5, 8).flip(1)
HALF = uniform((2, 5, 4), seed=5), uniform((2, 5, 4), seed=6)
CIS = torch.complex(uniform((2, 5, 8), seed=5), uniform((2, 5, 8), seed=6))
KNOWN = {  # function, arguments, form
    "tail": (tail, (Q, *HALF), "interleaved pairs of the last channels, half tables"),
    "tail, other axis": (tail, (QT, *HALF, 2), "interleaved pairs of the last channels, half"),
    "prefix": (prefixed, (uniform((2, 4, 7, 16)), uniform((2, 2, 7, 16)), COS[0], SIN[0]), "half"),
    "no prefix": (prefixed, (Q, K, COS[0], SIN[0]), "half pairs"),
    "without k": (optional, (Q, None, COS, SIN), "half pairs"),
    "with k": (optional, (QT, KT, COS, SIN, 2), "half pairs"),
    "pair without k": (optional_pair, (Q, None, COS, SIN), "half pairs"),
    "complex, heads inside": (llama4, (QT, KT, CIS), "interleaved pairs, complex tables"),
    "complex, heads outside": (deepseek_v2, (Q, K, CIS), "interleaved pairs, complex tables"),
    "table of the heads' rank": (
        rows_of_image,
        (Q, K, *(t[:, None, :, :8].repeat_interleave(2, -1) for t in (COS, SIN))),
        "interleaved pairs, repeated tables",
    ),
    "default axis": (functools.partial(llama, unsqueeze_dim=2), (QT, KT, COS, SIN), "half"),
}


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", KNOWN)
def test_known(case, module, turns):
    function, args, form = KNOWN[case]
    module.apply_rotary_pos_emb = function
    (swap,) = patch(module)
    assert swap.form.startswith(form)
    ours, right = module.apply_rotary_pos_emb(*args), function(*args)
    assert type(ours) is type(right)
    for mine, wanted in zip(as_tuple(ours), as_tuple(right), strict=True):
        if wanted is None:
            assert mine is None
        elif "complex" in form:  # torch may fuse the sums of a complex product
            torch.testing.assert_close(mine, wanted, rtol=0, atol=3e-7)
        else:
            assert_bits(mine, wanted)
    assert turns


OUTSIDE = {  # calls of `llama` or `prefixed` that the original takes
    "fewer tokens in q": (llama, (Q[:, :, :1], K, COS[:, :1], SIN[:, :1]), {}),
    "a batch of one": (llama, (Q[:1], K, COS, SIN), {}),
    "one row for all": (llama, (Q, K, COS[:, :1], SIN[:, :1]), {}),
    "float64 tables": (llama, (Q, K, COS.double(), SIN.double()), {}),
    "another dtype of k": (llama, (Q, K.bfloat16(), COS, SIN), {}),
    "tables that are learned": (llama, (Q, K, COS.clone().requires_grad_(), SIN), {}),
    "another keyword": (prefixed, (Q, K, COS[0], SIN[0]), {"scale": 2.0}),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_other_calls_run_the_original(case, module, turns):
    function, args, options = OUTSIDE[case]
    module.apply_rotary_pos_emb = function
    patch(module)
    turns.clear()
    ours, right = module.apply_rotary_pos_emb(*args, **options), function(*args, **options)
    for mine, wanted in zip(ours, right, strict=True):
        assert_bits(mine, wanted)
    assert not turns
    with pytest.raises(TypeError, match="argument"):
        module.apply_rotary_pos_emb(*args, wrong=1) if function is llama else llama()


class HubModule(torch.nn.Module):
    """As the package kernels wraps a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


@functools.wraps(llama)
def logged(*args, **kwargs):
    return llama(*args, **kwargs)


WRAPPED = {
    "a module": HubModule(llama),
    "a function that names its original": logged,
    "a function that does not": lambda *args, **kwargs: llama(*args, **kwargs),
    "a partial": functools.partial(llama, unsqueeze_dim=1),
    "compiled": torch.compile(llama, backend="eager"),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_wrapped(kind, module, turns):
    original = module.apply_rotary_pos_emb = WRAPPED[kind]
    (swap,) = patch(module)
    assert swap.form == "half pairs, tiled tables"
    turns.clear()
    ours = module.apply_rotary_pos_emb(QT, KT, COS, SIN, unsqueeze_dim=2)
    for mine, wanted in zip(ours, llama(QT, KT, COS, SIN, 2), strict=True):
        assert_bits(mine, wanted)
    assert turns
    unpatch(module)
    assert module.apply_rotary_pos_emb is original


def scaled_rest(q, k, cos, sin, unsqueeze_dim=1):
    """Wrong only where there are more channels than columns."""
    n = cos.shape[-1]
    parts = llama(q[..., :n], k[..., :n], cos, sin, unsqueeze_dim)
    return tuple(torch.cat([y, 2 * x[..., n:]], -1) for x, y in zip((q, k), parts, strict=True))


def in_place(q, k, cos, sin, unsqueeze_dim=1):
    result = llama(q.clone(), k, cos, sin, unsqueeze_dim)
    q.zero_()
    return result


def second_call(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q, k, cos, sin if q.shape[-2] < 5 else -sin, unsqueeze_dim)


def not_in_half(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q, k, cos, sin, unsqueeze_dim) if q.dtype == torch.float32 else (q, k)


def without_gradient(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q.detach(), k, cos, sin, unsqueeze_dim)


def dense_only(q, k, cos, sin, unsqueeze_dim=1):
    """Wrong where channels are not next to each other."""
    return llama(q * (1 if q.stride(-1) == 1 else 2), k, cos, sin, unsqueeze_dim)


def three(q, k, v, cos, sin):
    return (*llama(q, k, cos, sin), v)


def raising(q, k, cos, sin):
    raise RuntimeError("not today")


REFUSED = {
    scaled_rest: "differs in channels 8",
    in_place: "writes into its arguments",
    second_call: "other results than half pairs, tiled tables: q differs in channels 0",
    not_in_half: "other results than half pairs, tiled tables for q in torch.bfloat16",
    without_gradient: "does not pass on the gradient",
    dense_only: "other results than half pairs, tiled tables: q differs in channels 0",
    three: r"was not called, since it has a parameter 'v' in \(q, k, v, cos, sin\)",
    raising: "was called and raised each time, first RuntimeError: not today",
    max: "was not called, since it has no signature",
}


@pytest.mark.parametrize("function", REFUSED)
def test_refused_with_the_reason(function, module):
    module.apply_rotary_pos_emb = function
    with pytest.raises(ValueError, match=rf"apply_rotary_pos_emb, which .*{REFUSED[function]}"):
        patch(module)
    assert module.apply_rotary_pos_emb is function


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
