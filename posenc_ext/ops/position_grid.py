"""Learned positions of an image grid, for an image of another size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arguments import at_least, error, known
from .rope_options import check_flags, check_tensors


def resize_position_grid(
    weight: Tensor,
    size: tuple[int, int],
    *,
    grid: tuple[int, int] | None = None,
    prefix: int = 1,
    antialias: bool = False,
) -> Tensor:
    """The table of a vision transformer, resized to a grid of ``size = (height, width)`` patches.

    >>> import torch, posenc_ext
    >>> table = torch.randn(1 + 14 * 14, 64)  # the class token, then 14 x 14 patches
    >>> posenc_ext.resize_position_grid(table, (16, 20)).shape
    torch.Size([321, 64])

    Bicubic, with corners not aligned, as ViT and DeiT do it. Differentiable in `weight`.

    Args:
        weight: ``[..., prefix + h * w, D]``, patches row by row.
        size: the new height and width.
        grid: the present h and w; by default a square.
        prefix: rows in front that belong to no patch (class and distillation tokens); kept.
        antialias: smooth before shrinking, as DINOv2 does with some checkpoints.

    Returns:
        ``[..., prefix + height * width, D]`` of the dtype of `weight`; computed in float32 (float64
        for float64).

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, or rows that are no grid.
    """
    op = "resize_position_grid"
    check_tensors(op, weight=weight)
    check_flags(op, antialias=antialias)
    if not weight.is_floating_point():
        raise error(TypeError, op, f"weight must be a floating tensor, got {weight.dtype}")
    prefix = at_least(op, "prefix", prefix, 0)
    height, width = _pair(op, "size", size)
    if weight.dim() < 2 or weight.shape[-2] < prefix:
        text = f"weight must have shape [..., {prefix} + h * w, D], got {list(weight.shape)}"
        raise error(ValueError, op, text)
    rows = weight.shape[-2] - prefix
    side = math.isqrt(rows)
    h, w = (side, side) if grid is None else _pair(op, "grid", grid)
    if h * w != rows or rows == 0:
        text = f"grid must have as many cells as weight has rows after the prefix, {rows}, got "
        raise error(ValueError, op, text + f"{h} x {w}")
    if known(height, width) and (h, w) == (height, width):
        return weight  # as it is, where no graph for every size is being traced
    first, patches = weight.split([prefix, rows], -2)
    exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
    image = patches.to(exact).reshape(-1, h, w, weight.shape[-1]).movedim(-1, 1)
    image = F.interpolate(
        image, (height, width), mode="bicubic", align_corners=False, antialias=antialias
    )
    resized = image.flatten(2).mT.reshape(*weight.shape[:-2], height * width, -1)
    return torch.cat([first, resized.to(weight.dtype)], -2)


def _pair(op: str, name: str, value: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise error(TypeError, op, f"{name} must be two ints (height, width), got {value!r}")
    height, width = (at_least(op, name, side, 1) for side in value)
    return height, width
