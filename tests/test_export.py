"""torch.export with a symbol for the length, which must not become a constant.

As torch.export traces by default, Python code gets a torch.SymInt, which is no int.
"""

import copy

import pytest
import torch
from attention_cases import CASES, D_MODEL, HEADS, module_of
from rope_cases import uniform
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import posenc_ext

LENGTHS = (9, 4, 12, 1)  # BERT has a vector for 12
SLOPES = posenc_ext.alibi_slopes(HEADS)
FREQUENCIES = posenc_ext.rope_frequencies(8).inv_freq
TABLE = posenc_ext.rope_table(32, FREQUENCIES)
T5 = posenc_ext.T5RelativePositionBias(HEADS)
LEARNED = posenc_ext.LearnedPositionalEncoding(D_MODEL, 32)
SINUSOIDAL = posenc_ext.SinusoidalPositionalEncoding(D_MODEL)

# What takes a length or an offset as an int; x is [B, S, d_model].
FUNCTIONS = {
    "rope offset": lambda x, n: posenc_ext.rope(x, *TABLE, layout="bsd", offset=n),
    "rope_table": lambda x, n: posenc_ext.rope_table(n, FREQUENCIES)[0],
    "axial_rope_table": lambda x, n: posenc_ext.axial_rope_table(n, 3, 8)[0],
    "sinusoidal_table": lambda x, n: posenc_ext.sinusoidal_table(n, 8),
    "add_sinusoidal": lambda x, n: posenc_ext.add_sinusoidal(x, offset=n),
    "SinusoidalPositionalEncoding": lambda x, n: SINUSOIDAL(x, offset=n),
    "LearnedPositionalEncoding": lambda x, n: LEARNED(x, offset=n),
    "sequential_positions": lambda x, n: posenc_ext.sequential_positions(n, past=n),
    "context_parallel_positions": lambda x, n: posenc_ext.context_parallel_positions(2 * n, 1, 2),
    "alibi_bias": lambda x, n: posenc_ext.alibi_bias(SLOPES, n, 2 * n),
    "alibi_row_bias": lambda x, n: posenc_ext.alibi_row_bias(SLOPES, n),
    "rel_shift": lambda x, n: posenc_ext.rel_shift(x, n, start=n),
    "relative_scatter": lambda x, n: posenc_ext.relative_scatter(
        x, torch.zeros(n + D_MODEL - 1, dtype=torch.int64), n
    ),
    "T5RelativePositionBias": lambda x, n: T5(n, 2 * n),
    "deberta_relative_index": lambda x, n: posenc_ext.deberta_relative_index(
        n, max_relative_positions=40, position_buckets=16
    ),
}


