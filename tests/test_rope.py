"""rope and apply_rope against the oracle: the defaults with one thing changed at a time."""

import math

import numpy as np
import posenc_ext
import pytest
import torch
from rope_cases import (
    DTYPES,
    LAYOUTS,
    TABLE_LENGTH,
    VIEWS,
    assert_bits,
    assert_close,
    double,
    expected,
    name,
    shape,
    table,
    uniform,
)

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])


def check(x, cos, sin=None, **options):
    before, version = x.clone(), x._version
    y = posenc_ext.rope(x, cos, sin, **options)
    assert (
        y.dtype == x.dtype
        and y.device == x.device
        and y.data_ptr() != x.data_ptr()
        or not x.numel()
    )
    assert_close(y, expected("rope", x, cos, sin, **options))
    assert_bits(x, before)
    assert x._version == version
    return y


@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    "rotary", [0, 2, 4, 6, 14, 16, 18, 30, 32, 34, 48, 62, 64, 66, 96, 128, 130, 256]
)
def test_rotary_dims(rotary, dtype, interleaved, device):
    cos, sin = table(rotary // 2, device=device)
    for d in {rotary, rotary + 1, rotary + 8}:
        x = uniform(shape("bshd", d=d), dtype, device=device)
        y = check(x, cos, sin, interleaved=interleaved)
        assert_bits(y[..., rotary:], x[..., rotary:])


@both_pairings
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, interleaved, inverse, device):
    cos, sin = table(16, device=device)
    x = uniform(shape(layout), device=device)
    check(x, cos, sin, layout=layout, interleaved=interleaved, inverse=inverse, offset=2)


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sbhd"])
def test_layout_is_not_guessed(layout, device):
    cos, sin = table(4, device=device)
    check(uniform((4, 4, 4, 8), device=device), cos, sin, layout=layout)


@both_pairings
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views(layout, view, interleaved, device):
    cos, sin = table(16, device=device)
    x = VIEWS[view](uniform(shape(layout), device=device))
    y = check(x, cos, sin, layout=layout, interleaved=interleaved)
    assert_bits(
        y, posenc_ext.rope(x.contiguous(), cos, sin, layout=layout, interleaved=interleaved)
    )
    assert y.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize("view", VIEWS)
def test_table_views(view, device):
    cos, sin = (VIEWS[view](t) for t in table(16, device=device))
    check(uniform(shape("bshd"), device=device), cos, sin)
    cos, sin = (VIEWS[view](uniform((2, 5, 16), seed=i, device=device) / 2) for i in (1, 2))
    check(uniform(shape("bshd"), device=device), cos, sin)


ROWS = {
    "default": {},
    "offset": {"offset": 7},
    "offset_to_the_last_row": {"offset": TABLE_LENGTH - 5},
    "offset_scalar_tensor": {"offset": torch.tensor(7)},
    "offset_per_batch": {"offset": torch.tensor([3, 59])},
    "offset_int32": {"offset": torch.tensor([9, 0], dtype=torch.int32)},
    "offset_strided": {"offset": torch.tensor([1, 50, 2, 50])[::2]},
    "positions_unsorted_repeated": {"positions": torch.tensor([3, 1, 4, 1, 63])},
    "positions_int32": {"positions": torch.tensor([0, 1, 2, 0, 1], dtype=torch.int32)},
    "positions_per_batch": {"positions": torch.tensor([[0, 1, 2, 3, 4], [1, 1, 0, 1, 2]])},
    "positions_one_row": {"positions": torch.tensor([[5, 6, 7, 8, 9]])},
    "positions_strided": {"positions": torch.arange(20).view(5, 4)[:, ::2].t()},
    "positions_expanded": {"positions": torch.tensor([8, 7, 6, 5, 4]).expand(2, 5)},
}


def to_device(options, device):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}


@both_pairings
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "bsd"])
def test_rows(layout, rows, interleaved, device):
    cos, sin = table(16, device=device)
    options = to_device(ROWS[rows], device)
    x = uniform(shape(layout), device=device)
    y = check(x, cos, sin, layout=layout, interleaved=interleaved, **options)
    if rows == "positions_unsorted_repeated" and layout == "bshd":
        for i, position in enumerate(options["positions"].tolist()):  # as at that position alone
            alone = posenc_ext.rope(
                x[:, i : i + 1], cos, sin, interleaved=interleaved, offset=position
            )
            assert_bits(y[:, i : i + 1], alone)


@pytest.mark.parametrize("layout", ["shd", "hsd", "sd", "thd"])
@pytest.mark.parametrize(
    "rows", ["offset", "offset_scalar_tensor", "positions_int32", "positions_one_row"]
)
def test_rows_without_batch(layout, rows, device):
    cos, sin = table(16, device=device)
    check(
        uniform(shape(layout), device=device),
        cos,
        sin,
        layout=layout,
        **to_device(ROWS[rows], device),
    )


