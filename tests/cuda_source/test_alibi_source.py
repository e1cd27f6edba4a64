"""The alibi kernels against the CPU ops, bit for bit: softmax too, since exp is our own."""

import pytest
import torch
from alibi_cases import EMPTY, LENGTHS, mask_of, nan_of_ones, scores_of, slopes_of
from rope_cases import DTYPES, VIEWS, assert_bits, name, uniform
from test_rope_bits import SPECIAL

CPU, CUDA = torch.ops.posenc_ext, torch.ops.posenc_cuda_source
# Around and beyond what a block holds of one row (4096, 1024 unaligned), and whole rows in groups.
LONG = [(3, 1024), (2, 1025), (2, 4096), (1, 4097), (2, 4112), (1, 9000), (33, 128)]
LARGE = [(65600, 1, 1, 3), (1, 65600, 2, 1), (1, 1, 65600, 4), (1, 1, 1, 65601)]
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def check(op, *arguments):
    right, actual = (getattr(library, op)(*arguments) for library in (CPU, CUDA))
    assert actual.stride() == right.stride()
    assert_bits(actual, right)


def check_all(scores, causal, slopes=None, keep=None):
    """Every op, on scores as they are: a softmax may take any values, and so may its gradient."""
    slopes = slopes_of(scores.shape[1]) if slopes is None else slopes
    other = scores.flip(-1) if scores.shape[-1] else scores
    q_len, k_len = scores.shape[-2:]
    check("alibi_bias", slopes, q_len, k_len, causal, scores.dtype, None)
    check("add_alibi", scores, slopes, causal)
    check("alibi_softmax", scores, slopes, 0.7, causal, keep)
    check("alibi_slope_grad", scores, slopes, causal, None)
    check("alibi_softmax_grad", other, scores, 0.7, causal)
    check("alibi_softmax_slope_grad", other, scores, slopes, causal)


@both_masks
@each_dtype
@pytest.mark.parametrize("lengths", LENGTHS + EMPTY, ids=str)
def test_every_length(lengths, dtype, causal):
    scores = scores_of(lengths, dtype)
    check_all(scores, causal, keep=mask_of(2, lengths[1]))
    check_all(scores[:0], causal)
    check_all(scores[:, :0], causal, slopes_of(0))


@both_masks
@each_dtype
@pytest.mark.parametrize("lengths", LONG, ids=str)
def test_rows_in_groups_and_in_pieces(lengths, dtype, causal):
    scores = scores_of(lengths, dtype, batch=1, heads=2)
    check_all(scores, causal, keep=mask_of(2, lengths[1])[:1])


@each_dtype
def test_a_group_and_a_tile_of_rows_end_before_the_head_does(dtype):
    check_all(scores_of((300, 250), dtype, heads=2), True)
    check_all(scores_of((300, 256), dtype, batch=1, heads=2), False)


@both_masks
@each_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_every_view(view, dtype, causal):
    for lengths in ((9, 37), (6, 64)):
        scores, keep = VIEWS[view](scores_of(lengths, dtype)), mask_of(2, 2 * lengths[1])
        check_all(scores, causal, keep=keep[:, ::2])
        check_all(scores, causal, keep=keep[:, 0].expand(lengths[1], 2).T)
        check("alibi_softmax_grad", scores, scores_of(lengths, dtype, 1), 0.5, causal)


@each_dtype
def test_every_kind_of_slopes(dtype):
    scores = scores_of((5, 32), dtype)
    kinds = [t for t in DTYPES if t != torch.float64 or dtype == torch.float64]
    for kind in kinds:
        check_all(scores, True, slopes_of(dtype=kind))
        check_all(scores, False, slopes_of(dtype=kind, batch=2))
        check_all(scores, False, slopes_of(6, kind, batch=2)[:, ::2])
        check_all(scores, True, slopes_of(dtype=kind)[:1].expand(2, 3))


@both_masks
@each_dtype
def test_key_positions(dtype, causal):
    far = torch.tensor([[0, 0, 1, 2, 2**62, -(2**62), 7, 7]])
    near = torch.tensor([[3, 1, 2, 0, 5, 4, 9, 8], [0, 1, 2, 3, 4, 5, 6, 7]])
    for positions in (near, near.int(), near.repeat(1, 2)[:, ::2], near[:1].expand(2, 8)):
        for slopes in (slopes_of(), slopes_of(batch=2)):
            check("alibi_bias", slopes, 5, 8, causal, dtype, positions)
            grad = scores_of((5, 8), dtype)
            check("alibi_slope_grad", grad, slopes, causal, positions)
    check("alibi_bias", slopes_of(), 8, 8, causal, dtype, far)


@each_dtype
def test_three_dimensional_gradients(dtype):
    check("alibi_slope_grad", scores_of((5, 32), dtype)[0], slopes_of(), True, None)


