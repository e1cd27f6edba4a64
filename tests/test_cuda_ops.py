"""Tables, sinusoidal, ALiBi and relative ops on a GPU: the bits of the CPU, graphs, no waiting."""

import pytest
import torch
from alibi_cases import mask_of, nan_of_ones, scores_of, slopes_of
from relative_cases import index_of
from rope_cases import DTYPES, VIEWS, assert_bits, name, uniform

OPS = torch.ops.posenc_ext
pytestmark = pytest.mark.cuda
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def to_cuda(value):
    """On the GPU with the same strides."""
    if not isinstance(value, torch.Tensor):
        return value
    there = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cuda")
    if value.numel() and min(value.stride(), default=1) == 0:
        return value[:1].cuda().expand_as(value)
    return there.copy_(value)


def check(op, *arguments):
    right = getattr(OPS, op)(*arguments)
    actual = getattr(OPS, op)(*map(to_cuda, arguments))
    single = isinstance(right, torch.Tensor)
    for a, r in zip([actual] if single else actual, [right] if single else right, strict=True):
        assert a.is_cuda
        assert a.stride() == r.stride()
        assert_bits(a.cpu(), r)


def frequencies(count):
    return 10000.0 ** (torch.arange(count, dtype=torch.float64) * -2 / 128)


@each_dtype
@pytest.mark.parametrize("count", [1, 31, 64, 72])
def test_tables_have_the_bits_of_the_cpu(count, dtype):
    for positions in (
        torch.arange(5000),
        torch.tensor([[0, 2**31 - 1], [-7, 70000]]),
        torch.linspace(-50, 50, 333),
    ):
        check("rope_table", positions, frequencies(count), 0.7, dtype)
        for dim in (2 * count - 1, 2 * count, 2 * count + 1):
            for interleaved in (False, True):
                options = (frequencies(count), dim, interleaved, not interleaved, dtype)
                check("sinusoidal_table", positions, *options)


@each_dtype
def test_sinusoidal_has_the_bits_of_the_cpu(dtype):
    for dim in (1, 31, 128, 130):
        check("sinusoidal_frequencies", torch.empty(0, dtype=dtype), dim, 10000.0, 64.0)
        x = uniform((3, 300, dim), dtype)
        for interleaved in (False, True):
            for offsets in (None, torch.tensor([5, 0, -9])):
                options = (frequencies(dim // 2), offsets, 3, 0.7, interleaved, False)
                check("add_sinusoidal", x, *options)
                check("add_sinusoidal", x.transpose(0, 1).contiguous().transpose(0, 1), *options)


def check_alibi(scores, causal):
    slopes, keep = slopes_of(scores.shape[1]), mask_of(scores.shape[0], scores.shape[3])
    q_len, k_len = scores.shape[2:]
    grad = scores.flip(-1)
    check("alibi_bias", slopes, q_len, k_len, causal, scores.dtype, None)
    check("add_alibi", scores, slopes, causal)
    check("alibi_softmax", scores, slopes, 0.7, causal, keep)
    check("alibi_slope_grad", grad, slopes, causal, None)
    check("alibi_softmax_grad", grad, scores, 0.7, causal)
    check("alibi_softmax_slope_grad", grad, scores, slopes, causal)


@both_masks
@each_dtype
@pytest.mark.parametrize(
    "lengths", [(1, 1), (5, 33), (300, 256), (7, 1025), (3, 4096), (9, 4), (2, 70001)], ids=str
)
def test_alibi_has_the_bits_of_the_cpu(lengths, dtype, causal):
    check_alibi(scores_of(lengths, dtype), causal)


@pytest.mark.parametrize("view", VIEWS)
def test_alibi_of_views_has_the_bits_of_the_cpu(view):
    check_alibi(VIEWS[view](scores_of((9, 64), torch.bfloat16)), True)


@each_dtype
def test_alibi_softmax_of_the_nan_that_a_gpu_makes(dtype):
    scores = scores_of((4, 48), dtype)
    scores[1, 0, 2, 7] = nan_of_ones(dtype)
    check("alibi_softmax", scores, slopes_of(), 1.0, False, None)
    assert (
        OPS.alibi_softmax(scores.cuda(), slopes_of().cuda(), 1.0, False, None)[1, 0, 2]
        .isnan()
        .all()
    )


@pytest.mark.parametrize("size", [(70000, 1, 1, 8), (1, 70000, 1, 8), (1, 1, 70000, 8)], ids=str)
def test_more_than_65535_in_an_axis(size):
    check_alibi(uniform(size, torch.bfloat16), False)


@each_dtype
@pytest.mark.parametrize("kind", ["shifted", "clipped", "buckets", "waves"])
def test_relative_has_the_bits_of_the_cpu(kind, dtype):
    for q_len, k_len in ((7, 15), (150, 256), (3, 1100)):
        index, size = index_of(kind, q_len, k_len)
        check("relative_gather", uniform((2, 3, q_len, size), dtype), index, k_len)
        check("relative_scatter", uniform((2, 3, q_len, k_len), dtype), index, size)


def calls():
    """A call of every op, on tensors that stay where they are."""
    x, slopes = scores_of((33, 64), device="cuda"), slopes_of(device="cuda")
    index = torch.arange(96, device="cuda") % 64
    f = frequencies(32).cuda()
    positions = torch.arange(100, device="cuda")
    offsets = torch.tensor([1, 2], device="cuda")
    f32 = torch.float32
    return x, [
        lambda: OPS.rope_table(positions, f, 1.0, f32)[0],
        lambda: OPS.sinusoidal_frequencies(x, 700, 10000.0, 64.0),
        lambda: OPS.sinusoidal_table(positions, f, 64, True, False, f32),
        lambda: OPS.add_sinusoidal(x[:, 0], f, offsets, 0, 1.0, True, False),
        lambda: OPS.alibi_bias(slopes, 33, 64, True, f32, None),
        lambda: OPS.add_alibi(x, slopes, True),
        lambda: OPS.alibi_softmax(x, slopes, 1.0, True, None),
        lambda: OPS.alibi_slope_grad(x, slopes, True, None),
        lambda: OPS.alibi_softmax_grad(x, x, 1.0, True),
        lambda: OPS.alibi_softmax_slope_grad(x, x, slopes, True),
        lambda: OPS.relative_gather(x, index, 64),
        lambda: OPS.relative_scatter(x, index, 64),
    ]


def test_no_op_waits_for_the_device():
    _, ops = calls()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for op in ops:
            op()
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_a_graph_replays_with_new_values():
    x, ops = calls()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for op in ops:
            op()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [op() for op in ops]
    x.mul_(0.5)
    graph.replay()
    for result, op in zip(captured, ops, strict=True):
        assert_bits(result, op())