@pytest.mark.parametrize("offset", [0, 60, "scalar", "each"])
@pytest.mark.parametrize(
    "bounds", [[0, 9], [0, 3, 4, 4, 9], [0, 0, 9, 9], list(range(10))], ids=str
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=name)
def test_cu_seqlens(bounds, offset, dtype, device):
    cos, sin = table(16, length=80, device=device)
    offset = {"scalar": torch.tensor(5), "each": torch.arange(len(bounds) - 1) * 3}.get(
        offset, offset
    )
    options = to_device({"offset": offset, "cu_seqlens": torch.tensor(bounds, dtype=dtype)}, device)
    x = uniform(shape("thd", s=9), device=device)
    y = check(x, cos, sin, layout="thd", **options)
    for j, (start, end) in enumerate(zip(bounds, bounds[1:])):
        first = (
            offset if isinstance(offset, int) else int(offset if offset.dim() == 0 else offset[j])
        )
        alone = posenc_ext.rope(x[start:end], cos, sin, layout="thd", offset=first)
        assert_bits(y[start:end], alone)


@both_pairings
@pytest.mark.parametrize("layout", LAYOUTS)
def test_per_token_tables(layout, interleaved, device):
    batch = 2 if "b" in layout else 1
    for rows in {1, batch}:
        cos, sin = (uniform((rows, 5, 16), seed=i, device=device) / 2 for i in (1, 2))
        check(
            uniform(shape(layout), device=device), cos, sin, layout=layout, interleaved=interleaved
        )
    check(
        uniform(shape(layout), device=device),
        cos.expand(batch, 5, 16),
        sin.expand(batch, 5, 16),
        layout=layout,
    )


@pytest.mark.parametrize(
    "dtype, table_dtype",
    [(dtype, torch.complex64) for dtype in DTYPES] + [(torch.float64, torch.complex128)],
    ids=str,
)
def test_complex_tables(dtype, table_dtype, device):
    freqs_cis, _ = table(16, table_dtype, device=device)
    x = uniform(shape("bshd"), dtype, device=device)
    y = check(x, freqs_cis)
    assert_bits(y, posenc_ext.rope(x, freqs_cis.real, freqs_cis.imag, interleaved=True))
    assert_bits(y, posenc_ext.rope(x, freqs_cis.conj(), inverse=True))
    check(x, freqs_cis, positions=torch.tensor([3, 1, 4, 1, 5], device=device))
    check(x, freqs_cis[None, 3:8])
    check(x, freqs_cis.conj(), offset=3)
    q, k = posenc_ext.apply_rope(x, x[:, :, :1], freqs_cis)
    assert_bits(q, y)
    assert_bits(k, y[:, :, :1])


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_table_dtypes(dtype, device):
    allowed = {torch.float32, dtype}
    for table_dtype in allowed:
        cos, sin = table(16, table_dtype, device=device)
        check(uniform(shape("bshd"), dtype, device=device), cos, sin)


