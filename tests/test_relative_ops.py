"""The relative functions as dispatcher ops and in autograd, and every check of theirs."""

import functools

import pytest
import torch
from relative_cases import KINDS, index_of
from rope_cases import VIEWS, assert_bits, uniform
from rope_refusals import on_meta, refused
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from transform_cases import assert_vmap, batched

import posenc_ext

OPS = torch.ops.posenc_ext
F64, I64 = torch.float64, torch.int64
every_kind = pytest.mark.parametrize("kind", KINDS)


# ---- gradients ----


def functions(kind, q_len=3, k_len=4):
    index, size = index_of(kind, q_len, k_len)
    return {
        "gather": (lambda x: posenc_ext.relative_gather(x, index), (2, q_len, size)),
        "scatter": (lambda y: posenc_ext.relative_scatter(y, index, size), (2, q_len, k_len)),
    }


@pytest.mark.parametrize("which", ["gather", "scatter"])
@every_kind
def test_gradcheck(which, kind):
    function, shape = functions(kind)[which]
    x = uniform(shape, F64).requires_grad_()
    assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True)
    # a linear function alone has no second derivative
    assert torch.autograd.gradgradcheck(lambda x: function(x**3), (x,), check_fwd_over_rev=True)


def test_gradcheck_rel_shift():
    x = uniform((2, 3, 6), F64).requires_grad_()
    for options in ({}, {"k_len": 4}, {"k_len": 3, "start": 3}):
        shift = functools.partial(posenc_ext.rel_shift, **options)
        assert torch.autograd.gradcheck(shift, (x,), check_forward_ad=True)


@every_kind
def test_gradients_are_the_adjoint_bit_for_bit(kind):
    index, size = index_of(kind, 6, 20)
    x, y = uniform((2, 6, size)).requires_grad_(), uniform((2, 6, 20), seed=1).requires_grad_()
    posenc_ext.relative_gather(x, index).backward(y.detach())
    assert_bits(x.grad, posenc_ext.relative_scatter(y.detach(), index, size))
    posenc_ext.relative_scatter(y, index, size).backward(x.detach())
    assert_bits(y.grad, posenc_ext.relative_gather(x.detach(), index))


def test_gradient_of_a_shared_table():
    index, size = index_of("buckets", 6, 11)
    table = uniform((size, 3), F64).requires_grad_()
    out = posenc_ext.relative_gather(table.t()[:, None].expand(3, 6, size), index)
    upstream = uniform(out.shape, F64, 1)
    out.backward(upstream)
    right = torch.zeros(size, 3, dtype=F64)
    for i in range(6):
        for j in range(11):
            right[index[j - i + 5]] += upstream[:, i, j]
    torch.testing.assert_close(table.grad, right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("q_len", "k_len"), [(0, 4), (4, 0), (0, 0)])
def test_gradients_of_nothing(q_len, k_len):
    index = torch.zeros(max(q_len + k_len - 1, 0), dtype=I64)
    x = torch.ones(2, q_len, 3, requires_grad=True)
    posenc_ext.relative_gather(x, index, k_len).sum().backward()
    assert not x.grad.any()
    y = torch.ones(2, q_len, k_len, requires_grad=True)
    posenc_ext.relative_scatter(y, index, 3).sum().backward()
    assert y.grad.shape == y.shape


@pytest.mark.parametrize("which", ["gather", "scatter"])
def test_vmap(which):
    index, size = index_of("random", 3, 4)
    indices = torch.stack([index, index.flip(0), index.roll(1)])
    if which == "gather":
        call, x = posenc_ext.relative_gather, uniform((3, size))
    else:
        call, x = functools.partial(posenc_ext.relative_scatter, size=size), uniform((3, 4))
    for x_dim, index_dim in ((0, None), (2, None), (0, 0), (None, 0)):
        given = (batched(x, x_dim, 1), index if index_dim is None else indices)
        assert_vmap(call, given, (x_dim, index_dim))
    shift = functools.partial(posenc_ext.rel_shift, k_len=4)
    assert_vmap(shift, (batched(x, 1, 1),), (1,))


@pytest.mark.parametrize("which", ["gather", "scatter"])
def test_jacobians(which):
    function, shape = functions("random")[which]
    x = uniform(shape, F64)
    right = torch.autograd.functional.jacobian(function, x)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(function)(x), right, rtol=0, atol=0)


