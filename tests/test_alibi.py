"""alibi_slopes, alibi_bias, add_alibi and alibi_softmax against the oracle and golden numbers."""

import numpy as np
import oracle_alibi
import pytest
import torch
from alibi_cases import (
    EMPTY,
    LENGTHS,
    assert_close,
    causal_mask,
    expected,
    mask_of,
    scores_of,
    slopes_of,
    softmax_by_bias,
)
from oracle_alibi import TOLERANCE, TOLERANCE_SUM
from rope_cases import DTYPES, VIEWS, assert_bits, double, name

import posenc_ext

F64 = torch.float64
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
HEADS = (0, 1, 2, 3, 5, 6, 7, 8, 12, 20, 40, 71, 112, 128, 1000)


def test_golden_slopes(golden):
    cases = {key: case for key, case in golden.items() if key.startswith("alibi/slopes/")}
    assert len(cases) >= 14
    for case in cases.values():
        slopes = posenc_ext.alibi_slopes(case["inputs"]["n_heads"], dtype=F64)
        np.testing.assert_allclose(double(slopes), case["expected"], rtol=2e-16, atol=0)
    naive = golden["alibi/slopes_naive/12"]["expected"]
    assert not np.allclose(double(posenc_ext.alibi_slopes(12)), naive, atol=0.01)


@pytest.mark.parametrize("case", ["symmetric", "bottom_right", "bottom_right_long_q"])
def test_golden_bias(case, golden):
    inputs, right = golden[f"alibi/bias_{case}"]["inputs"], golden[f"alibi/bias_{case}"]["expected"]
    bias = posenc_ext.alibi_bias(torch.tensor([inputs["slope"]]), inputs["len_q"], inputs["len_k"])
    np.testing.assert_array_equal(double(bias[0]), right)


def test_golden_bloom_positions(golden):
    """Row shifts aside, BLOOM's slope * position is our bias of the same positions."""
    case = golden["alibi/bloom_positions"]
    positions, keep = torch.tensor(case["expected"]), torch.tensor(case["inputs"]["attention_mask"])
    bias = posenc_ext.alibi_bias(torch.tensor([0.5]), 5, causal=True, key_positions=positions)
    bloom = 0.5 * positions[:, None, None, :] + causal_mask(5, 5)
    padding = torch.zeros(3, 1, 1, 5).masked_fill(keep[:, None, None, :] == 0, -float("inf"))
    real = (keep[:, None, :, None] == 1).expand(3, 1, 5, 1)
    ours, theirs = (torch.softmax(b + padding, -1) for b in (bias, bloom))
    torch.testing.assert_close(ours[real[..., 0]], theirs[real[..., 0]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("max_bias", [8.0, 4, 16.0, 0.5])
@pytest.mark.parametrize("heads", HEADS)
def test_slopes(heads, max_bias, device):
    right = oracle_alibi.alibi_slopes(heads, max_bias=max_bias)
    slopes = posenc_ext.alibi_slopes(heads, max_bias=max_bias, dtype=F64, device=device)
    assert slopes.shape == (heads,)
    assert slopes.device.type == device
    np.testing.assert_array_equal(double(slopes), right)
    for dtype in DTYPES:
        rounded = posenc_ext.alibi_slopes(heads, max_bias=max_bias, dtype=dtype)
        assert_bits(rounded, torch.from_numpy(right).to(dtype))


@both_masks
@every_dtype
@pytest.mark.parametrize("lengths", [*LENGTHS, *EMPTY], ids=str)
@pytest.mark.parametrize("batch", [None, 2], ids=["H", "BH"])
def test_bias(batch, lengths, dtype, causal, device):
    slopes = slopes_of(3, torch.float32, batch, device)
    bias = posenc_ext.alibi_bias(slopes, *lengths, causal=causal, dtype=dtype)
    right = expected("alibi_bias", slopes, *lengths, causal=causal)
    assert_close(bias, right if batch else right[0], TOLERANCE_SUM)
    assert bias.dtype == dtype
    assert bias.is_contiguous()


def test_bias_of_a_decoding_step():
    """One query stands at the last key; its row is that of the full bias."""
    slopes = posenc_ext.alibi_slopes(8)
    assert posenc_ext.alibi_bias(slopes, 1, 5)[0].tolist() == [[-2.0, -1.5, -1.0, -0.5, 0.0]]
    full = posenc_ext.alibi_bias(slopes, 8, causal=True)
    assert full[0, 3, :4].tolist() == [-1.5, -1.0, -0.5, 0.0]
    for q_len in range(1, 9):
        assert_bits(posenc_ext.alibi_bias(slopes, q_len, 8, causal=True), full[:, 8 - q_len :])
    assert_bits(posenc_ext.alibi_row_bias(slopes, 8), full[:, -1:])


@both_masks
@every_dtype
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=name)
def test_bias_of_key_positions(index, dtype, causal, device):
    positions = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [9, 2, 40, 2, 7]], dtype=index)
    positions = positions.t().contiguous().t().to(device)
    for slopes in (slopes_of(4, device=device), slopes_of(4, batch=3, device=device)):
        for q_len in (5, 1, 0):
            options = {"causal": causal, "key_positions": positions}
            bias = posenc_ext.alibi_bias(slopes, q_len, dtype=dtype, **options)
            assert_close(bias, expected("alibi_bias", slopes, q_len, 5, **options), TOLERANCE_SUM)