EMPTY = [(0, 5, 4, 8), (2, 0, 4, 8), (2, 5, 0, 8), (2, 5, 4, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("size", EMPTY, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_empty(size, dtype, device):
    x = torch.empty(size, dtype=dtype, device=device, requires_grad=True)
    cos, sin = table(min(size[-1], 8) // 2, device=device)
    y = posenc_ext.rope(x, cos, sin)
    assert y.shape == x.shape and y.dtype == dtype and y.device == x.device
    y.sum().backward()
    assert x.grad.shape == x.shape
    detached = x.detach()
    assert posenc_ext.rope(detached, cos, sin, inplace=True).shape == x.shape
    assert posenc_ext.rope(detached, cos, sin, out=torch.empty_like(detached)).shape == x.shape


def test_empty_packed_and_empty_table(device):
    cos, sin = table(4, device=device)
    x = torch.empty(0, 4, 8, device=device)
    for bounds in ([0], [0, 0], [0, 0, 0]):
        cu_seqlens = torch.tensor(bounds, device=device)
        assert posenc_ext.rope(x, cos, sin, layout="thd", cu_seqlens=cu_seqlens).shape == x.shape
    assert posenc_ext.rope(x, cos[:0], sin[:0], layout="thd").shape == x.shape
    q, k = uniform((2, 5, 4, 8), device=device), torch.empty(2, 5, 0, 8, device=device)
    q_out, k_out = posenc_ext.apply_rope(q, k, cos, sin)
    assert_close(q_out, expected("rope", q, cos, sin))
    assert k_out.shape == k.shape


@both_pairings
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_apply_rope(layout, dtype, interleaved, device):
    cos, sin = table(16, device=device)
    q = VIEWS["transposed"](uniform(shape(layout, h=6), dtype, device=device))
    k = VIEWS["fused_qkv"](uniform(shape(layout, h=2), dtype, 1, device))
    options = {"layout": layout, "interleaved": interleaved, "offset": 3}
    outs = posenc_ext.apply_rope(q, k, cos, sin, **options)
    for x, y, right in zip((q, k), outs, expected("apply_rope", q, k, cos, sin, **options)):
        assert_close(y, right)
        assert_bits(y, posenc_ext.rope(x, cos, sin, **options))
        assert y.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize("rows", ROWS)
def test_apply_rope_rows(rows, device):
    cos, sin = table(16, device=device)
    q, k = uniform(shape("bshd"), device=device), uniform(shape("bshd", h=1), seed=1, device=device)
    options = to_device(ROWS[rows], device)
    for y, right in zip(
        posenc_ext.apply_rope(q, k, cos, sin, **options),
        expected("apply_rope", q, k, cos, sin, **options),
    ):
        assert_close(y, right)


@pytest.mark.parametrize("lengths", [(1, 9), (9, 1), (0, 4), (4, 0)], ids=str)
def test_apply_rope_different_lengths(lengths, device):
    cos, sin = table(16, device=device)
    q, k = (uniform(shape("bshd", s=s), seed=s, device=device) for s in lengths)
    for offset in (4, torch.tensor([2, 8], device=device)):
        outs = posenc_ext.apply_rope(q, k, cos, sin, offset=offset)
        for y, right in zip(outs, expected("apply_rope", q, k, cos, sin, offset=offset)):
            assert_close(y, right)


def test_apply_rope_without_k(device):
    cos, sin = table(16, device=device)
    q = uniform(shape("bshd"), device=device)
    q_out, k_out = posenc_ext.apply_rope(q, None, cos, sin)
    assert k_out is None
    assert_bits(q_out, posenc_ext.rope(q, cos, sin))


def test_many_rows_and_large_positions(device):
    cos, sin = table(2, length=100_000, device=device)
    check(uniform((70_001, 1, 4), device=device), cos, sin, layout="thd")
    positions = torch.tensor([99_999, 0, 65_536, 99_999], device=device)
    check(uniform((4, 4), device=device), cos, sin, layout="sd", positions=positions)


GOLDEN = {
    "half": {},
    "half_inverse": {"inverse": True},
    "interleaved": {"interleaved": True},
    "partial_half_rot4": {},
    "partial_interleaved_rot4": {"interleaved": True},
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, golden, device):
    inputs, right = golden[f"apply/{case}"]["inputs"], golden[f"apply/{case}"]["expected"]
    n = inputs.get("rotary_dim", 8) // 2
    angle = [abs(inputs["pos"]) * 10000.0 ** (-i / n) for i in range(n)]
    cos, sin = (
        torch.tensor([[f(a) for a in angle]], dtype=torch.float64, device=device)
        for f in (math.cos, math.sin)
    )
    x = torch.tensor([inputs["x"]], dtype=torch.float64, device=device)
    y = posenc_ext.rope(x, cos, sin, layout="sd", **GOLDEN[case])
    np.testing.assert_allclose(double(y)[0], right, rtol=0, atol=4e-15)


@both_pairings
def test_properties(interleaved, device):
    cos, sin = table(32, torch.float64, device=device)
    x, other = (uniform(shape("bshd", d=64), torch.float64, i, device) for i in (0, 1))
    at = {p: posenc_ext.rope(x, cos, sin, interleaved=interleaved, offset=p) for p in (0, 9, 30)}
    back = posenc_ext.rope(at[9], cos, sin, interleaved=interleaved, offset=9, inverse=True)
    torch.testing.assert_close(back, x, rtol=0, atol=2e-15)
    torch.testing.assert_close(at[9].norm(dim=-1), x.norm(dim=-1), rtol=1e-14, atol=0)
    further = posenc_ext.rope(other, cos, sin, interleaved=interleaved, offset=9)
    closer = posenc_ext.rope(other, cos, sin, interleaved=interleaved, offset=0)
    later = posenc_ext.rope(other, cos, sin, interleaved=interleaved, offset=30)
    scores = (closer * at[9]).sum(-1)  # depends on the distance alone: (0, 9) and (9, 18), (21, 30)
    moved = posenc_ext.rope(x, cos, sin, interleaved=interleaved, offset=18)
    torch.testing.assert_close((further * moved).sum(-1), scores, rtol=0, atol=1e-12)
    assert not torch.allclose((later * moved).sum(-1), scores)
    assert_bits(at[0][:, :1], x[:, :1])


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_interleaved_is_permuted_half(dtype, device):
    cos, sin = table(16, device=device)
    x = uniform(shape("bshd", d=32), dtype, device=device)
    order = torch.cat([torch.arange(0, 32, 2), torch.arange(1, 32, 2)]).to(device)
    assert_bits(
        posenc_ext.rope(x[..., order], cos, sin),
        posenc_ext.rope(x, cos, sin, interleaved=True)[..., order],
    )
