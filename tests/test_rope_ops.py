"""The dispatcher ops of RoPE: both doors, opcheck, meta and fake tensors, torch.compile."""

import pytest
import torch
from rope_cases import LAYOUTS, VIEWS, assert_bits, shape, table, threads, uniform
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import posenc_ext

OPS = torch.ops.posenc_ext
ALL_OPS = (
    "rope",
    "rope_",
    "rope_out",
    "apply_rope",
    "apply_rope_",
    "rope_table_grad",
    "rope_table",
)


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def per_token(batch):
    return {"cos": uniform((batch, 5, 8), seed=1), "sin": uniform((batch, 5, 8), seed=2)}


# Options of the public functions; x has shape [2, 5, 3, 20], in the layout if one is named.
SAMPLES = {
    "plain": {},
    "bhsd_transposed": {"layout": "bhsd", "view": "transposed"},
    "fused_qkv": {"view": "fused_qkv"},
    "last_stride_2": {"view": "last_stride_2"},
    "interleaved_inverse": {"interleaved": True, "inverse": True},
    "interleaved_to_half": {"interleaved": True, "interleaved_out": False},
    "half_to_interleaved": {"interleaved_out": True, "inverse": True},
    "bfloat16": {"dtype": torch.bfloat16},
    "float64": {"dtype": torch.float64},
    "offset": {"offset": 9},
    "offsets": {"offset": ints(3, 40)},
    "positions": {"positions": ints(3, 1, 4, 1, 5, dtype=torch.int32)},
    "positions_per_batch": {"positions": torch.arange(10).view(2, 5), "layout": "sbhd"},
    "per_token": {**per_token(2)},
    "per_token_broadcast": {**per_token(1), "layout": "bsd"},
    "packed": {"layout": "thd", "cu_seqlens": ints(0, 3, 3, 5), "offset": ints(0, 9, 2)},
    "sd": {"layout": "sd", "view": "permuted"},
    "empty": {"size": (2, 0, 3, 20)},
}
every_sample = pytest.mark.parametrize("sample", SAMPLES)


def unpack(sample, seed=0):
    """(x, cos, sin, options of the public function), all fresh."""
    options = dict(SAMPLES[sample])
    dtype, view = options.pop("dtype", torch.float32), options.pop("view", "contiguous")
    size = options.pop("size", None) or shape(options.get("layout", "bshd"), d=20)
    tables = dict(zip(("cos", "sin"), table(8), strict=True))
    cos, sin = (options.pop(n, tables[n]) for n in tables)
    return VIEWS[view](uniform(size, dtype, seed)), cos, sin, options


def tail(cos, sin, options):
    """The arguments that end every schema, from the public options."""
    offset = options.get("offset", 0)
    offset, offsets = (0, offset) if isinstance(offset, torch.Tensor) else (offset, None)
    flags = (
        options.get("layout", "bshd"),
        options.get("interleaved", False),
        options.get("inverse", False),
        options.get("interleaved_out", options.get("interleaved", False)),
    )
    return cos, sin, options.get("positions"), offsets, options.get("cu_seqlens"), offset, *flags


def op_call(op, sample):
    """Positional and keyword arguments of a dispatcher op for the sample."""
    x, cos, sin, options = unpack(sample)
    if op == "rope_table":
        return (
            torch.arange(x.shape[0] + 3),
            posenc_ext.rope_frequencies(10).inv_freq,
            1.5,
            torch.float32,
        ), {}
    lead = [x] if op in ("rope", "rope_", "rope_out") else [x, unpack(sample, 1)[0]]
    keywords = {"out": torch.empty_like(x)} if op == "rope_out" else {}
    return (*lead, *tail(cos, sin, options)), keywords