@both_masks
@every_dtype
@pytest.mark.parametrize("lengths", [*LENGTHS, *EMPTY], ids=str)
def test_add(lengths, dtype, causal, device):
    scores, slopes = scores_of(lengths, dtype, device=device), slopes_of(device=device)
    before = scores.clone()
    y = posenc_ext.add_alibi(scores, slopes, causal=causal)
    assert_close(y, expected("add_alibi", scores, slopes, causal=causal), TOLERANCE_SUM)
    assert_bits(scores, before)
    by_batch = slopes_of(batch=2, device=device)
    y = posenc_ext.add_alibi(scores, by_batch, causal=causal)
    assert_close(y, expected("add_alibi", scores, by_batch, causal=causal), TOLERANCE_SUM)


@both_masks
@every_dtype
@pytest.mark.parametrize("padding", [False, True], ids=["real", "padded"])
@pytest.mark.parametrize("lengths", [*LENGTHS, *EMPTY], ids=str)
def test_softmax(lengths, padding, dtype, causal, device):
    scores = scores_of(lengths, dtype, device=device)
    options = {"scale": 0.5, "causal": causal}
    if padding:
        options["key_padding_mask"] = mask_of(2, lengths[1]).to(device)
    before = scores.clone()
    for slopes in (slopes_of(device=device), slopes_of(batch=2, device=device)):
        y = posenc_ext.alibi_softmax(scores, slopes, **options)
        assert y.dtype == dtype
        assert_close(y, expected("alibi_softmax", scores, slopes, **options), TOLERANCE)
    assert_bits(scores, before)


@every_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, dtype, device):
    """Read in place: results have the bits of the contiguous case, and the strides of the input."""
    slopes = slopes_of(device=device)
    scores = VIEWS[view](scores_of((9, 37), dtype, device=device))
    mask = mask_of(2, 74)[:, ::2].to(device)
    for call in (
        lambda s: posenc_ext.add_alibi(s, slopes, causal=True),
        lambda s: posenc_ext.alibi_softmax(s, slopes, scale=0.3),
        lambda s: posenc_ext.alibi_softmax(s, slopes, causal=True, key_padding_mask=mask),
    ):
        y = call(scores)
        assert_bits(y, call(scores.contiguous()))
        if view in ("contiguous", "transposed", "permuted"):
            assert y.stride() == scores.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=name)
def test_slopes_of_any_dtype_and_stride(dtype):
    scores, slopes = scores_of((6, 8)), slopes_of(6, dtype)[::2]
    right = posenc_ext.add_alibi(scores, slopes.float().contiguous())
    assert_bits(posenc_ext.add_alibi(scores, slopes), right)


