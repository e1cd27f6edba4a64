"""rope_table: arguments, special values, parity with float32 angles, gradients, tracing."""

import math

import pytest
import torch
from rope_cases import DTYPES, assert_bits
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck

from posenc_ext import rope_frequencies, rope_table

INV_FREQ = rope_frequencies(16).inv_freq


def test_plain_values():
    cos, sin = rope_table(3, torch.tensor([1.0, 0.5], dtype=torch.float64))
    right = torch.tensor([[0.0, 0.0], [1.0, 0.5], [2.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(cos, right.cos().float())
    torch.testing.assert_close(sin, right.sin().float())
    assert cos.is_contiguous()
    assert sin.is_contiguous()


def test_position_zero_is_the_identity():
    for zero in (torch.tensor([0]), torch.tensor([0.0]), torch.tensor([-0.0])):
        cos, sin = rope_table(zero, INV_FREQ)
        assert_bits(cos, torch.ones_like(cos))
        assert_bits(sin, torch.zeros_like(sin))


def test_fractional_positions():
    positions = torch.linspace(-300, 300, 1001, dtype=torch.float64)
    angle = positions[:, None] * INV_FREQ
    cos, sin = rope_table(positions, INV_FREQ, dtype=torch.float64)
    torch.testing.assert_close(cos, angle.cos(), rtol=0, atol=1e-13)
    torch.testing.assert_close(sin, angle.sin(), rtol=0, atol=1e-13)
    mirrored = rope_table(-positions[1:300], INV_FREQ)
    cos, sin = rope_table(positions[1:300], INV_FREQ)
    fractional = positions[1:300] != positions[1:300].round()
    assert_bits(mirrored[0][fractional], cos[fractional])
    assert_bits(mirrored[1][fractional], -sin[fractional])


def test_attention_factor_multiplies():
    cos, sin = rope_table(100, INV_FREQ, attention_factor=1.25, dtype=torch.float64)
    plain = rope_table(100, INV_FREQ, dtype=torch.float64)
    assert_bits(cos, plain[0] * 1.25)
    assert_bits(sin, plain[1] * 1.25)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e300, 2.0**60, -(2.0**53) * 8])
def test_angles_out_of_range_are_nan(bad):
    positions = torch.tensor([bad, 1.0], dtype=torch.float64)
    for table in rope_table(positions, torch.tensor([1.0], dtype=torch.float64)):
        assert table[0].isnan().all()
        assert table[1].isfinite().all()
    if abs(bad) < 2**62:
        for table in rope_table(positions.long(), torch.tensor([1.0], dtype=torch.float64)):
            assert table[0].isnan().all()


def test_frequencies_out_of_range_are_nan():
    inv_freq = torch.tensor([math.nan, math.inf, 1e308, 1.0, 0.0], dtype=torch.float64)
    for table in rope_table(torch.tensor([5]), inv_freq):
        assert table[0, :3].isnan().all()
        assert table[0, 3:].isfinite().all()


@pytest.mark.parametrize("size", [(0,), (0, 3), (3, 0), ()])
def test_empty_and_scalar(size):
    for table in rope_table(torch.zeros(size, dtype=torch.int64), INV_FREQ):
        assert table.shape == (*size, 8)
    for table in rope_table(torch.zeros(size), INV_FREQ[:0]):
        assert table.shape == (*size, 0)
    assert rope_table(0, INV_FREQ)[0].shape == (0, 8)


def test_device():
    for table in rope_table(4, INV_FREQ, device="meta"):
        assert table.device.type == "meta"
        assert table.shape == (4, 8)
    positions = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    for table in rope_table(positions, INV_FREQ, dtype=torch.bfloat16):
        assert table.device.type == "meta"
        assert table.dtype == torch.bfloat16
    with torch.device("meta"):
        assert rope_table(4, rope_frequencies(8).inv_freq)[0].device.type == "cpu"


# Parity with float32 angles.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 1.1902380714238083])
def test_float32_precision_is_the_expression_of_hugging_face(dtype, factor):
    dim, base = 96, 5e5
    theirs = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    position_ids = torch.cat([torch.arange(500), torch.tensor([131071, 1048575])])[None]
    expanded = theirs[None, :, None].float().expand(1, -1, 1)
    freqs = (expanded @ position_ids[:, None, :].float()).transpose(1, 2)
    emb = torch.cat((freqs, freqs), dim=-1)
    right = [(emb.cos() * factor).to(dtype), (emb.sin() * factor).to(dtype)]

    inv_freq = rope_frequencies(dim, base, precision="float32").inv_freq
    assert_bits(inv_freq, theirs)
    tables = rope_table(
        position_ids, inv_freq, attention_factor=factor, dtype=dtype, precision="float32"
    )
    for table, full in zip(tables, right, strict=True):
        assert_bits(table, full[..., : dim // 2].contiguous())
        assert_bits(table, full[..., dim // 2 :].contiguous())


@pytest.mark.parametrize("precision", ["exact", "float32"])
def test_autocast_and_default_dtype_change_nothing(precision):
    def build():
        inv_freq = rope_frequencies(64, precision=precision).inv_freq
        return rope_table(torch.arange(65536, 65800), inv_freq, precision=precision)

    right = build()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = build()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        half = build()
    finally:
        torch.set_default_dtype(default)
    for a, b, c in zip(right, inside, half, strict=True):
        assert a.dtype == torch.float32
        assert_bits(a, b)
        assert_bits(a, c)


def test_float32_frequencies_are_widened():
    single = INV_FREQ.float()
    for a, b in zip(rope_table(50, single), rope_table(50, single.double()), strict=True):
        assert_bits(a, b)


# Gradients.


def inputs(whole=False):
    positions = torch.tensor([[0.5, -3.25, 700.125], [2.0, 0.0, -1e-3]], dtype=torch.float64)
    inv_freq = rope_frequencies(6, 10.0).inv_freq.clone().requires_grad_()
    return (positions.round().long() if whole else positions.requires_grad_()), inv_freq


@pytest.mark.parametrize("whole", [True, False])
def test_gradcheck(whole):
    def tables(positions, inv_freq):
        return rope_table(positions, inv_freq, attention_factor=1.5, dtype=torch.float64)

    assert gradcheck(tables, inputs(whole), check_forward_ad=True, check_batched_grad=False)
    assert gradgradcheck(tables, inputs(whole))


def test_gradcheck_of_a_scalar_position():
    position = torch.tensor(3.5, dtype=torch.float64, requires_grad=True)
    inv_freq = inputs()[1]
    assert gradcheck(lambda p, f: rope_table(p, f, dtype=torch.float64), (position, inv_freq))


@pytest.mark.parametrize("precision", ["exact", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_formulas(precision, dtype):
    """d theta_i = sum_p p (c gs - s gc), d p = sum_i theta_i (c gs - s gc)."""
    positions, inv_freq = (t.detach().float().requires_grad_() for t in inputs())
    tables = rope_table(positions, inv_freq, dtype=dtype, precision=precision)
    grads = [torch.linspace(-1, 1, 18).view(2, 3, 3).to(dtype) for _ in tables]
    dp, df = torch.autograd.grad(tables, (positions, inv_freq), grads)
    p, f = positions.detach().double(), inv_freq.detach().double()
    angle = p[..., None] * f
    dphi = angle.cos() * grads[1] - angle.sin() * grads[0]
    assert dp.dtype == df.dtype == torch.float32
    torch.testing.assert_close(dp.double(), (dphi * f).sum(-1), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(df.double(), (dphi * p[..., None]).sum((0, 1)), rtol=1e-2, atol=5e-2)


def test_gradient_of_one_table_only():
    _, inv_freq = inputs()
    cos, sin = rope_table(5, inv_freq, dtype=torch.float64)
    (from_cos,) = torch.autograd.grad(cos.sum(), inv_freq)
    _, inv_freq = inputs()
    p = torch.arange(5.0, dtype=torch.float64)[:, None]
    torch.testing.assert_close(from_cos, -(p * (p * inv_freq).sin()).sum(0))
    assert sin.requires_grad


# Tracing.


@pytest.mark.parametrize("precision", ["exact", "float32"])
def test_compile_with_a_dynamic_length(precision):
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def build(n, inv_freq):
        cos, sin = rope_table(n, inv_freq, attention_factor=1.25, precision=precision)
        return cos + 0, sin + 0

    for n in (5, 6, 7, 20, 70):
        right = rope_table(n, INV_FREQ, attention_factor=1.25, precision=precision)
        for a, b in zip(build(n, INV_FREQ), right, strict=True):
            assert_bits(a, b)
    assert counter.frame_count <= 2


def test_compile_positions_and_gradient():
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def loss(positions, inv_freq):
        cos, sin = rope_table(positions, inv_freq, dtype=torch.float64)
        return (cos * 2 + sin).sum()

    first = 0
    for length in (4, 5, 9):
        positions = torch.linspace(0, 7, length, dtype=torch.float64, requires_grad=True)
        _, inv_freq = inputs()
        compiled = torch.autograd.grad(loss(positions, inv_freq), (positions, inv_freq))
        cos, sin = rope_table(positions, inv_freq, dtype=torch.float64)
        eager = torch.autograd.grad((cos * 2 + sin).sum(), (positions, inv_freq))
        torch.testing.assert_close(compiled, eager)
        first = first or counter.frame_count
    assert counter.frame_count == first > 0  # later lengths compile nothing new


@pytest.mark.parametrize(
    "positions", [torch.arange(6).view(2, 3).t(), torch.rand(4), torch.tensor(3)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(positions, dtype):
    op = torch.ops.posenc_ext.rope_table.default
    torch.library.opcheck(op, (positions, INV_FREQ, 1.5, dtype))


# Refusals.

REFUSED = [
    (TypeError, "positions", {"positions": 2.5}),
    (TypeError, "positions", {"positions": True}),
    (TypeError, "positions", {"positions": [1, 2]}),
    (TypeError, "positions", {"positions": torch.ones(3, dtype=torch.complex64)}),
    (TypeError, "positions", {"positions": torch.ones(3, dtype=torch.int16)}),
    (TypeError, "positions", {"positions": torch.ones(3, dtype=torch.bool)}),
    (TypeError, "positions", {"positions": torch.ones(3).to_sparse()}),
    (ValueError, "positions", {"positions": -1}),
    (TypeError, "inv_freq", {"inv_freq": [1.0]}),
    (TypeError, "inv_freq", {"inv_freq": torch.ones(4, dtype=torch.bfloat16)}),
    (TypeError, "inv_freq", {"inv_freq": torch.ones(4, dtype=torch.int64)}),
    (ValueError, "inv_freq", {"inv_freq": torch.ones(4, 1)}),
    (ValueError, "inv_freq", {"inv_freq": torch.tensor(1.0)}),
    (TypeError, "dtype", {"dtype": torch.int32}),
    (TypeError, "dtype", {"dtype": "float32"}),
    (TypeError, "attention_factor", {"attention_factor": "1"}),
    (TypeError, "attention_factor", {"attention_factor": torch.tensor(1.0)}),
    (ValueError, "attention_factor", {"attention_factor": math.nan}),
    (ValueError, "precision", {"precision": "double"}),
    (ValueError, "precision", {"precision": None}),
]


@pytest.mark.parametrize("precision", ["exact", "float32"])
@pytest.mark.parametrize(("exception", "argument", "changes"), REFUSED)
def test_refusals(exception, argument, changes, precision):
    call = {"positions": 3, "inv_freq": INV_FREQ, "precision": precision, **changes}
    with pytest.raises(exception, match=rf"^posenc_ext\.rope_table: {argument} must .+, got .+"):
        rope_table(**call)


def test_the_op_checks_for_itself():
    op = torch.ops.posenc_ext.rope_table
    for positions, inv_freq, dtype in (
        (torch.ones(2, dtype=torch.bool), INV_FREQ, torch.float32),
        (torch.ones(2), INV_FREQ.float(), torch.float32),
        (torch.ones(2), INV_FREQ, torch.int32),
    ):
        for device in ("cpu", "meta"):
            with pytest.raises(TypeError, match=r"^posenc_ext\.rope_table: .+ must .+, got .+"):
                op(positions.to(device), inv_freq.to(device), 1.0, dtype)


def test_the_result_of_rope_frequencies_is_not_the_tensor():
    with pytest.raises(TypeError, match=r"inv_freq must be a tensor, got RopeFrequencies; pass"):
        rope_table(4, rope_frequencies(8))
