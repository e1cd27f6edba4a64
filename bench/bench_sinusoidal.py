"""`add_sinusoidal` against `clone`, and `sinusoidal_table` against filling the same bytes."""

from collections.abc import Iterator

import numpy
import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, WrongResult, at_most, check_close, faster, time_in_turns

ROUNDING = {torch.float32: 1e-7, torch.bfloat16: 4e-3}  # of the largest value


def add_sinusoidal(settings: Settings) -> Iterator[Row]:
    """Into fresh memory, as `clone`; and against what models do, with a table at hand."""
    shape = (1, 128, 256) if settings.quick else (4, 2048, 4096)
    for dtype, rounding in ROUNDING.items():
        x = torch.randn(shape).to(dtype)
        table = posenc_ext.sinusoidal_table(shape[1], shape[2], dtype=torch.float64)
        kept = table.to(dtype)  # the buffer of an eager model
        scale = shape[2] ** 0.5

        def ours(x: Tensor = x, scale: float = scale) -> Tensor:
            return posenc_ext.add_sinusoidal(x, scale=scale)

        def eager(x: Tensor = x, scale: float = scale, kept: Tensor = kept) -> Tensor:
            return x * scale + kept

        check_close("add_sinusoidal", ours(), x.double() * scale + table, rounding)
        times = time_in_turns({"ours": ours, "clone": x.clone, "eager": eager}, settings)
        name = f"add_sinusoidal {shape}, {str(dtype).removeprefix('torch.')}"
        moved = 2 * x.nbytes
        yield at_most(name, times["ours"], times["clone"], "clone", 1.15, bytes=moved)
        yield faster(name, times["ours"], times["eager"], "eager, table kept", 1.5, bytes=moved)


def sinusoidal_table(settings: Settings) -> Iterator[Row]:
    """131072 positions, 128 columns. Both allocate, so new pages are in both times."""
    length, dim = 4096 if settings.quick else 131072, 128

    def ours() -> Tensor:
        return posenc_ext.sinusoidal_table(length, dim)

    def fill() -> Tensor:
        return torch.full((length, dim), 0.5)

    rows = torch.arange(length - 512, length).numpy().astype(numpy.longdouble)
    angle = rows[:, None] * 10000.0 ** (-numpy.arange(dim // 2) / (dim / 2))
    error = float(numpy.abs(ours()[-512:, ::2].numpy() - numpy.sin(angle)).max())
    if not error < 2**-24:  # half an ulp below 1
        raise WrongResult(f"sinusoidal_table is off by {error:.2e}")
    times = time_in_turns({"ours": ours, "fill": fill}, settings)
    name = f"sinusoidal_table({length}, {dim}), all allocate"
    yield at_most(name, times["ours"], times["fill"], "torch.full", 1.3, bytes=length * dim * 4)
