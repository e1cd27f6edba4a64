"""Which table row a token reads on the device, the asserts there, and the gradient of the table."""

import pytest
import torch
from guarded import guarded
from rope_cases import VIEWS, assert_bits, shape, table, uniform
from source_calls import both_pairings, check, each_dtype, each_pairing, source

ROWS = {
    "offset": {"offset": 59},
    "offset_0d": {"offsets": torch.tensor(7)},
    "offset_per_batch": {"offsets": torch.tensor([3, 59])},
    "offset_int32_strided": {"offsets": torch.tensor([9, 1, 0, 1], dtype=torch.int32)[::2]},
    "positions": {"positions": torch.tensor([3, 1, 4, 1, 63])},
    "positions_int32": {"positions": torch.tensor([0, 1, 2, 0, 1], dtype=torch.int32)},
    "positions_per_batch": {"positions": torch.tensor([[0, 1, 2, 3, 4], [1, 1, 0, 1, 2]])},
    "positions_one_row": {"positions": torch.tensor([[5, 6, 7, 8, 9]])},
    "positions_strided": {"positions": torch.arange(20).view(5, 4)[:, ::2].t()},
    "positions_expanded": {"positions": torch.tensor([8, 7, 6, 5, 4]).expand(2, 5)},
}
BOUNDS = ([0, 9], [0, 3, 4, 4, 9], [0, 0, 9, 9], list(range(10)), [0, 1] + [1] * 600 + [9])


def packed(bounds, dtype=torch.int64, offset=None):
    offsets = {"scalar": torch.tensor(5), "each": torch.arange(len(bounds) - 1) % 7}.get(offset)
    cu_seqlens = torch.tensor(bounds, dtype=dtype)
    return {"layout": "thd", "cu_seqlens": cu_seqlens, "offsets": offsets}


@both_pairings
@pytest.mark.parametrize("rows", ROWS)
def test_rows(rows, interleaved):
    x, tables = uniform(shape("bshd")), table(16)
    check("rope", x, *tables, interleaved=interleaved, **ROWS[rows])
    check("apply_rope", x, x[:, :, :1], *tables, interleaved=interleaved, **ROWS[rows])
    check("rope_table_grad", x.cos(), x, *tables, interleaved=interleaved, **ROWS[rows])