# ---- ops ----


def samples():
    """{case: (op, arguments)}, all fresh."""
    found = {}
    for kind in ("shifted", "clipped", "random"):
        index, size = index_of(kind, 5, 6, torch.int32)
        found[f"gather_{kind}"] = ("relative_gather", (uniform((2, 3, 5, size)), index, 6))
        found[f"scatter_{kind}"] = ("relative_scatter", (uniform((2, 3, 5, 6)), index, size))
    index, size = index_of("waves", 4, 4)
    x, y = uniform((4, size), torch.bfloat16), uniform((2, 3, 4, 4), torch.float16)
    empty = torch.ones(2, 0, 3)
    return found | {
        "gather_2d": ("relative_gather", (x, index, 4)),
        "gather_view": ("relative_gather", (x[:1].expand(4, size), index, 4)),
        "gather_empty": ("relative_gather", (empty, index[:3], 4)),
        "scatter_view": ("relative_scatter", (VIEWS["permuted"](y), index, size)),
        "scatter_empty": ("relative_scatter", (empty, index[:2], size)),
    }


every_sample = pytest.mark.parametrize("sample", samples())


def test_every_registered_op_is_sampled():
    names = {n.removeprefix("posenc_ext::") for n in torch._C._dispatch_get_all_op_names()}
    assert {n for n in names if "relative" in n} == {op for op, _ in samples().values()}


@every_sample
def test_opcheck(sample):
    op, args = samples()[sample]
    torch.library.opcheck(getattr(OPS, op).default, args)


