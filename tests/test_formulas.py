"""The formulas in plain PyTorch of posenc_ext.decompositions() against the ops themselves."""

import alibi_cases
import pytest
import relative_cases
import torch
from rope_cases import DTYPES, LAYOUTS, VIEWS, shape, table, uniform
from torch.utils._python_dispatch import TorchDispatchMode

import posenc_ext

FORMULAS = posenc_ext.decompositions()
NAMES = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("posenc_ext::")}
# One rounding to the dtype may fall the other way; sums are in another order.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2**-22,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
}
SUMS = ("grad", "softmax", "scatter", "norm")


def tensors(values):
    return [v for v in values if isinstance(v, torch.Tensor)]


def steps(t):
    """The strides that matter."""
    strides = zip(t.stride(), t.shape, strict=True)
    return [step for step, size in strides if size != 1] if t.numel() else []


def alike(op, actual, right):
    sums = right.dtype == torch.float32 and any(kind in op.name() for kind in SUMS)
    rtol = 1e-5 if sums else TOLERANCE[right.dtype]
    atol = min(rtol, 1e-5 if sums else 2**-22)
    torch.testing.assert_close(actual, right, rtol=rtol, atol=atol, equal_nan=True)


class Compared(TorchDispatchMode):
    """Runs the formula beside every native op that is called."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if op.namespace != "posenc_ext":
            return op(*args, **kwargs)
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        out = {name: t.clone() for name, t in kwargs.items()}
        result = op(*args, **kwargs)
        if op._schema.is_mutable:
            assert FORMULAS[op](*before, **out) is None
            mine, right = [*before, *out.values()], [*args, *kwargs.values()]
        else:
            mine, right = FORMULAS[op](*args), result
            mine, right = ([t] if isinstance(t, torch.Tensor) else t for t in (mine, right))
            for a, b in zip(mine, right, strict=True):
                assert steps(a) == steps(b), op
        for a, b in zip(tensors(mine), tensors(right), strict=True):
            if a.is_floating_point():
                alike(op, a, b)
        self.seen.add(op.name())
        return result


def compared(function, *given):
    """With the gradients of floating inputs."""
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
    with Compared() as mode:
        result = function(*leaves)
        outs = tensors(result if isinstance(result, tuple) else (result,))
        outs = [y for y in outs if y.requires_grad]
        wanted = [t for t in leaves if t.requires_grad]
        if outs and wanted:
            torch.autograd.grad(
                outs, wanted, [uniform(y.shape, y.dtype, 5) for y in outs], allow_unused=True
            )
    return mode.seen


def test_every_op_has_one():
    assert {op.name() for op in FORMULAS} == NAMES


SOURCES = ("none", "offset", "offsets", "offset []", "positions", "positions [B]", "token", "same")


def rope_call(layout, source, n):
    """Tables and options for one way of giving rows, for 5 tokens and a batch of 2."""
    batch, length = shape("b")[0] if "b" in layout else 1, shape("s")[0]
    every = torch.arange(length).flip(0)
    cos, sin = table(n)
    options = {
        "none": {},
        "offset": {"offset": 3},
        "offset []": {"offset": torch.tensor(4)},
        "offsets": {"offset": torch.arange(batch) * 2},
        "positions": {"positions": every.int()},
        "positions [B]": {"positions": torch.stack([every + i for i in range(batch)])},
        "token": {},
        "same": {},
    }[source]
    if source in ("token", "same"):
        count = batch if source == "token" else 1
        cos, sin = (torch.stack([t[i : i + length] for i in range(count)]) for t in (cos, sin))
    return cos, sin, options


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source", SOURCES)
def test_rope_rows(layout, source):
    cos, sin, options = rope_call(layout, source, 10)
    q, k = uniform(shape(layout)), uniform(shape(layout, h=1), seed=1)

    def call(q, k, cos, sin):
        return posenc_ext.apply_rope(q, k, cos, sin, layout=layout, **options)

    assert compared(call, q, k, cos, sin) >= {"posenc_ext::apply_rope"}


@pytest.mark.parametrize("offset", [0, 2, torch.tensor(1), torch.tensor([3, 0, 1])], ids=str)
def test_rope_of_packed_sequences(offset):
    bounds = torch.tensor([0, 2, 2, 5])
    x, (cos, sin) = uniform(shape("thd")), table(20)
    options = {"layout": "thd", "cu_seqlens": bounds, "offset": offset}
    compared(lambda x, c, s: posenc_ext.rope(x, c, s, **options), x, cos, sin)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("tables", [torch.float32, None])
def test_rope_dtypes_and_strides(dtype, interleaved, tables):
    cos, sin = table(8, tables or dtype)
    for i, view in enumerate(VIEWS.values()):
        x = view(uniform(shape("bhsd"), dtype, i))
        options = {"layout": "bhsd", "interleaved": interleaved, "inverse": bool(i % 2)}
        options["interleaved_out"] = bool(i // 2 % 2)
        seen = compared(lambda x, c, s, o=options: posenc_ext.rope(x, c, s, **o), x, cos, sin)
        assert seen == {"posenc_ext::rope", "posenc_ext::rope_table_grad"}


def test_rope_in_place_and_out():
    q, k, (cos, sin) = uniform(shape("bshd")), uniform(shape("bshd", h=1)), table(20)
    with Compared() as mode:
        posenc_ext.rope(q, cos, sin, inplace=True)
        posenc_ext.apply_rope(q, k, cos, sin, inplace=True)
        posenc_ext.rope(q, cos, sin, out=torch.empty_like(q))
    assert mode.seen == {"posenc_ext::rope_", "posenc_ext::apply_rope_", "posenc_ext::rope_out"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables(dtype):
    inv_freq = posenc_ext.rope_frequencies(64).inv_freq
    whole = torch.tensor([0, 1, -3, 131071, 2**28 + 1])
    for positions in (whole, whole.int(), uniform((2, 5)).double() * 1000, uniform((3,), dtype)):
        compared(lambda p: posenc_ext.rope_table(p, inv_freq, dtype=dtype), positions)
        for convention in ("interleaved", "concatenated", "tensor2tensor", "diffusion"):
            for dim in (6, 7, 1):
                options = {"convention": convention, "dtype": dtype}
                compared(lambda p, d=dim, o=options: posenc_ext.sinusoidal_table(p, d, **o),
                         positions)  # fmt: skip
    compared(lambda: posenc_ext.rope_table(9, inv_freq, attention_factor=1.25, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_sinusoidal(dtype):
    for view in VIEWS.values():
        for size, offset in (
            ((2, 5, 7), torch.tensor([3, -1])),
            ((5, 7), 4),
            ((5, 7), torch.tensor([2])),
        ):
            x = view(uniform(size, dtype))
            options = {"scale": 2.5, "convention": "diffusion", "offset": offset}
            compared(lambda x, o=options: posenc_ext.add_sinusoidal(x, **o), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
def test_alibi(dtype, causal, batch):
    slopes = alibi_cases.slopes_of(batch=batch)
    for i, (q, k) in enumerate([*alibi_cases.LENGTHS[:9], *alibi_cases.EMPTY]):
        scores = tuple(VIEWS.values())[i % len(VIEWS)](alibi_cases.scores_of((q, k), dtype))
        if i % len(VIEWS) == 7:
            scores = scores.contiguous()
        options = {"causal": causal}
        compared(lambda s, m, o=options: posenc_ext.add_alibi(s, m, **o), scores, slopes)
        keep = None if i % 2 else alibi_cases.mask_of(2, k)
        softmax = {"key_padding_mask": keep, "scale": 0.7, **options}
        compared(lambda s, m, o=softmax: posenc_ext.alibi_softmax(s, m, **o), scores, slopes)
        bias = {"dtype": dtype, **options}
        compared(lambda m, q=q, k=k, o=bias: posenc_ext.alibi_bias(m, q, k, **o), slopes)
        if q <= k:
            bias["key_positions"] = torch.stack([torch.arange(k), torch.arange(k) - 3]).clamp(min=0)
            compared(lambda m, q=q, o=bias: posenc_ext.alibi_bias(m, q, **o), slopes)
    with Compared() as mode:
        posenc_ext.add_alibi(alibi_cases.scores_of((3, 4), dtype), slopes, inplace=True)
    assert mode.seen == {"posenc_ext::add_alibi_"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", relative_cases.KINDS)
def test_relative(dtype, kind):
    for q, k in relative_cases.LENGTHS:
        index, size = relative_cases.index_of(kind, q, k, torch.int32)
        compared(
            lambda x, i=index, k=k: posenc_ext.relative_gather(x, i, k),
            uniform((2, q, size), dtype),
        )
        compared(
            lambda y, i=index, n=size: posenc_ext.relative_scatter(y, i, n),
            uniform((2, q, k), dtype),
        )


def test_inductor_finds_no_formula():
    """Where the environment has CI set, inductor refuses an op with a kernel and a formula."""
    assert not torch._decomp.get_decompositions(list(FORMULAS))