@pytest.mark.parametrize("offset", [None, "scalar", "each"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=len)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_cu_seqlens(bounds, offset, dtype):
    x, options = uniform(shape("thd", s=9)), packed(bounds, dtype, offset)
    check("rope", x, *table(16), **options)
    check("rope_table_grad", x.cos(), x, *table(16), **options)
    options["cu_seqlens"] = options["cu_seqlens"].repeat_interleave(2)[::2]
    check("rope", x, *table(16), **options)


@pytest.mark.parametrize("sequences", [1, 2, 300, 1200])
def test_many_sequences_cost_no_more_than_a_search(sequences):
    """A thread reads log2 of the sequences in cu_seqlens; the grid does not grow with them."""
    x, tables = uniform((1200, 2, 32)), table(16, length=1200)
    cu_seqlens = torch.linspace(0, 1200, sequences + 1).long()
    torch.ops.posenc_cuda_source.traffic()
    source("rope", x, *tables, layout="thd", cu_seqlens=cu_seqlens)
    read, written = torch.ops.posenc_cuda_source.traffic()
    assert written == x.nbytes
    boundaries = 2 * 8 * sequences  # checked once
    search = 4 * 1200 * 8 * (sequences.bit_length() + 1)  # by the four threads of a token
    assert 0 <= read - x.nbytes - 1200 * 2 * tables[0][0].nbytes <= boundaries + search


@each_pairing
@each_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_table_grad_views_and_dtypes(view, dtype, pairing):
    x, grad = uniform(shape("bshd"), dtype), uniform(shape("bshd"), dtype, seed=1)
    for layout, inverse in (("bshd", False), ("bhsd", True)):
        tables = table(15, dtype if inverse else torch.float32)
        options = {"layout": layout, **pairing, "inverse": inverse}
        check("rope_table_grad", VIEWS[view](grad), x, *tables, **options)
        check("rope_table_grad", grad, VIEWS[view](x), *tables, **options)


@pytest.mark.parametrize("batch", [1, 2])
def test_table_grad_of_per_token_tables(batch):
    x, tables = uniform(shape("bshd")), [uniform((batch, 5, 16), seed=i) for i in (1, 2)]
    check("rope_table_grad", x.cos(), x, *tables)


def test_table_grad_of_many_rows_tokens_and_heads():
    for size, length in (((1, 70_000, 1, 4), 70_000), ((3, 5, 300, 4), 64), ((1, 4, 2, 4), 70_000)):
        x = uniform(size)
        check("rope_table_grad", x.cos(), x, *table(2, length=length))
    x = uniform((2, 2000, 2, 4))
    positions = torch.randint(0, 3, (2, 2000), generator=torch.Generator().manual_seed(0))
    check("rope_table_grad", x.cos(), x, *table(2), positions=positions)


@pytest.mark.parametrize("size", [(0, 5, 4, 8), (2, 0, 4, 8), (2, 5, 0, 8), (2, 5, 4, 0)], ids=str)
def test_table_grad_of_empty_tensors(size):
    x = uniform(size)
    check("rope_table_grad", x, x, *table(size[-1] // 2))
    check("rope_table_grad", x, x, *table(size[-1] // 2), positions=torch.zeros(size[1], dtype=int))


BAD = {
    "negative": {"positions": torch.tensor([0, 1, -1, 3, 4])},
    "past_the_end": {"positions": torch.tensor([0, 1, 2, 3, 64])},
    "2**31": {"positions": torch.tensor([2**31, 1, 2, 3, 4])},
    "2**40": {"positions": torch.tensor([0, 2**40, 2, 3, 4])},
    "-2**63": {"positions": torch.tensor([0, -(2**63), 2, 3, 4])},
    "int32": {"positions": torch.tensor([0, -1, 2, 3, 4], dtype=torch.int32)},
    "offset_negative": {"offsets": torch.tensor([0, -1])},
    "offset_past_the_end": {"offsets": torch.tensor([0, 60])},
    "offset_huge": {"offsets": torch.tensor([2**63 - 1, 0])},
    "offset_lowest": {"offsets": torch.tensor([-(2**63), 0])},
    "offset_0d": {"offsets": torch.tensor(60, dtype=torch.int32)},
    "cu_start": packed([1, 5]),
    "cu_end": packed([0, 3]),
    "cu_beyond": packed([0, 9]),
    "cu_falls": packed([0, 4, 2, 5]),
    "cu_negative": packed([0, -3, 5]),
    "cu_huge": packed([0, 2**62, 5]),
    "cu_offset": packed([0, 5]) | {"offsets": torch.tensor([60])},
}


@pytest.mark.parametrize("op", ["rope", "rope_table_grad"])
@pytest.mark.parametrize("bad", BAD)
def test_rows_outside_the_table_fail_an_assert_and_are_never_read(bad, op):
    x = uniform(shape("thd" if bad.startswith("cu") else "bshd"))
    for at_end in (True, False):
        tensors = (x,) if op == "rope" else (guarded(x, at_end), guarded(x, at_end))
        call = [*tensors, *(guarded(t, at_end) for t in table(16))]
        options = {
            k: guarded(v, at_end) if torch.is_tensor(v) and v.dim() else v
            for k, v in BAD[bad].items()
        }
        with pytest.raises(RuntimeError, match="device assert: "):
            source(op, *call, **options)
        torch.ops.posenc_cuda_source.stop_at_asserts(False)
        try:
            source(op, *call, **options)
        finally:
            torch.ops.posenc_cuda_source.stop_at_asserts(True)


def test_what_the_host_can_tell_is_an_exception():
    x = uniform(shape("thd"))
    with pytest.raises(ValueError, match=r"posenc_ext.rope: cu_seqlens must end with T = 5"):
        source("rope", x, *table(16), **packed([0]))
    with pytest.raises(IndexError, match=r"posenc_ext.rope: cos must have a row .*, got L = 0"):
        source("rope", x, *table(16, length=0), layout="thd", positions=torch.zeros(5, dtype=int))
    with pytest.raises(IndexError, match=r"posenc_ext.rope: cos must have a row for each"):
        source("rope", x, *table(16), layout="thd", offset=60)


def test_a_table_that_needs_64_bits_of_gradient_stays_exact():
    x = torch.tensor([1e8, 1.0, -1e8, 1.0]).view(1, 1, 2, 2)
    dcos, _ = check("rope_table_grad", torch.ones_like(x), x, *table(1))
    assert_bits(dcos[:1], torch.tensor([[2.0]]))
