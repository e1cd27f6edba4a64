"""The dispatcher ops of ALiBi: opcheck, meta and fake tensors, torch.compile."""

import pytest
import torch
from alibi_cases import mask_of, scores_of, slopes_of
from rope_cases import VIEWS, assert_bits, uniform
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import posenc_ext

OPS = torch.ops.posenc_ext
F64 = torch.float64
POSITIONS = torch.tensor([[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]])


def samples():
    """{case: (op, arguments)}, all fresh."""
    plain, bf16 = scores_of((5, 6)), scores_of((7, 4), torch.bfloat16, heads=2)
    view, double = VIEWS["transposed"](scores_of((6, 6))), scores_of((1, 9), F64)
    empty, gap = scores_of((0, 4)), VIEWS["last_stride_2"](scores_of((5, 6)))
    slopes, by_batch = slopes_of(), slopes_of(batch=2)
    return {
        "bias": ("alibi_bias", (slopes, 5, 6, False, torch.float32, None)),
        "bias_causal": ("alibi_bias", (by_batch, 7, 4, True, torch.bfloat16, None)),
        "bias_positions": ("alibi_bias", (slopes, 2, 6, True, torch.float16, POSITIONS)),
        "bias_empty": ("alibi_bias", (slopes, 0, 6, True, F64, None)),
        "add": ("add_alibi", (plain, slopes, False)),
        "add_view": ("add_alibi", (view, by_batch, True)),
        "add_gap": ("add_alibi", (gap, by_batch, True)),
        "add_": ("add_alibi_", (plain, slopes, True)),
        "add_view_": ("add_alibi_", (view, by_batch, False)),
        "softmax": ("alibi_softmax", (plain, slopes, 0.5, False, None)),
        "softmax_half": ("alibi_softmax", (bf16, slopes_of(2), 1.0, True, None)),
        "softmax_view": ("alibi_softmax", (view, by_batch, 1.0, True, mask_of(2, 6))),
        "softmax_double": ("alibi_softmax", (double, slopes_of(dtype=F64), 1.0, False, None)),
        "softmax_empty": ("alibi_softmax", (empty, slopes, 1.0, False, None)),
        "slope_grad": ("alibi_slope_grad", (plain, slopes, False, None)),
        "slope_grad_3d": ("alibi_slope_grad", (plain[0], slopes, True, None)),
        "slope_grad_positions": ("alibi_slope_grad", (plain, by_batch, True, POSITIONS)),
        "softmax_grad": ("alibi_softmax_grad", (plain, scores_of((5, 6)), 0.5, True)),
        "softmax_grad_view": ("alibi_softmax_grad", (scores_of((6, 6)), view, 0.5, False)),
        "softmax_slope_grad": (
            "alibi_softmax_slope_grad", (plain, scores_of((5, 6)), by_batch, True)),
    }  # fmt: skip


every_sample = pytest.mark.parametrize("sample", samples())


def test_every_registered_op_is_sampled():
    names = {n.removeprefix("posenc_ext::") for n in torch._C._dispatch_get_all_op_names()}
    assert {n for n in names if "alibi" in n} == {op for op, _ in samples().values()}


@every_sample
def test_opcheck(sample):
    op, args = samples()[sample]
    torch.library.opcheck(getattr(OPS, op).default, args)


@every_sample
@pytest.mark.parametrize("mode", ["meta", "fake"])
def test_meta_and_fake_tensors_tell_shape_and_strides(sample, mode):
    op, args = samples()[sample]
    told_args = samples()[sample][1]
    real = getattr(OPS, op)(*args)
    if mode == "meta":
        told = getattr(OPS, op)(*map(on_meta, told_args))
    else:
        with FakeTensorMode() as fake:
            made = [fake.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in told_args]
            told = getattr(OPS, op)(*made)
    if real is None:
        assert told is None
        return
    assert (told.shape, told.stride(), told.dtype) == (real.shape, real.stride(), real.dtype)
    assert told.device.type == ("meta" if mode == "meta" else "cpu")


def on_meta(value):
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def test_backward_on_meta_tensors():
    scores, slopes = on_meta(scores_of((5, 6))), on_meta(slopes_of())
    scores.requires_grad_()
    slopes.requires_grad_()
    y = posenc_ext.alibi_softmax(posenc_ext.add_alibi(scores, slopes), slopes, causal=True)
    (y * posenc_ext.alibi_bias(slopes, 5, 6)).sum().backward()
    assert scores.grad.shape == scores.shape
    assert slopes.grad.shape == slopes.shape


def call_bias(scores, slopes):
    return scores * posenc_ext.alibi_bias(slopes, *scores.shape[-2:])


def call_add(scores, slopes):
    return posenc_ext.add_alibi(scores.transpose(2, 3), slopes, causal=True).exp()


def call_inplace(scores, slopes):
    return posenc_ext.add_alibi(scores * 2.0, slopes, inplace=True)


def call_softmax(scores, slopes):
    return posenc_ext.alibi_softmax(scores, slopes, scale=0.3, causal=True)


def call_padded(scores, slopes):
    keep = torch.arange(scores.shape[-1]) > 1
    return posenc_ext.alibi_softmax(scores, slopes, key_padding_mask=keep.expand(2, -1))


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def value_and_grads(function, length, of_slopes):
    scores = scores_of((length, length + 2), seed=length).requires_grad_()
    slopes = slopes_of().requires_grad_(of_slopes)
    y = function(scores, slopes)
    wanted = (scores, slopes) if of_slopes else (scores,)
    return [y.detach(), *torch.autograd.grad(y, wanted, uniform(y.shape, seed=1))]


@pytest.mark.parametrize("of_slopes", [False, True], ids=["scores", "scores_slopes"])
@pytest.mark.parametrize("function", [call_bias, call_add, call_inplace, call_softmax, call_padded])
def test_compile(function, of_slopes, fresh_dynamo):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for length in (5, 6, 7, 12, 17):
        pairs = zip(
            *(value_and_grads(f, length, of_slopes) for f in (compiled, function)), strict=True
        )
        for a, b in pairs:
            assert_bits(a, b)
            assert a.stride() == b.stride()
    assert counter.frame_count <= 2


def test_compile_without_gradient_over_decode_steps(fresh_dynamo):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(posenc_ext.alibi_softmax, fullgraph=True, backend=counter)
    for keys in range(3, 12):
        scores = scores_of((1, keys), seed=keys)
        assert_bits(
            compiled(scores, slopes_of(), scale=0.5),
            posenc_ext.alibi_softmax(scores, slopes_of(), scale=0.5),
        )
    assert counter.frame_count <= 2
