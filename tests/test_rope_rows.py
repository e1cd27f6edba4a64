"""Which row of the table rotates which token: offsets, positions, packed and per-token tables."""

import itertools

import pytest
import torch
from rope_cases import (
    DTYPES,
    LAYOUTS,
    TABLE_LENGTH,
    assert_bits,
    assert_close,
    check_rope,
    expected,
    name,
    shape,
    table,
    uniform,
)

import posenc_ext

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])


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
    y = check_rope(x, cos, sin, layout=layout, interleaved=interleaved, **options)
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
    check_rope(
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
    y = check_rope(x, cos, sin, layout="thd", **options)
    for j, (start, end) in enumerate(itertools.pairwise(bounds)):
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
        check_rope(
            uniform(shape(layout), device=device), cos, sin, layout=layout, interleaved=interleaved
        )
    check_rope(
        uniform(shape(layout), device=device),
        cos.expand(batch, 5, 16),
        sin.expand(batch, 5, 16),
        layout=layout,
    )


@pytest.mark.parametrize(
    ("dtype", "table_dtype"),
    [(dtype, torch.complex64) for dtype in DTYPES] + [(torch.float64, torch.complex128)],
    ids=str,
)
def test_complex_tables(dtype, table_dtype, device):
    freqs_cis, _ = table(16, table_dtype, device=device)
    x = uniform(shape("bshd"), dtype, device=device)
    y = check_rope(x, freqs_cis)
    assert_bits(y, posenc_ext.rope(x, freqs_cis.real, freqs_cis.imag, interleaved=True))
    assert_bits(y, posenc_ext.rope(x, freqs_cis.conj(), inverse=True))
    check_rope(x, freqs_cis, positions=torch.tensor([3, 1, 4, 1, 5], device=device))
    check_rope(x, freqs_cis[None, 3:8])
    check_rope(x, freqs_cis.conj(), offset=3)
    q, k = posenc_ext.apply_rope(x, x[:, :, :1], freqs_cis)
    assert_bits(q, y)
    assert_bits(k, y[:, :, :1])


@pytest.mark.parametrize("rows", ROWS)
def test_apply_rope_rows(rows, device):
    cos, sin = table(16, device=device)
    q, k = uniform(shape("bshd"), device=device), uniform(shape("bshd", h=1), seed=1, device=device)
    options = to_device(ROWS[rows], device)
    for y, right in zip(
        posenc_ext.apply_rope(q, k, cos, sin, **options),
        expected("apply_rope", q, k, cos, sin, **options),
        strict=True,
    ):
        assert_close(y, right)


@pytest.mark.parametrize("lengths", [(1, 9), (9, 1), (0, 4), (4, 0)], ids=str)
def test_apply_rope_different_lengths(lengths, device):
    cos, sin = table(16, device=device)
    q, k = (uniform(shape("bshd", s=s), seed=s, device=device) for s in lengths)
    for offset in (4, torch.tensor([2, 8], device=device)):
        outs = posenc_ext.apply_rope(q, k, cos, sin, offset=offset)
        for y, right in zip(
            outs, expected("apply_rope", q, k, cos, sin, offset=offset), strict=True
        ):
            assert_close(y, right)


def test_many_rows_and_large_positions(device):
    cos, sin = table(2, length=100_000, device=device)
    check_rope(uniform((70_001, 1, 4), device=device), cos, sin, layout="thd")
    positions = torch.tensor([99_999, 0, 65_536, 99_999], device=device)
    check_rope(uniform((4, 4), device=device), cos, sin, layout="sd", positions=positions)
