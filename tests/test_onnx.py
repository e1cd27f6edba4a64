"""Every public function and module in onnxruntime, as plain torch.onnx.export writes it.

An export takes seconds, so each test exports many calls as one module. `make peers-test` installs
what these need.
"""

import functools
import inspect

import attention_cases
import pytest
import test_export
import torch
from fuzz_calls import FUNCTIONS
from hf_models import SIZES
from onnx_run import Calls, Every, close, count, exported
from rope_cases import LAYOUTS, shape, uniform
from test_formulas import SOURCES, rope_call

import posenc_ext

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
HALF = ("x", "q", "k", "w", "y", "scores", "weight")
# Neither tensors in nor tensors out, or a function for flex_attention.
NO_TENSORS = {"rope_frequencies", "mrope_axes", "mrope_position_ids", "alibi_score_mod"}
WRITE = {"KVCache", "apply_rope_cache"}  # into a cache: a graph of ONNX has no memory to keep one


def runs_as_in_torch(functions, given, others=(), dynamic_shapes=None, opset=None):
    """The program, after its results were compared for `given` and `others`."""
    module = Calls(functions).eval()
    program, run = exported(module, given, dynamic_shapes, opset)
    for tensors in (given, *others):
        right = [y for each in module(*tensors) for y in each]
        for a, b in zip(run(*tensors), right, strict=True):
            close(a, b)
    return program


def public_call(name, dtype):
    """A function of the tensors among the arguments of a public function, and those tensors."""
    arguments = FUNCTIONS[name]
    tensors = {key: v for key, v in arguments.items() if isinstance(v, torch.Tensor)}
    fixed = {key: v for key, v in arguments.items() if key not in tensors}

    def call(*given):
        return getattr(posenc_ext, name)(**dict(zip(tensors, given, strict=True)), **fixed)

    return call, [t.to(dtype) if key in HALF else t for key, t in tensors.items()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_public_functions(dtype):
    calls = [public_call(name, dtype) for name in FUNCTIONS if name not in NO_TENSORS | WRITE]
    functions, given = zip(*calls, strict=True)
    runs_as_in_torch(functions, given)


def test_every_public_name_is_exported_somewhere():
    modules = {
        name
        for name in posenc_ext.__all__
        if inspect.isclass(value := getattr(posenc_ext, name))
        and issubclass(value, torch.nn.Module)
    }
    here = {type(m).__name__ for m in (*attention_modules(torch.float32), *embeddings())}
    assert modules == here | {"RobertaEmbeddings", "RotaryPositionalEmbedding"} | {
        "RelativePositionalEmbedding"
    }
    functions = {
        name for name in posenc_ext.__all__ if inspect.isfunction(getattr(posenc_ext, name))
    }
    assert functions - {"decompositions"} == set(FUNCTIONS) - {"KVCache"}


def embeddings():
    return [
        posenc_ext.SinusoidalPositionalEncoding(24, scale=2.0),
        posenc_ext.LearnedPositionalEncoding(24, 32),
        posenc_ext.T5RelativePositionBias(3),
    ]


def attention_modules(dtype):
    made = [attention_cases.module_of(name, dtype=dtype) for name in attention_cases.CASES]
    for options in ({}, {"causal": False}, {"query_block": 4}, {"learn_slopes": True}):
        made.append(posenc_ext.ALiBiAttention(24, 3, dtype=dtype, **options))
    return made


def runs_at_any_length(functions, dtype=torch.float32):
    batch, length = (torch.export.Dim(name, min=2, max=12) for name in ("batch", "length"))
    sizes = ((2, 9, 24), (3, 4, 24), (1, 1, 24))
    first, *others = [([uniform(size, dtype)],) for size in sizes]
    runs_as_in_torch([Every(functions)], first, others, (([{0: batch, 1: length}],),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention_of_any_batch_and_length(dtype):
    runs_at_any_length(attention_modules(dtype), dtype)


def test_functions_of_any_length():
    """What takes a length or an offset as an int, and modules that embed."""
    functions = [functools.partial(of_length, f) for f in test_export.FUNCTIONS.values()]
    runs_at_any_length([*functions, *embeddings()[:2]])


def of_length(function, x):
    return function(x, x.shape[1])


def test_caches_of_any_length():
    made = [
        posenc_ext.RotaryAttention(24, 3),
        posenc_ext.ALiBiAttention(24, 3),
        posenc_ext.RelativeSelfAttention(24, 3, 5, causal=True),
    ]
    functions = [functools.partial(decode, module) for module in made]
    names = ("batch", "length")
    batch, keys = (torch.export.Dim(name, min=2, max=64) for name in names)

    def given(b, k):
        cache = uniform((b, 3, k, 8)), uniform((b, 3, k, 8), seed=1)
        return tuple([uniform((b, 1, 24)), *cache] for _ in made)

    each = [{0: batch}, {0: batch, 2: keys}, {0: batch, 2: keys}]
    runs_as_in_torch(functions, given(2, 5), [given(3, 17), given(1, 1)], ((each,) * len(made),))


def decode(module, x, *past):
    y, (k, v) = module(x, past=past, use_cache=True)
    return y, k, v


@pytest.mark.parametrize("opset", [20, 23])
def test_rotations_become_rotary_embedding(opset):
    """From opset 23 on, in every layout and with every way to give rows."""
    functions, given, nodes = [], [], 0
    for i, layout in enumerate(LAYOUTS):
        for j, source in enumerate(SOURCES):
            if opset == 20 and (i + j) % 4:
                continue  # test_formulas.py has them all
            cos, sin, options = rope_call(layout, source, 10)
            options |= {"layout": layout, "interleaved": bool(j % 2), "inverse": i % 3 == 0}
            functions.append(functools.partial(rotated, options))
            dtype = (torch.float32, torch.float16)[(i + j) % 2]
            x = uniform(shape(layout, d=20 if j % 3 else 24), dtype)
            given.append([x, uniform(x.shape, dtype, 1), cos, sin])
            nodes += 2
    bounds = torch.tensor([0, 2, 2, 5])
    functions.append(functools.partial(rotated, {"layout": "thd", "cu_seqlens": bounds}))
    given.append([uniform(shape("thd")), uniform(shape("thd")), *rope_call("thd", "none", 20)[:2]])
    program = runs_as_in_torch(functions, tuple(given), opset=opset)
    assert count(program) == (nodes + 2 if opset >= 23 else 0)


def rotated(options, q, k, cos, sin):
    return posenc_ext.apply_rope(q, k, cos, sin, **options)


@pytest.mark.parametrize("opset", [None, 23])
def test_a_patched_model_says_the_same(opset):
    transformers = pytest.importorskip("transformers")
    from posenc_ext.compat.transformers import patch, unpatch

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    ids = torch.arange(1, 8)[None]
    right = model.generate(ids, max_new_tokens=12, do_sample=False)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids, use_cache=False).logits[:, -1]

    patch(model)
    try:
        length = torch.export.Dim("length", min=2, max=64)
        program, run = exported(Logits().eval(), (ids,), ({1: length},), opset)
    finally:
        unpatch(model)
    assert count(program) == (4 if opset == 23 else 0)  # q and k of two layers
    while ids.shape[1] < right.shape[1]:
        ids = torch.cat([ids, run(ids)[0].argmax(-1, keepdim=True)], 1)
    assert torch.equal(ids, right)
