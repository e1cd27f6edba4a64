"""Inputs for the RoPE tests (seeded, small), and how to compare results."""

import contextlib

import numpy as np
import oracle
import torch

import posenc_ext

LAYOUTS = ("bshd", "bhsd", "sbhd", "thd", "shd", "hsd", "bsd", "sbd", "sd")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TABLE_LENGTH = 64


def name(dtype):
    return str(dtype).removeprefix("torch.")


def shape(layout, b=2, s=5, h=3, d=40):
    size = {"b": b, "s": s, "t": s, "h": h, "d": d}
    return tuple(size[axis] for axis in layout)


def uniform(size, dtype=torch.float32, seed=0, device="cpu"):
    """Values in [-2, 2], the range for which oracle.TOLERANCE is written."""
    values = np.random.default_rng(seed).uniform(-2, 2, size)
    return torch.from_numpy(values).to(dtype).to(device)


def table(n, dtype=torch.float32, length=TABLE_LENGTH, device="cpu"):
    """cos and sin of shape [length, n], dtype real or complex (then sin is None)."""
    cos, sin = oracle.rope_table(length, oracle.rope_frequencies(2 * n, 100.0)[0])
    cos, sin = torch.from_numpy(cos), torch.from_numpy(sin)
    if dtype.is_complex:
        return torch.complex(cos, sin).to(dtype).to(device), None
    return cos.to(dtype).to(device), sin.to(dtype).to(device)


def bshd(x, layout):
    """A view of x with axes (b, s, h, d), for the layouts that miss some."""
    axes = layout.replace("t", "s")
    for axis in "bsh":
        if axis not in axes:
            x, axes = x.unsqueeze(0), axis + axes
    return x.permute([axes.index(axis) for axis in "bshd"])


def reversed_axes(x):
    order = list(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def transposed(x):
    axis = max(x.dim() - 3, 0)
    return x.transpose(axis, axis + 1).contiguous().transpose(axis, axis + 1)


def odd_offset(x):
    buffer = torch.full((x.numel() + 9,), 7.0, dtype=x.dtype, device=x.device)
    return buffer[1 : 1 + x.numel()].view(x.shape).copy_(x)


def last_axis_of(x, width, channels):
    buffer = torch.full((*x.shape[:-1], width), 7.0, dtype=x.dtype, device=x.device)
    return buffer[..., channels].copy_(x)


def fused(x):
    axis = max(x.dim() - 2, 0)
    return torch.stack([x + 1, x, x - 1], axis).select(axis, 1)


# Each returns x over memory of another kind; `expanded` repeats its first entry.
VIEWS = {
    "contiguous": lambda x: x.clone(),
    "transposed": transposed,
    "permuted": reversed_axes,
    "odd_offset": odd_offset,
    "sliced": lambda x: last_axis_of(x, x.shape[-1] + 5, slice(3, 3 + x.shape[-1])),
    "last_stride_2": lambda x: last_axis_of(x, 2 * x.shape[-1], slice(0, None, 2)),
    "fused_qkv": fused,
    "expanded": lambda x: x[:1].expand_as(x),
}


def double(value):
    """A tensor as NumPy float64 or complex128; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu().resolve_conj()
    if value.is_floating_point():
        value = value.double()
    return value.to(torch.complex128).numpy() if value.is_complex() else value.numpy()


def expected(op, *tensors, **options):
    """The oracle's answer to a call of the same name."""
    options = {key: double(value) for key, value in options.items()}
    return getattr(oracle, op)(*map(double, tensors), **options)


def assert_close(actual, right, tolerance=oracle.TOLERANCE):
    assert tuple(actual.shape) == right.shape
    rtol, atol = tolerance[name(actual.dtype)]
    np.testing.assert_allclose(double(actual), right, rtol=rtol, atol=atol)


def assert_bits(actual, right):
    """Equal bit for bit, apart from the payload of NaN."""
    assert actual.dtype == right.dtype
    assert actual.shape == right.shape
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    same = actual.contiguous().view(integer) == right.contiguous().view(integer)
    same |= actual.isnan() & right.isnan()
    assert same.all(), f"{int((~same).sum())} of {same.numel()} elements differ in bits"


def check_rope(x, cos, sin=None, **options):
    """rope(x) against the oracle; returns it. Neither x nor its version may change."""
    before, version = x.clone(), x._version
    y = posenc_ext.rope(x, cos, sin, **options)
    assert (
        y.dtype == x.dtype and y.device == x.device and y.data_ptr() != x.data_ptr()
    ) or not x.numel()
    assert_close(y, expected("rope", x, cos, sin, **options))
    assert_bits(x, before)
    assert x._version == version
    return y


def full_width(half, interleaved):
    return half.repeat_interleave(2, -1) if interleaved else torch.cat([half, half], -1)


def rotate_half(x, interleaved):
    """(-v, u) in the place of (u, v), as Hugging Face writes it."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    u, v = x.chunk(2, -1)
    return torch.cat([-v, u], -1)


def eager(x, cos, sin, interleaved=False, inverse=False):
    """x*cos + rotate_half(x)*sin for a full-width rotation of x [b, s, h, d] by rows 0..s-1."""
    rows = slice(0, x.shape[1])
    cos, sin = (full_width(t[rows], interleaved)[:, None].to(x.dtype) for t in (cos, sin))
    return x * cos + rotate_half(x, interleaved) * (-sin if inverse else sin)


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
