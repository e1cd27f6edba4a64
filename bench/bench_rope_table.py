"""`rope_table` against filling the same bytes, and against the table that eager models build."""

from collections.abc import Iterator

import numpy
import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, WrongResult, at_most, faster, time_in_turns

DIM = 128


def rope_table(settings: Settings) -> Iterator[Row]:
    """131072 positions, 64 frequencies. All contestants allocate, so new pages are in all times."""
    length = 4096 if settings.quick else 131072
    inv_freq = posenc_ext.rope_frequencies(DIM).inv_freq  # float64 [64]

    def ours() -> tuple[Tensor, Tensor]:
        return posenc_ext.rope_table(length, inv_freq)

    def eager() -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(length, dtype=torch.float32), inv_freq.float())
        return angles.cos(), angles.sin()

    def fill() -> tuple[Tensor, Tensor]:
        return torch.full((length, DIM // 2), 0.5), torch.full((length, DIM // 2), 0.5)

    our_error, eager_error = largest_error(ours(), inv_freq), largest_error(eager(), inv_freq)
    if not our_error < 2**-24:  # half an ulp below 1
        raise WrongResult(f"rope_table is off by {our_error:.2e}")

    times = time_in_turns({"ours": ours, "fill": fill, "eager": eager}, settings)
    name = f"rope_table({length}, {DIM}), all allocate"
    moved = 2 * length * DIM // 2 * 4  # written only
    yield at_most(name, times["ours"], times["fill"], "torch.full", 1.3, bytes=moved)
    yield faster(name, times["ours"], times["eager"], "eager float32", 1.5, bytes=moved)
    yield faster(
        f"rope_table({length}, {DIM}), largest error", our_error, eager_error, "eager float32",
        1e5, unit="off",
    )  # fmt: skip


def largest_error(table: tuple[Tensor, Tensor], inv_freq: Tensor) -> float:
    """Largest absolute error of (cos, sin) [L, n] in about 2000 rows, the last ones included.

    The truth is taken in long double from the float64 frequencies: at L = 131072 its own angle is
    off by under 1e-11 even where long double is plain double.
    """
    length = len(table[0])
    rows = torch.cat((torch.arange(0, length, length // 1024), torch.arange(length - 1024, length)))
    angle = rows.numpy().astype(numpy.longdouble)[:, None] * inv_freq.numpy()
    return max(
        float(numpy.abs(got[rows].numpy() - exact).max())
        for got, exact in zip(table, (numpy.cos(angle), numpy.sin(angle)), strict=True)
    )
