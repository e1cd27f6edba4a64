"""Sinusoidal encodings of diffusion timesteps and of image patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arguments import error, integer, number
from ..types import FirstAxis
from .rope_options import check_flags
from .sinusoidal_options import CONVENTIONS, Convention, base_of, dim_of, positions_of, table_of


def timestep_embedding(
    timesteps: float | Tensor,
    dim: int,
    *,
    flip_sin_to_cos: bool = False,
    downscale_freq_shift: float = 1.0,
    scale: float = 1.0,
    max_period: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """The sinusoidal embedding of diffusion timesteps, with the options of diffusers'
    ``get_timestep_embedding``.

    >>> import torch, posenc_ext
    >>> posenc_ext.timestep_embedding(torch.tensor([0.0, 999.5]), 4)
    tensor([[0.0000, 0.0000, 1.0000, 1.0000],
            [0.4560, 0.0998, 0.8900, 0.9950]])

    ``[sin | cos]`` of ``scale * t * max_period ** (-i / (D//2 - downscale_freq_shift))``; an odd D
    ends in a zero column. Exact as :func:`sinusoidal_table`.

    Args:
        timesteps: a number, which is one timestep, or an integer or floating tensor ``[...]``.
        dim: D, the width of a row.
        flip_sin_to_cos: ``[cos | sin]`` instead. With a shift of 0, this is the convention
            "diffusion" of :func:`sinusoidal_table`.
        downscale_freq_shift: less than D//2, unless that is 1: a single frequency is always 1.
        scale: multiplies the timesteps, in float64.
        max_period: the base of the frequencies.
        dtype, device: as for :func:`sinusoidal_table`.

    Returns:
        The embedding, contiguous ``[..., D]`` of `dtype`; ``[D]`` for a number.

    Differentiable in floating timesteps, to any order, forward and backward. Exact sines take up to
    twice the time of torch's float32 ones.
    """
    op = "timestep_embedding"
    dim = dim_of(op, dim)
    shift = number(op, "downscale_freq_shift", downscale_freq_shift)
    if dim >= 4 and shift >= dim // 2:
        raise error(
            ValueError, op, f"downscale_freq_shift must be less than D//2 = {dim // 2}, got {shift}"
        )
    check_flags(op, flip_sin_to_cos=flip_sin_to_cos)
    how = Convention(cos_first=bool(flip_sin_to_cos), shift=shift)
    scale, base = number(op, "scale", scale), base_of(op, "max_period", max_period)
    if not isinstance(timesteps, Tensor):  # 7 is timestep 7, not seven of them
        number(op, "timesteps", timesteps)
        whole = isinstance(timesteps, int)
        kind = torch.int64 if whole else torch.float64
        timesteps = torch.tensor(timesteps, dtype=kind, device=device)
    timesteps = positions_of(op, "timesteps", timesteps, device)
    if scale != 1:
        timesteps = timesteps.double() * scale
    return table_of(op, timesteps, dim, base, how, dtype)


def sinusoidal_table_2d(
    height: int | Tensor,
    width: int | Tensor,
    dim: int,
    *,
    first: FirstAxis = "width",
    base: float = 10000.0,
    extra_tokens: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """The 2-D sin-cos encoding of image patches (MAE, MoCo v3, DiT).

    >>> import posenc_ext
    >>> posenc_ext.sinusoidal_table_2d(2, 2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0000, 1.0000],
            [0.0000, 1.0000, 0.8415, 0.5403],
            [0.8415, 0.5403, 0.8415, 0.5403]])

    Half of the columns encode the coordinate of a patch along one axis, half along the other, each
    as :func:`sinusoidal_table` with the convention "concatenated".

    Args:
        height, width: the number of patches, or their coordinates, a tensor ``[H]`` or ``[W]``:
            diffusers scales them, ``torch.arange(H) / (H / base_size) / interpolation_scale``.
        dim: D, a multiple of 4.
        first: "width" puts the column of a patch in the first half, as MAE, DiT and diffusers do
            (their variable says h); "height" its row, as RT-DETR does.
        base: as for :func:`sinusoidal_table`.
        extra_tokens: rows of zeros before the patches, for a class token.
        dtype, device: as for :func:`sinusoidal_table`.

    Returns:
        The table ``[extra_tokens + H*W, D]`` of `dtype`, patches row by row.
    """
    op = "sinusoidal_table_2d"
    dim, base = dim_of(op, dim), base_of(op, "base", base)
    if dim % 4:
        raise error(ValueError, op, f"dim must be a multiple of 4, got {dim}")
    if first not in ("width", "height"):
        raise error(ValueError, op, f"first must be 'width' or 'height', got {first!r}")
    extra = integer(op, "extra_tokens", extra_tokens)
    if extra < 0:
        raise error(ValueError, op, f"extra_tokens must not be negative, got {extra}")
    halves = []
    for name, size in (("height", height), ("width", width)):
        axis = positions_of(op, name, size, device)
        if axis.dim() != 1:
            raise error(ValueError, op, f"{name} must be an int or 1-D, got {list(axis.shape)}")
        halves.append(table_of(op, axis, dim // 2, base, CONVENTIONS["concatenated"], dtype))
    rows, columns = halves[0].shape[0], halves[1].shape[0]
    y = halves[0].unsqueeze(1).expand(rows, columns, dim // 2)
    x = halves[1].unsqueeze(0).expand(rows, columns, dim // 2)
    result = torch.cat((x, y) if first == "width" else (y, x), -1).flatten(0, 1)
    return F.pad(result, (0, 0, extra, 0)) if extra else result