@both_masks
def test_forms_agree(causal):
    """Symmetric, relative and row forms differ by row constants only, where a mask is causal."""
    scores, slopes = scores_of((20, 20), F64), posenc_ext.alibi_slopes(3, dtype=F64)
    i, j = torch.arange(20)[:, None], torch.arange(20)
    mask = causal_mask(20, 20, F64)
    ours = posenc_ext.alibi_softmax(scores, slopes, causal=causal)
    if causal:
        forms = [slopes[:, None, None] * (j - i), slopes[:, None, None] * j]
        forms += [posenc_ext.alibi_row_bias(slopes, 20, dtype=F64)]
        forms += [posenc_ext.alibi_bias(slopes, 20, dtype=F64)]
        for form in forms:
            torch.testing.assert_close(
                ours, softmax_by_bias(scores, form + mask), rtol=1e-13, atol=0
            )
    else:
        bias = posenc_ext.alibi_bias(slopes, 20, dtype=F64)
        assert_bits(bias, bias.transpose(1, 2))
        torch.testing.assert_close(ours, softmax_by_bias(scores, bias), rtol=1e-13, atol=0)
    assert bool((posenc_ext.alibi_bias(slopes, 20, dtype=F64) <= 0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name)
def test_the_last_keys_of_a_long_row_are_exact(dtype):
    """Where slope * j would be rounded to steps of 4 and more, the relative form is exact."""
    bias = posenc_ext.alibi_bias(torch.tensor([0.5]), 1, 4096, dtype=dtype)
    exact = -0.5 * (4095 - torch.arange(4096.0))
    assert_bits(bias[0, 0, -200:].float(), exact[-200:])
    assert not torch.equal((exact + 2047.5).to(dtype).float()[-200:] - 2047.5, exact[-200:])
    scores = torch.zeros(1, 1, 1, 4096, dtype=dtype)
    y = posenc_ext.alibi_softmax(scores, torch.tensor([0.5]))
    right = torch.softmax(exact.double(), 0).to(dtype)
    assert_bits(y[0, 0, 0, -150:], right[-150:])  # beyond them subnormals, where ours is 0


@every_dtype
def test_rows_without_a_key_are_zeros(dtype):
    slopes = slopes_of()
    y = posenc_ext.alibi_softmax(scores_of((5, 3), dtype), slopes, causal=True)
    assert not y[:, :, :2].any()
    assert_close(y[:, :, 2:].sum(-1), np.ones((2, 3, 3)), {name(dtype): (2**-7, 0)})
    scores = scores_of((4, 20), dtype)
    scores[:, :, 1] = -float("inf")
    y = posenc_ext.alibi_softmax(scores, slopes)
    assert not y[:, :, 1].any()
    assert bool((y[:, :, [0, 2, 3]].sum(-1) > 0.9).all())


@both_masks
@every_dtype
def test_nan_and_infinity(dtype, causal):
    slopes, nan, inf = slopes_of(), float("nan"), float("inf")
    for value, keys in ((nan, 20), (inf, 20), (nan, 3)):
        scores = scores_of((4, keys), dtype)
        scores[:, :, 2, 1 if causal else keys - 1] = value
        y = posenc_ext.alibi_softmax(scores, slopes, causal=causal)
        assert bool(y[:, :, 2, : (keys - 1 if causal else keys)].isnan().all())
        assert not y[:, :, [0, 1, 3]].isnan().any()
    scores = torch.full((1, 3, 2, 20), -inf, dtype=dtype)
    scores[..., 0, 17] = nan  # alone among -inf, and hidden from the other row
    y = posenc_ext.alibi_softmax(scores, slopes)
    assert bool(y[:, :, 0].isnan().all())
    assert not y[:, :, 1].any()
    keep = torch.ones(1, 20, dtype=torch.bool)
    keep[0, 17] = False
    assert not posenc_ext.alibi_softmax(scores, slopes, key_padding_mask=keep).any()


@pytest.mark.parametrize("payload", [0x7FFFFF, 0x400001, 0x4001FE, 1], ids=hex)
@pytest.mark.parametrize("length", [3, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_a_nan_of_any_bits_is_a_nan(dtype, length, payload):
    """exp works on the bits of its argument; those of a float32 NaN on a GPU are all ones."""
    infinity, whole = (
        (0x7F800000, torch.int32) if dtype == torch.float32 else (2047 << 52, torch.int64)
    )
    nan = torch.tensor([infinity | payload], dtype=whole).view(dtype)
    assert nan.isnan()
    for at in range(length):
        scores = scores_of((2, length), dtype)
        scores[1, :, 1, at] = nan
        y = posenc_ext.alibi_softmax(scores, slopes_of(dtype=dtype))
        assert y[1, :, 1].isnan().all()
        y[1, :, 1] = 0
        assert not y.isnan().any()


@pytest.mark.parametrize("scale", [0.0, -1.5, 1, 1e-3, 7.0])
def test_scale(scale):
    scores, slopes = scores_of((6, 19), F64), slopes_of(dtype=F64)
    y = posenc_ext.alibi_softmax(scores, slopes, scale=scale, causal=True)
    right = expected("alibi_softmax", scores, slopes, scale=scale, causal=True)
    assert_close(y, right, TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=name)
def test_exp_over_its_whole_range(dtype):
    """Two keys, the first of them so that exp of its distance from the second is seen."""
    lowest = 87.0 if dtype == torch.float32 else 708.0
    x = -torch.linspace(0, lowest, 50_001, dtype=dtype)
    scores = torch.stack([x, torch.zeros_like(x)], -1)[None, None]
    y = posenc_ext.alibi_softmax(scores, torch.zeros(1))[0, 0]
    e = np.exp(double(x).astype(np.longdouble))
    right = np.stack([e, np.ones_like(e)], -1) / (1 + e)[:, None]
    error = np.abs(double(y).astype(np.longdouble) / right - 1).max()
    assert error < 4 * torch.finfo(dtype).eps / 2
    beyond = torch.tensor([[[[-lowest - 100, 0.0]]]], dtype=dtype)
    assert posenc_ext.alibi_softmax(beyond, torch.zeros(1)).tolist() == [[[[0.0, 1.0]]]]