def by_public_function(op, sample):
    """The same results through the public function and its short path."""
    x, cos, sin, options = unpack(sample)
    if op == "rope_table":
        positions, inv_freq, factor, dtype = op_call(op, sample)[0]
        return posenc_ext.rope_table(positions, inv_freq, attention_factor=factor, dtype=dtype)
    other = unpack(sample, 1)[0]
    if op == "rope_table_grad":
        cos, sin = cos.clone().requires_grad_(), sin.clone().requires_grad_()
        return torch.autograd.grad(posenc_ext.rope(other, cos, sin, **options), (cos, sin), x)
    if op == "rope_out":
        return [posenc_ext.rope(x, cos, sin, out=torch.empty_like(x), **options)]
    if op.startswith("rope"):
        return [posenc_ext.rope(x, cos, sin, inplace=op.endswith("_"), **options)]
    return posenc_ext.apply_rope(x, other, cos, sin, inplace=op.endswith("_"), **options)


def test_every_registered_op_is_listed():
    registered = {
        n.removeprefix("posenc_ext::")
        for n in torch._C._dispatch_get_all_op_names()
        if "posenc_ext::" in n
    }
    cache = {"apply_rope_cache", "apply_rope_cache_"}  # test_rope_cache_ops.py
    rope = {n for n in registered if "rope" in n and "norm" not in n}  # test_norm_rope_ops.py
    assert rope == set(ALL_OPS) | cache


@every_sample
@pytest.mark.parametrize("op", ALL_OPS)
def test_both_doors_are_one(op, sample):
    args, keywords = op_call(op, sample)
    returned = getattr(OPS, op)(*args, **keywords)
    if op in ("rope_", "rope_out", "apply_rope_"):
        assert returned is None
        returned = {"rope_": args[:1], "rope_out": [keywords.get("out")], "apply_rope_": args[:2]}[
            op
        ]
    returned = [returned] if isinstance(returned, torch.Tensor) else returned
    public = by_public_function(op, sample)
    assert len(public) == len(returned)
    for a, b in zip(returned, public, strict=True):
        assert_bits(a, b)
        assert a.stride() == b.stride()


@every_sample
@pytest.mark.parametrize("op", ALL_OPS)
def test_opcheck(op, sample):
    args, keywords = op_call(op, sample)
    torch.library.opcheck(getattr(OPS, op).default, args, keywords)


@pytest.mark.parametrize(
    "op", ["rope", "rope_", "rope_out", "apply_rope", "apply_rope_", "rope_table_grad"]
)
def test_ops_check_their_arguments_themselves(op):
    """Called without the public functions, as from an exported graph, they are as safe."""
    args, keywords = op_call(op, "plain")
    first = 1 if op in ("rope", "rope_", "rope_out") else 2
    bad = {
        "width": (ValueError, first, uniform((64, 11))),
        "dtype": (TypeError, first, table(8, torch.float64)[0]),
        "positions": (IndexError, first + 2, ints(0, 1, 2, 3, 64)),
        "layout": (ValueError, first + 6, "dhsb"),
        "rank": (ValueError, 0, uniform((5, 3, 20))),
    }
    for exception, index, value in bad.values():
        wrong = list(args)
        wrong[index] = value
        if index == first:
            wrong[first + 1] = value
        with pytest.raises(exception, match=r"posenc_ext\.\w+: \w+ must .+, got .+"):
            getattr(OPS, op)(*wrong, **keywords)


