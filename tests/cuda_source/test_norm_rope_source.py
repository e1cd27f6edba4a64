"""The kernels of norm_rope against the CPU ops, bit for bit."""

import pytest
import torch
from guarded import far_apart, guarded
from norm_cases import RULES, channels, parameter
from rope_cases import DTYPES, LAYOUTS, VIEWS, assert_bits, name, shape, table, uniform
from source_calls import both_pairings, each_dtype

every_rule = pytest.mark.parametrize("kind", RULES, ids="-".join)
ROUNDINGS = ("once", "norm", "transformers")


def call(library, op, *tensors, offset=0, layout="bshd", interleaved=False, inverse=False,
         positions=None, kind=RULES[0], rounding="once", **more):  # fmt: skip
    rope = (positions, None, None, offset, layout, interleaved, inverse, interleaved)
    norm = (1e-5, 0.5, *kind, rounding)
    return getattr(library, op)(*tensors, *rope, *norm, **more)


def source(op, *tensors, **options):
    return call(torch.ops.posenc_cuda_source, op, *tensors, **options)


def check(op, *tensors, **options):
    """Hold an op of the CUDA source to the CPU op, in bits and strides; return the result."""
    right = call(torch.ops.posenc_ext, op, *tensors, **options)
    actual = source(op, *tensors, **options)
    single = isinstance(right, torch.Tensor)
    for a, r in zip([actual] if single else actual, [right] if single else right, strict=True):
        assert a.stride() == r.stride()
        assert_bits(a, r)
    return right


def check_both(x, weight, bias, *tables, **options):
    """The op and its gradient."""
    check("norm_rope", x, weight, bias, *tables, **options)
    grad = uniform(x.shape, x.dtype, 9)
    check("norm_rope_grad", grad, x, weight, bias, True, *tables, **options)


@both_pairings
@every_rule
@each_dtype
def test_rules(dtype, kind, interleaved):
    tables = table(16)
    for d, rounding in zip((32, 48, 37), ROUNDINGS, strict=True):
        x = uniform(shape("bshd", d=d), dtype)
        weight, bias = (parameter(channels(x, "bshd", kind[1]), dtype, i) for i in (1, 2))
        options = {"kind": kind, "interleaved": interleaved, "inverse": d == 48, "offset": 1}
        check_both(x, weight, bias, *tables, **options, rounding=rounding)
        check_both(x, weight.float() if dtype != torch.float64 else weight, None, *tables,
                   **options)  # fmt: skip
        check("norm_rope", x, None, bias, *tables, **options)


@every_rule
@pytest.mark.parametrize("view", VIEWS)
def test_every_layout_and_view(view, kind):
    for layout in LAYOUTS:
        x = VIEWS[view](uniform(shape(layout), torch.bfloat16))
        weight = parameter(channels(x, layout, kind[1]))
        check_both(x, weight, None, *table(16), layout=layout, kind=kind)


@pytest.mark.parametrize("kind", [RULES[1], RULES[3], RULES[4]], ids="-".join)
@pytest.mark.parametrize(
    "size",
    [(1, 3, 2, 520), (1, 2, 2, 6160), (1, 2, 2, 6163), (1, 3, 40, 128), (40, 1, 1, 6)],
    ids=str,
)
def test_rows_for_a_block_and_rows_that_do_not_fit(size, kind):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = uniform(size, dtype)
        weight = parameter(channels(x, "bshd", kind[1]), dtype)
        check_both(x, weight, None, *table(size[-1] // 2 - 2), kind=kind, interleaved=True)


@every_rule
def test_q_and_k_in_one_launch(kind):
    for q, k in (((2, 5, 4, 40), (2, 5, 1, 40)), ((2, 1, 4, 32), (2, 9, 2, 32)),
                 ((2, 9, 0, 40), (2, 9, 3, 40)), ((2, 9, 4, 32), (2, 0, 2, 32))):  # fmt: skip
        q, k = uniform(q, torch.float16), uniform(k, torch.float16, 1)
        weights = [parameter(channels(x, "bshd", kind[1]), torch.float16, 2) for x in (q, k)]
        tensors = (q, k, *weights, None, None, *table(q.shape[-1] // 2))
        right = check("qk_norm_rope", *tensors, kind=kind)
        source("qk_norm_rope_", *tensors, kind=kind)
        assert_bits(q, right[0])
        assert_bits(k, right[1])


@every_rule
@pytest.mark.parametrize("width", [32, 40, 35])
def test_in_place_and_out(width, kind):
    x, tables = uniform(shape("bshd", d=width), torch.bfloat16), table(16)
    tensors = (None, None, *tables)
    right = check("norm_rope", x, *tensors, kind=kind)
    out = torch.empty_like(x)
    source("norm_rope_out", x, *tensors, kind=kind, out=out)
    assert_bits(out, right)
    source("norm_rope_", x, *tensors, kind=kind)
    assert_bits(x, right)


@pytest.mark.parametrize("kind", [RULES[0], RULES[7]], ids="-".join)
def test_offsets_beyond_int32(kind):
    x = uniform((2, 2, 2, 48), torch.bfloat16)
    weight = parameter(channels(x, "bshd", kind[1]))
    right = check("norm_rope", x, weight, None, *table(16), kind=kind)
    for axis in range(3):
        far = far_apart(x, axis, 2**31 + 17 + axis)
        check_both(far, weight, None, *table(16), kind=kind)
        source("norm_rope_", far, weight, None, *table(16), kind=kind)
        assert_bits(far.clone(), right)


@both_pairings
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("kind", [RULES[0], RULES[7]], ids="-".join)
@each_dtype
def test_nothing_outside_the_tensors_is_touched(dtype, kind, at_end, interleaved):
    for d in (16, 19):
        x = guarded(uniform((2, 3, 2, d), dtype), at_end)
        weight = guarded(parameter(channels(x, "bshd", kind[1]), dtype), at_end)
        tables = [guarded(t, at_end) for t in table(8, length=3)]
        options = {"positions": guarded(torch.tensor([2, 0, 1]), at_end), "kind": kind,
                   "interleaved": interleaved}  # fmt: skip
        check_both(x, weight, weight, *tables, **options)
        right = check("norm_rope", x, weight, weight, *tables, **options)
        source("norm_rope_", x, weight, weight, *tables, **options)
        assert_bits(x, right)


@pytest.mark.parametrize("size", [(0, 5, 4, 8), (2, 0, 4, 8), (2, 5, 0, 8), (2, 5, 4, 0)], ids=str)
def test_empty_tensors(size):
    for kind in RULES[:4]:
        x = uniform(size)
        weight = parameter(channels(x, "bshd", kind[1]))
        check_both(x, weight, weight, *table(size[-1] // 2), kind=kind)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_bytes_moved(dtype):
    """x is read once and written once; tables and weights once per head."""
    x, tables, weight = uniform((2, 40, 8, 80), dtype), table(32), parameter(80)
    torch.ops.posenc_cuda_source.traffic()
    source("norm_rope", x, weight, None, *tables)
    heads = 2 * 40 * 8
    read = x.nbytes + heads * (2 * tables[0][0].nbytes + weight.nbytes)
    assert torch.ops.posenc_cuda_source.traffic() == (read, x.nbytes)