@every_sample
@pytest.mark.parametrize("mode", ["meta", "fake"])
def test_meta_and_fake_tensors_tell_shape_and_strides(sample, mode):
    op, args = samples()[sample]
    real = getattr(OPS, op)(*args)
    if mode == "meta":
        told = getattr(OPS, op)(*map(on_meta, args))
    else:
        with FakeTensorMode() as fake:
            made = [fake.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
            told = getattr(OPS, op)(*made)
    assert (told.shape, told.stride(), told.dtype) == (real.shape, real.stride(), real.dtype)
    assert told.device.type == ("meta" if mode == "meta" else "cpu")


def call_gather(x):
    q_len, k_len = x.shape[-2:]
    index = (torch.arange(q_len + k_len - 1) - q_len).clamp(0, k_len - 1)
    return posenc_ext.relative_gather(x, index)


def call_scatter(x):
    q_len, k_len = x.shape[-2:]
    return posenc_ext.relative_scatter(x, torch.arange(q_len + k_len - 1) // 2, q_len + k_len)


def call_shift(x):
    return posenc_ext.rel_shift(x, x.shape[-1] - 2, start=x.shape[-2]).exp()


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("function", [call_gather, call_scatter, call_shift])
def test_compile(function, gradient, fresh_dynamo):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for length in (5, 6, 7, 12, 17):
        x = uniform((2, length, length + 3), seed=length).requires_grad_(gradient)
        results = [f(x) for f in (compiled, function)]
        if gradient:
            results += [torch.autograd.grad(y, x, uniform(y.shape, seed=1))[0] for y in results]
        for a, b in zip(results[::2], results[1::2], strict=True):
            assert_bits(a.detach(), b.detach())
    assert counter.frame_count <= 2


def test_backward_on_meta_tensors():
    index, size = index_of("clipped", 5, 6)
    x = torch.empty(2, 5, size, device="meta", requires_grad=True)
    y = posenc_ext.relative_gather(x, index.to("meta"))
    posenc_ext.relative_scatter(y, index.to("meta"), size).sum().backward()
    assert x.grad.shape == x.shape


# ---- refusals ----

INDEX = torch.tensor([0, 1, 2, 3, 2, 1, 0, -1])  # Q = 4, K = 5, T = 4
GOOD = {
    "relative_gather": lambda: {"x": uniform((2, 4, 4)), "index": INDEX.clone()},
    "relative_scatter": lambda: {"y": uniform((2, 4, 5)), "index": INDEX.clone(), "size": 4},
    "rel_shift": lambda: {"x": uniform((2, 4, 4))},
}
INDEXED, OF_X = ("relative_gather", "relative_scatter"), ("relative_gather", "rel_shift")
# case: (functions, exception, argument at fault, fragments of the text, changes to a good call)
# fmt: off
CASES = {
    "x_list": (OF_X, TypeError, "x", ["list"], {"x": [1.0]}),
    "x_1d": (OF_X, ValueError, "x", ["[..., Q, T]", "[4]"], {"x": uniform((4,))}),
    "x_int": (("relative_gather",), TypeError, "x", ["Long"],
        {"x": torch.ones(2, 4, 4, dtype=I64)}),
    "y_list": (INDEXED[1:], TypeError, "y", ["list"], {"y": [1.0]}),
    "y_1d": (INDEXED[1:], ValueError, "y", ["[..., Q, K]", "[5]"], {"y": uniform((5,))}),
    "y_bool": (INDEXED[1:], TypeError, "y", ["Bool"], {"y": torch.ones(2, 4, 5, dtype=torch.bool)}),
    "index_list": (INDEXED, TypeError, "index", ["list"], {"index": [0]}),
    "index_float": (INDEXED, TypeError, "index", ["int32 or int64", "Float"],
        {"index": INDEX.float()}),
    "index_int16": (INDEXED, TypeError, "index", ["Short"], {"index": INDEX.short()}),
    "index_2d": (INDEXED, ValueError, "index", ["[1, 8]"], {"index": INDEX[None]}),
    "index_short": (INDEXED[1:], ValueError, "index", ["Q = 4", "K = 5", "[7]"],
        {"index": INDEX[1:]}),
    "index_too_short": (INDEXED[:1], ValueError, "index", ["Q = 4", "[2]"], {"index": INDEX[:2]}),
    "index_much_too_short": (INDEXED[:1], ValueError, "index", ["Q = 4", "some K", "[2]"],
        {"index": INDEX[:2], "k_len": None}),
    "index_long": (INDEXED[:1], ValueError, "index", ["K = 3", "[8]"], {"k_len": 3}),
    "index_device": (INDEXED, ValueError, "index", ["meta", "cpu"], {"index": INDEX.to("meta")}),
    "index_high": (INDEXED, IndexError, "index", ["-1 to T - 1 = 3", "4", "entry 1"],
        {"index": torch.tensor([0, 4, 2, 3, 2, 1, 0, -1])}),
    "index_low": (INDEXED, IndexError, "index", ["-2", "entry 7"],
        {"index": torch.tensor([0, 1, 2, 3, 2, 1, 0, -2])}),
    "index_huge": (INDEXED, IndexError, "index", [str(2**62)], {"index": INDEX + 2**62}),
    "k_len_negative": (OF_X, ValueError, "k_len", ["-1"], {"k_len": -1}),
    "k_len_float": (OF_X, TypeError, "k_len", ["float"], {"k_len": 5.0}),
    "size_negative": (INDEXED[1:], ValueError, "size", ["-1"], {"size": -1}),
    "size_bool": (INDEXED[1:], TypeError, "size", ["bool"], {"size": True}),
    "start_text": (("rel_shift",), TypeError, "start", ["str"], {"start": "0"}),
}
# fmt: on


@pytest.mark.parametrize("case", CASES)
def test_refusals(case):
    ops, exception, argument, fragments, changes = CASES[case]
    for op in ops:
        refused(op, exception, argument, fragments, {**GOOD[op](), **changes})


@pytest.mark.parametrize("case", [c for c in CASES if CASES[c][1] is not IndexError])
def test_meta_tensors_give_the_same_text(case):
    ops, exception, argument, _, changes = CASES[case]
    if case == "index_device":
        return
    for op in ops:
        call = {**GOOD[op](), **changes}
        texts = [
            refused(op, exception, argument, [], c)
            for c in (call, {key: on_meta(value) for key, value in call.items()})
        ]
        assert texts[0] == texts[1]


def test_rel_shift_refuses_integers():
    with pytest.raises(
        TypeError, match=r"posenc_ext.rel_shift: x must be float32, .+, got .*int64"
    ):
        posenc_ext.rel_shift(torch.ones(2, 4, 4, dtype=I64))


@pytest.mark.parametrize("op", INDEXED)
def test_freed_storage_is_not_read(op):
    for argument in list(GOOD[op]())[:2]:
        call = GOOD[op]()
        call[argument].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=rf"{op}: {argument} must have a storage .+ got 0"):
            getattr(posenc_ext, op)(**call)
