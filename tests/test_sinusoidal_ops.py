"""The dispatcher ops: opcheck, meta tensors, torch.compile, export, and bits across processes."""

import oracle_sinusoidal as oracle
import pytest
import torch
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from rope_cases import DTYPES, VIEWS, assert_bits, name, threads, uniform
from torch._dynamo.testing import CompileCounterWithBackend

import posenc_ext
from posenc_ext import add_sinusoidal, sinusoidal_table

OPS = torch.ops.posenc_ext


def omega(n):
    return OPS.sinusoidal_frequencies(torch.zeros(0), n, 10000.0, float(max(n, 1)))


def samples():
    for positions in (torch.arange(9), torch.rand(2, 3) * 100, torch.zeros(0, dtype=torch.int32)):
        for dim, n in ((8, 4), (7, 4), (7, 3), (0, 0)):
            for flags in ((True, False), (False, True)):
                yield "sinusoidal_table", (positions, omega(n), dim, *flags, torch.float32)
    for view in VIEWS:
        x = VIEWS[view](uniform((2, 5, 7), torch.bfloat16))
        yield "add_sinusoidal", (x, omega(4), None, 3, 1.5, True, False)
    for offsets in (torch.tensor(3), torch.tensor([3, 4], dtype=torch.int32)):
        yield "add_sinusoidal", (uniform((2, 5, 8)), omega(4), offsets, 0, 1.0, False, False)
    yield "add_sinusoidal", (uniform((5, 8)), omega(4), None, 0, 1.0, False, True)
    yield "sinusoidal_frequencies", (torch.zeros(2), 5, 100.0, 2.5)
    yield "sinusoidal_frequencies", (torch.zeros(2), 0, 100.0, 1.0)


@pytest.mark.parametrize(("op", "args"), list(samples()))
def test_opcheck_and_meta(op, args):
    op = getattr(OPS, op).default
    torch.library.opcheck(op, args)
    real = op(*args)
    told = op(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))
    assert (told.shape, told.dtype) == (real.shape, real.dtype)
    x = args[0]
    if x.dim() == 3:
        told = op(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), *(
            a.to("meta") if isinstance(a, torch.Tensor) else a for a in args[1:]
        ))  # fmt: skip
        assert told.stride() == real.stride()


def test_frequencies_do_not_depend_on_what_was_asked_before():
    like = torch.zeros(0)
    first = OPS.sinusoidal_frequencies(like, 4, 10000.0, 4.0)
    longer = OPS.sinusoidal_frequencies(like, 9, 10000.0, 4.0)
    OPS.sinusoidal_frequencies(like, 3, 500.0, 2.0)
    assert_bits(OPS.sinusoidal_frequencies(like, 4, 10000.0, 4.0), first)
    assert_bits(longer[:4], first)
    first.zero_()
    assert OPS.sinusoidal_frequencies(like, 4, 10000.0, 4.0).all()


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def call_add(x):
    return add_sinusoidal(x, scale=2.0, offset=3, convention="fairseq")


def call_offsets(x):
    return add_sinusoidal(x.transpose(0, 1), offset=torch.arange(x.shape[1])).transpose(0, 1)


def call_table(x):
    return x + sinusoidal_table(x.shape[-2], x.shape[-1])


def call_module(x):
    return posenc_ext.SinusoidalPositionalEncoding(6, max_len=64)(x, offset=2)


@pytest.mark.parametrize("function", [call_add, call_offsets, call_table, call_module])
@pytest.mark.parametrize("gradient", [False, True])
def test_compile(function, gradient, fresh_dynamo):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for length in (5, 6, 7, 8, 12, 16, 20):
        results = []
        for f in (compiled, function):
            x = uniform((2, length, 6), seed=length).requires_grad_(gradient)
            y = f(x)
            results.append([y.detach()])
            if gradient:
                results[-1] += torch.autograd.grad(y, x, uniform(y.shape, seed=1))
        for a, b in zip(*results, strict=True):
            assert_bits(a, b)
        assert results[0][0].stride() == results[1][0].stride()
    assert counter.frame_count <= 2


def test_compile_over_decode_steps(fresh_dynamo):
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(
        lambda x, offset: add_sinusoidal(x, offset=offset), fullgraph=True, backend=counter
    )
    x = uniform((2, 1, 6))
    for offset in range(3, 12):
        assert_bits(step(x, offset), add_sinusoidal(x, offset=offset))
    assert counter.frame_count <= 2


def test_export():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = posenc_ext.SinusoidalPositionalEncoding(6, scale=2.0)

        def forward(self, x):
            return self.encoding(x)

    length = torch.export.Dim("length", min=2, max=512)
    program = torch.export.export(
        Model(), (uniform((2, 9, 6)),), dynamic_shapes=({1: length},)
    ).module()
    x = uniform((2, 33, 6))
    assert_bits(program(x), add_sinusoidal(x, scale=2.0))


def test_order_and_chunks_do_not_change_the_bits():
    positions = torch.randperm(3000) - 1500
    whole = sinusoidal_table(positions, 30)
    for chunk in (1, 63, 1024):
        pieces = [sinusoidal_table(p, 30) for p in positions[:1300].split(chunk)]
        assert_bits(torch.cat(pieces), whole[:1300])
    assert_bits(sinusoidal_table(positions.double(), 30), whole)
    for count in (1, 2, 3):
        with threads(count):
            assert_bits(sinusoidal_table(positions, 30), whole)


def fingerprints():
    """{case: hash} of a fixed set of calls; every instruction set must print the same."""
    found = {}
    for dtype in DTYPES:
        for convention in oracle.CONVENTIONS:
            for dim in (1, 2, 7, 16, 30, 31, 33, 64, 127, 200):
                case = f"{name(dtype)} {convention} {dim}"
                options = {"convention": convention, "base": 7000.0}
                positions = torch.arange(-300, 300) * 7919
                found["table " + case] = digest(
                    sinusoidal_table(positions, dim, dtype=dtype, **options)
                )
                x = uniform((2, 70, dim), dtype)
                found["add " + case] = digest(add_sinusoidal(x, scale=0.7, offset=9999, **options))
                strided = VIEWS["last_stride_2"](x)
                found["strided " + case] = digest(add_sinusoidal(strided, offset=9, **options))
    return found


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=100)


if __name__ == "__main__":
    torch.set_num_threads(1)  # many small calls
    print_fingerprints(fingerprints())