@pytest.mark.parametrize("mode", ["meta", "fake"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_meta_and_fake_tensors_tell_shape_and_strides(layout, view, mode):
    x = VIEWS[view](uniform(shape(layout), torch.bfloat16))
    cos, sin = table(16)
    real = [
        posenc_ext.rope(x, cos, sin, layout=layout),
        *posenc_ext.apply_rope(x, x, cos, sin, layout=layout),
    ]
    if mode == "meta":
        x, cos, sin = (
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
            for t in (x, cos, sin)
        )
        told = [
            posenc_ext.rope(x, cos, sin, layout=layout),
            *posenc_ext.apply_rope(x, x, cos, sin, layout=layout),
        ]
    else:
        with FakeTensorMode() as fake:
            x, cos, sin = (fake.from_tensor(t) for t in (x, cos, sin))
            told = [
                posenc_ext.rope(x, cos, sin, layout=layout),
                *posenc_ext.apply_rope(x, x, cos, sin, layout=layout),
            ]
    for a, b in zip(told, real, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert a.device.type == ("meta" if mode == "meta" else "cpu")


@every_sample
def test_meta_tensors_in_place_and_out(sample):
    x, cos, sin, options = unpack(sample)
    to = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    x, cos, sin = (t.to("meta") for t in (x, cos, sin))
    assert posenc_ext.rope(x, cos, sin, inplace=True, **to) is x
    out = torch.empty_like(x)
    assert posenc_ext.rope(x, cos, sin, out=out, **to) is out
    y = posenc_ext.rope(x.requires_grad_(), cos.requires_grad_(), sin.requires_grad_(), **to)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert cos.grad.shape == cos.shape
    assert sin.grad.shape == sin.shape


def call_rope(x, cos, sin):
    return posenc_ext.rope(x, cos, sin)


def call_bhsd(x, cos, sin):
    return posenc_ext.rope(x.transpose(1, 2), cos, sin, layout="bhsd", interleaved=True, offset=2)


def call_apply(x, cos, sin):
    q, k = posenc_ext.apply_rope(x, x[:, :, :1] * 2, cos, sin)
    return q * k


def call_inplace(x, cos, sin):
    return posenc_ext.rope(x * 1.0, cos, sin, inplace=True)


def call_pairs(x, cos, sin):
    return posenc_ext.rope(x, cos, sin, interleaved=True, interleaved_out=False)


def call_positions(x, cos, sin):
    positions = torch.arange(x.shape[1], device=x.device).flip(0)
    return posenc_ext.rope(x, cos, sin, positions=positions)


def call_per_token(x, cos, sin):
    return posenc_ext.rope(x, cos[None, : x.shape[1]], sin[None, : x.shape[1]])


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def value_and_grads(function, length, tables):
    x = uniform((2, length, 3, 20), seed=length).requires_grad_()
    cos, sin = (t.requires_grad_(tables) for t in table(8))
    y = function(x, cos, sin)
    wanted = (x, cos, sin) if tables else (x,)
    return [y.detach(), *torch.autograd.grad(y, wanted, uniform(y.shape, seed=1))]


@pytest.mark.parametrize("tables", [False, True], ids=["x", "x_cos_sin"])
@pytest.mark.parametrize(
    "function",
    [call_rope, call_bhsd, call_apply, call_inplace, call_pairs, call_positions, call_per_token],
)
def test_compile(function, tables, fresh_dynamo):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for length in (5, 6, 7, 8, 12, 16, 17, 20):
        got, right = (value_and_grads(f, length, tables) for f in (compiled, function))
        for a, b in zip(got, right, strict=True):
            assert_bits(a, b)
        assert got[0].stride() == right[0].stride()
    assert counter.frame_count <= 2
    assert torch._dynamo.explain(function)(uniform((2, 5, 3, 20)), *table(8)).graph_break_count == 0


def test_compile_without_gradient_over_decode_steps(fresh_dynamo):
    def step(q, k, cos, sin, offset):
        return posenc_ext.apply_rope(q, k, cos, sin, offset=offset, inplace=True)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    cos, sin = table(8)
    for offset in range(3, 12):
        q, k = uniform((2, 1, 4, 20), seed=offset), uniform((2, 1, 2, 20), seed=1)
        right = posenc_ext.apply_rope(q.clone(), k.clone(), cos, sin, offset=offset)
        for y, written, r in zip(compiled(q, k, cos, sin, offset), (q, k), right, strict=True):
            assert_bits(y, r)
            assert_bits(written, r)
    assert counter.frame_count <= 2


def test_compiled_threads(fresh_dynamo):
    """A compiled call gives the same bits under another thread count."""
    compiled = torch.compile(call_rope, fullgraph=True, backend="aot_eager")
    x, (cos, sin) = uniform((2, 60, 16, 20)), table(8)
    with threads(1):
        one = compiled(x, cos, sin)
    with threads(2):
        assert_bits(compiled(x, cos, sin), one)
