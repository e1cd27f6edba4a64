"""What only a GPU can show: equal bits with the CPU, streams, graphs, devices, asserts."""

import subprocess
import sys

import pytest
import torch
from rope_cases import DTYPES, LAYOUTS, VIEWS, assert_bits, name, shape, table, uniform

import posenc_ext

pytestmark = pytest.mark.cuda

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])


def on_both(op, *tensors, **options):
    """The result on CUDA, after comparing it and its strides with the CPU's."""
    function = getattr(posenc_ext, op)
    right = function(*tensors, **options)
    actual = function(*(t.cuda() for t in tensors), **options)
    if torch.is_tensor(right):
        assert_bits(actual.cpu(), right)
        assert actual.stride() == right.stride()
    else:
        for a, r in zip(actual, right, strict=True):
            assert_bits(a.cpu(), r)
    return actual


@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("rotary", [2, 6, 24, 30, 64, 66, 72, 128, 256])
def test_rope_has_the_bits_of_the_cpu(rotary, dtype, interleaved):
    for tail in (0, 3, 16):
        x = uniform(shape("bshd", s=40, d=rotary + tail), dtype)
        on_both("rope", x, *table(rotary // 2), interleaved=interleaved, inverse=True)
        on_both("apply_rope", x, x[:, :, :1], *table(rotary // 2), interleaved=interleaved)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rope_of_views_has_the_bits_of_the_cpu(layout, view):
    cos, sin = table(16)
    x = uniform(shape(layout), torch.bfloat16)
    right = posenc_ext.rope(VIEWS[view](x), cos, sin, layout=layout)
    actual = posenc_ext.rope(VIEWS[view](x.cuda()), cos.cuda(), sin.cuda(), layout=layout)
    assert_bits(actual.cpu(), right)
    assert actual.stride() == right.stride()


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_gradients_have_the_bits_of_the_cpu(dtype):
    grads = []
    for device in ("cpu", "cuda"):
        x = uniform(shape("bshd", s=9), dtype, device=device).requires_grad_()
        cos, sin = (t.requires_grad_() for t in table(16, device=device))
        positions = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5], device=device)
        y = posenc_ext.rope(x, cos, sin, positions=positions)
        y.backward(uniform(y.shape, dtype, seed=1, device=device))
        grads.append((x.grad, cos.grad, sin.grad))
    for here, there in zip(*grads, strict=True):
        assert_bits(there.cpu(), here)


@pytest.mark.parametrize("size", [(70_000, 1, 1, 8), (1, 70_000, 1, 8), (1, 1, 70_000, 8)], ids=str)
def test_more_than_65535_in_an_axis(size):
    on_both("rope", uniform(size, torch.bfloat16), *table(4, length=size[1]))


def test_offsets_beyond_int32():
    free = torch.cuda.mem_get_info()[0]
    if free < 5 * 2**30:
        pytest.skip(f"needs 5 GB of GPU memory, {free / 2**30:.1f} are free")
    x, (cos, sin) = uniform((2, 3, 64), torch.bfloat16), table(32)
    far = torch.empty(2**31 + 16 + x[0].numel(), dtype=x.dtype, device="cuda")
    far = far.as_strided(x.shape, (2**31 + 16, 64, 1)).copy_(x)
    right = posenc_ext.rope(x, cos, sin, layout="thd")
    assert_bits(posenc_ext.rope(far, cos.cuda(), sin.cuda(), layout="thd").cpu(), right)
    posenc_ext.rope(far, cos.cuda(), sin.cuda(), layout="thd", inplace=True)
    assert_bits(far.cpu(), right)


def test_the_current_stream_is_used():
    """The rotation must wait for what its own stream does before, and for nothing else."""
    cos, sin = table(32, device="cuda")
    x = uniform((1, 64, 8, 64), device="cuda")
    right = posenc_ext.rope(x, cos, sin)
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        y = posenc_ext.rope(late, cos, sin)
    assert not stream.query()  # no call waited for the device
    stream.synchronize()
    assert_bits(y, right)


def test_a_graph_replays_with_new_positions():
    cos, sin = table(32, device="cuda")
    q, k = uniform((1, 5, 4, 64), device="cuda"), uniform((1, 5, 1, 64), seed=1, device="cuda")
    positions = torch.arange(5, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        posenc_ext.apply_rope(q, k, cos, sin, positions=positions)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = posenc_ext.apply_rope(q, k, cos, sin, positions=positions)
        grads = torch.ops.posenc_ext.rope_table_grad(
            q, q, cos, sin, positions, None, None, 0, "bshd", False, False, False
        )
    for shift in (1, 7):
        positions.add_(shift)
        q.mul_(0.5)
        graph.replay()
        for a, r in zip(
            captured, posenc_ext.apply_rope(q, k, cos, sin, positions=positions), strict=True
        ):
            assert_bits(a, r)
        again = torch.ops.posenc_ext.rope_table_grad(
            q, q, cos, sin, positions, None, None, 0, "bshd", False, False, False
        )
        for a, r in zip(grads, again, strict=True):
            assert_bits(a, r)


def test_no_op_waits_for_the_device():
    cos, sin = table(32, device="cuda")
    x, thd = uniform((2, 5, 4, 64), device="cuda"), uniform((5, 4, 64), device="cuda")
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        posenc_ext.rope(x, cos, sin, positions=torch.arange(5, device="cuda"))
        posenc_ext.rope(x, cos, sin, offset=torch.zeros(2, dtype=torch.long, device="cuda"))
        bounds = torch.arange(6, device="cuda")
        posenc_ext.rope(thd, cos, sin, layout="thd", cu_seqlens=bounds)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, tables = uniform((1, 5, 4, 64)), table(32)
    right = posenc_ext.rope(x, *tables)
    with torch.cuda.device(0):
        actual = posenc_ext.rope(x.to("cuda:1"), *(t.to("cuda:1") for t in tables))
        assert torch.cuda.current_device() == 0
    assert actual.device == torch.device("cuda:1")
    assert_bits(actual.cpu(), right)
    with pytest.raises(ValueError, match="cos must be on the device of x"):
        posenc_ext.rope(x.to("cuda:1"), *(t.to("cuda:0") for t in tables))


@pytest.mark.parametrize("bad", ["positions=t(-1)", "positions=t(64)", "offset=t(2**40)"])
def test_a_row_outside_the_table_fails_a_device_assert(bad):
    """In a process of its own, since a failed assert ends the use of the device."""
    code = f"""if True:
        import torch, posenc_ext
        t = lambda value: torch.tensor([value], device="cuda")
        x, c = torch.ones(1, 1, 1, 8, device="cuda"), torch.ones(64, 4, device="cuda")
        posenc_ext.rope(x, c, c, {bad})
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print("refused", str(error).splitlines()[0])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "refused" in done.stdout, done
    assert "device-side assert" in done.stdout
    assert "inside the table" in done.stderr or "rows of the table" in done.stderr