@pytest.mark.parametrize("size", LARGE, ids=str)
def test_more_than_65535_of_everything(size):
    """A block is a batch entry and head at most, so the slow ops stay with many rows and keys."""
    scores, slopes = uniform(size, torch.float16, 3), slopes_of(size[1])
    check("add_alibi", scores, slopes, True)
    check("alibi_bias", slopes, *size[2:], False, torch.float16, None)
    if size[0] * size[1] == 1:
        check_all(scores, True)


@each_dtype
def test_offsets_past_2_to_the_31(dtype):
    """In the stride of every dimension; only a few pages of the buffer are ever touched."""
    far = 2**31 + 64
    buffer = torch.empty(far + 4096, dtype=dtype)
    for size, strides in [
        ((2, 1, 2, 16), (far, 64, 32, 1)),
        ((1, 2, 2, 16), (64, far, 32, 1)),
        ((1, 2, 2, 16), (0, 64, far, 1)),
        ((1, 1, 2, 2), (0, 0, 8, far)),
    ]:
        scores = buffer.as_strided(size, strides)
        scores.copy_(uniform(size, dtype))
        check("alibi_softmax", scores, slopes_of(size[1]), 1.0, False, None)
        check("alibi_slope_grad", scores, slopes_of(size[1]), False, None)
        check("alibi_softmax_grad", scores, scores, 1.0, False)
        right = CPU.add_alibi(scores, slopes_of(size[1]), True)
        CUDA.add_alibi_(scores, slopes_of(size[1]), True)
        assert_bits(scores.contiguous(), right.contiguous())


@both_masks
@each_dtype
def test_special_values(dtype, causal):
    special = torch.tensor(SPECIAL, dtype=dtype)
    rows = torch.stack([special.roll(i) for i in range(12)])[:, :, None].expand(12, 12, 3)
    rows = torch.cat([rows.flatten(1), torch.zeros(12, 4, dtype=dtype)], 1).view(1, 3, 4, 40)
    low = torch.full((1, 3, 2, 40), -float("inf"), dtype=dtype)
    low[0, 1, 0, 5] = float("nan")
    low[0, 2, 1, 30] = nan_of_ones(dtype)
    for scores in (rows, rows[..., :39], low, low.clone().contiguous()[..., 1:]):
        check("add_alibi", scores, slopes_of(), causal)
        check("alibi_softmax", scores, slopes_of(), 1.0, causal, None)
        check("alibi_softmax_grad", scores, scores, 1.0, causal)
    check("alibi_softmax", rows, slopes_of(), float("inf"), causal, None)
    scores = scores_of((4, 40), dtype)
    scores[1, 0, 2, 30] = nan_of_ones(dtype)
    check("alibi_softmax", scores, slopes_of(), 1.0, False, None)
    weights = CUDA.alibi_softmax(scores, slopes_of(), 1.0, False, None)
    assert weights[1, 0, 2].isnan().all()


@both_masks
@each_dtype
def test_in_place(dtype, causal):
    for lengths in ((7, 32), (7, 33)):
        scores = scores_of(lengths, dtype)
        right = CPU.add_alibi(scores, slopes_of(), causal)
        version = scores._version
        CUDA.add_alibi_(scores, slopes_of(), causal)
        assert scores._version > version
        assert_bits(scores, right)


@each_dtype
def test_bytes_moved_are_the_fewest(dtype):
    """Inputs once and outputs once; what a causal mask hides is not read."""
    scores, slopes = scores_of((64, 128), dtype, heads=4), slopes_of(4)
    small = 64 * 1024  # slopes, once for each group of rows; sums of tiles

    def moved(op, *arguments):
        CUDA.traffic()
        getattr(CUDA, op)(*arguments)
        return CUDA.traffic()

    def check_traffic(traffic, read, written):
        assert read <= traffic[0] <= read + small
        assert written <= traffic[1] <= written + small

    whole = scores.nbytes
    assert whole > 100 * 1024
    check_traffic(moved("alibi_bias", slopes, 64, 128, False, dtype, None), 0, whole // 2)
    check_traffic(moved("add_alibi", scores, slopes, False), whole, whole)
    check_traffic(moved("alibi_softmax", scores, slopes, 1.0, False, None), whole, whole)
    check_traffic(moved("alibi_softmax_grad", scores, scores, 1.0, False), 2 * whole, whole)
    check_traffic(moved("alibi_slope_grad", scores, slopes, False, None), whole, 0)
    check_traffic(moved("alibi_softmax_slope_grad", scores, scores, slopes, False), 2 * whole, 0)
    hidden = 64 * 63 // 2 * 8 * scores.element_size()  # of 8 heads
    groups = 16 * max(1, scores.element_size() // 4)
    beside = groups * 256 * 4 + 64 * 8 * 16  # a slope for each thread, and packs seen in part
    for op, *arguments in (("add_alibi", slopes, True), ("alibi_softmax", slopes, 1.0, True, None)):
        read, written = moved(op, scores, *arguments)
        assert whole - hidden <= read <= whole - hidden + beside < whole
        assert written == whole