class Of(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.function = FUNCTIONS[name]

    def forward(self, x):
        return self.function(x, x.shape[1])


def inputs(length, dtype):
    return uniform((2, length, D_MODEL), dtype)


def holds_at_every_length(module, dtype):
    any_length = {"x": {1: torch.export.Dim.DYNAMIC}}
    given = (inputs(6, dtype),)
    module(*given)  # what a module keeps of this length must not bind the graph
    program = torch.export.export(module, given, dynamic_shapes=any_length).module()
    for length in LENGTHS:
        x = inputs(length, dtype)
        torch.testing.assert_close(program(x), module(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    holds_at_every_length(Of(name), torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    holds_at_every_length(module_of(name), torch.float64)


# ---- Dimensions with a name, and caches ----

BOUNDED = ("bert", "LearnedPositionalEncoding", "max_len")  # by a table of their own
OTHERS = {
    "alibi": lambda: posenc_ext.ALiBiAttention(D_MODEL, HEADS),
    "alibi, blocks": lambda: posenc_ext.ALiBiAttention(D_MODEL, HEADS, query_block=4),
    "LearnedPositionalEncoding": lambda: posenc_ext.LearnedPositionalEncoding(D_MODEL, 32),
    "SinusoidalPositionalEncoding": lambda: posenc_ext.SinusoidalPositionalEncoding(D_MODEL),
    "max_len": lambda: posenc_ext.SinusoidalPositionalEncoding(D_MODEL, 32),
}
# Not every variant of a family: those that differ in which rows or masks they take.
NAMED = [
    "shaw", "shaw keys, asymmetric", "bert key query", "transformer-xl", "conformer", "deberta",
    "deberta wide buckets", "rotary", "rotary GQA, interleaved", *OTHERS,
]  # fmt: skip
ONE_OF_EACH = [
    "shaw", "bert key query", "transformer-xl", "deberta wide buckets", "rotary GQA, interleaved",
    "alibi", "alibi, blocks",
]  # fmt: skip
CACHED = ["shaw", "rotary", "rotary GQA, interleaved", "alibi", "alibi, blocks"]


def made(name):
    torch.manual_seed(0)
    return OTHERS[name]().eval() if name in OTHERS else module_of(name, dtype=torch.float32).eval()


def dims(*names, bounded):
    limits = {"min": 1, "max": 12} if bounded else {}
    return [torch.export.Dim(name, **limits) for name in names]


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("name", NAMED)
def test_named_dimensions(name, bounded):
    """Bounded ones non-strictly, unbounded ones strictly."""
    if not bounded and name.startswith(BOUNDED):
        with pytest.raises(Exception, match="Constraints violated"):  # torch names the bound
            exported(made(name), bounded)
        return
    module = made(name)
    program = exported(module, bounded)
    for batch, length in ((2, 9), (3, 4), (1, 1), (4, 12)):
        x = uniform((batch, length, D_MODEL))
        torch.testing.assert_close(program(x), module(x), rtol=1e-5, atol=1e-5)


def exported(module, bounded):
    batch, length = dims("batch", "length", bounded=bounded)
    shapes = {"x": {0: batch, 1: length}}
    given = (uniform((2, 9, D_MODEL)),)
    return torch.export.export(module, given, dynamic_shapes=shapes, strict=not bounded).module()


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("name", CACHED)
def test_caches(name, bounded):
    module, kv = made(name), 1 if "GQA" in name else HEADS
    batch, length, keys = dims("batch", "length", "keys", bounded=bounded)

    def given(b, s, k):
        past = tuple(uniform((b, kv, k, D_MODEL // HEADS), seed=i) for i in range(2))
        return uniform((b, s, D_MODEL)), {"past": past, "use_cache": True}

    x, options = given(2, 3, 9)
    shapes = {"x": {0: batch, 1: length}, "past": ({0: batch, 2: keys},) * 2, "use_cache": None}
    program = torch.export.export(
        module, (x,), options, dynamic_shapes=shapes, strict=not bounded
    ).module()
    for sizes in ((2, 3, 9), (1, 1, 1), (3, 5, 12)):
        x, options = given(*sizes)
        y, cache = program(x, **options)
        right, wanted = module(x, **options)
        torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5)
        assert all(map(torch.equal, cache, wanted))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_two_graphs_for_all_lengths(name):
    """Forward and backward."""
    torch._dynamo.reset()
    module = made(name)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend=counter)
    for length in (9, 4, 7, 12):
        x = uniform((2, length, D_MODEL)).requires_grad_()
        y, right = compiled(x), module(x)
        torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5)
        grads = [torch.autograd.grad(each.sum(), x)[0] for each in (y, right)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 2
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["shaw", "alibi, blocks", "rotary"])
def test_two_graphs_for_all_caches(name):
    torch._dynamo.reset()
    module = made(name)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend=counter)
    for keys in (9, 4, 7, 12):
        past = tuple(uniform((2, HEADS, keys, D_MODEL // HEADS), seed=i) for i in range(2))
        x = uniform((2, 1, D_MODEL))
        torch.testing.assert_close(compiled(x, past=past), module(x, past=past))
    assert counter.frame_count <= 2
    torch._dynamo.reset()


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


UNBOUNDED = {
    "alibi_bias": lambda x: posenc_ext.alibi_bias(SLOPES, x.shape[0], x.shape[1]),
    "alibi_softmax": lambda x: posenc_ext.alibi_softmax(x[None, None], SLOPES[:1]),
    "rel_shift": lambda x: posenc_ext.rel_shift(x, x.shape[0], start=x.shape[1]),
    "resize_position_grid": lambda x: posenc_ext.resize_position_grid(
        uniform((1 + 16, 4)), (x.shape[0], x.shape[1])
    ),
    "xpos_table": lambda x: tuple(posenc_ext.xpos_table(x.shape[1], FREQUENCIES)),
    "xpos_table, centre": lambda x: tuple(
        posenc_ext.xpos_table(x.shape[1], FREQUENCIES, centre=x.shape[1] / 3)
    ),
    "axial_positions": lambda x: posenc_ext.axial_positions(x.shape[0], x.shape[1]),
    "rope, out": lambda x: posenc_ext.rope(
        x, *posenc_ext.rope_table(x.shape[0], FREQUENCIES[:1]), layout="sd", out=torch.empty_like(x)
    ),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_functions_of_two_unbounded_sizes(name):
    module = Call(UNBOUNDED[name])
    rows, columns = dims("rows", "columns", bounded=False)
    program = torch.export.export(
        module, (uniform((5, 7)),), dynamic_shapes={"x": {0: rows, 1: columns}}
    )
    formulas = program.run_decompositions(posenc_ext.decompositions())
    assert "posenc_ext" not in str(formulas.graph)
    for size in ((5, 7), (4, 4), (9, 6)):
        x = uniform(size)
        for each in (program, formulas):
            torch.testing.assert_close(each.module()(x), module(x), rtol=1e-5, atol=1e-5)


def test_values_of_fake_tensors_are_not_read():
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        ids, one = mode.from_tensor(torch.tensor([[3, 9, 2]])), mode.from_tensor(torch.tensor([2]))
        x = mode.from_tensor(uniform((1, 3, D_MODEL)))
        assert LEARNED(x, positions=ids).shape == x.shape
        assert posenc_ext.RobertaEmbeddings(20, 8)(ids, past=one).shape == (1, 3, 8)
        limited = posenc_ext.SinusoidalPositionalEncoding(D_MODEL, max_len=9)
        assert limited(x, offset=one).shape == x.shape
        assert posenc_ext.padding_aware_positions(ids, 1, past=one).shape == ids.shape
        assert posenc_ext.mrope_position_ids([3, (1, 4, 6), 2], spatial_merge_size=2)[1] == -3
