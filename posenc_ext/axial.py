"""Rotary position embedding (RoPE) over a grid of patches, as vision models do it.

Half of the frequencies turn with one coordinate of a patch, half with the other:

    variant    axes   frequencies, i < D/4       coordinates             pairs        base
    qwen2_vl   h, w   base ** (-4i / D)          index                   half         10000
    pixtral    h, w   base ** (-2j / D), j even  index                   half         10000
                      for h, j odd for w
    llama4     w, h   base ** (-4i / D)          index + 1               interleaved  10000
    sam2       w, h   base ** (-4i / D)          index                   interleaved  10000
    eva02      h, w   base ** (-4i / D)          index * trained / size  interleaved  10000
    dinov3     h, w   base ** (-4i / D)          2 pi, from -1 to 1      half         100
    pixel      h, w   pi * linspace(1, base/2)   linspace(-1, 1)         interleaved  10

"pairs" is the `interleaved` of the result, to pass on to :func:`apply_rope`. "qwen2_vl" is also
Qwen2.5-VL, Qwen3-VL and GLM-4V. Llama 4 has a class token after the patches: ``after=1``. In
"pixel" (rotary-embedding-torch) `base` is its ``max_freq``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import LARGEST, at_least, check_precision, error, integer, number
from .kept import constant
from .ops.rope_frequencies import rope_frequencies
from .ops.rope_table import rope_table
from .types import AxialNormalize, AxialVariant, Precision


class AxialTable(NamedTuple):
    """The table of a grid, and which channels it rotates together.

    >>> import posenc_ext
    >>> cos, sin, interleaved = posenc_ext.axial_rope_table(2, 3, 8, "llama4")
    >>> interleaved
    True
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool


class _Variant(NamedTuple):
    base: float
    width_first: bool = False
    interleaved: bool = False


VARIANTS: dict[AxialVariant, _Variant] = {
    "qwen2_vl": _Variant(10000.0),
    "pixtral": _Variant(10000.0),
    "llama4": _Variant(10000.0, width_first=True, interleaved=True),
    "sam2": _Variant(10000.0, width_first=True, interleaved=True),
    "eva02": _Variant(10000.0, interleaved=True),
    "dinov3": _Variant(100.0),
    "pixel": _Variant(10.0, interleaved=True),
}


def axial_rope_table(
    height: int,
    width: int,
    dim: int,
    variant: AxialVariant = "qwen2_vl",
    *,
    base: float | None = None,
    merge_size: int = 1,
    trained_size: int = 16,
    normalize: AxialNormalize = "separate",
    before: int = 0,
    after: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    precision: Precision = "exact",
) -> AxialTable:
    """cos and sin for each patch of a grid.

    >>> import torch, posenc_ext
    >>> table = posenc_ext.axial_rope_table(24, 32, 80, "qwen2_vl", merge_size=2)
    >>> q, k = torch.randn(2, 24 * 32, 16, 80).unbind(0)
    >>> q, k = posenc_ext.apply_rope(
    ...     q, k, table.cos, table.sin, interleaved=table.interleaved, layout="shd"
    ... )

    Args:
        height, width: of the grid, in patches.
        dim: D, the head dimension; a multiple of 4. All of it rotates.
        variant: a row of the table in :mod:`posenc_ext.axial`.
        base: in the place of the variant's.
        merge_size, trained_size, normalize: as for :func:`axial_positions`.
        before, after: rows for tokens before and after the patches that do not rotate: class and
            register tokens.
        dtype, device, precision: as for :func:`rope_table`.

    Returns:
        ``AxialTable(cos, sin, interleaved)``: ``[before + height*width + after, D/2]`` each, and
        how the variant pairs channels, for :func:`apply_rope`.

    Raises:
        TypeError, ValueError: a wrong type, an unknown variant, a size that does not fit.
    """
    op = "axial_rope_table"
    rows = [at_least(op, name, n, 0, LARGEST) for name, n in (("before", before), ("after", after))]
    positions = axial_positions(
        height, width, variant, merge_size=merge_size, trained_size=trained_size,
        normalize=normalize, device=device,
    )  # fmt: skip
    checked = _check_frequencies("axial_frequencies", dim, variant, base, precision)
    inv_freq = constant(_frequencies, positions.device, *checked)
    sections = [dim // 4, dim // 4]
    cos, sin = rope_table(positions, inv_freq, sections=sections, dtype=dtype, precision=precision)
    if any(rows):
        cos, sin = F.pad(cos, (0, 0, *rows), value=1.0), F.pad(sin, (0, 0, *rows))
    return AxialTable(cos, sin, VARIANTS[variant].interleaved)


def axial_frequencies(
    dim: int,
    variant: AxialVariant = "qwen2_vl",
    *,
    base: float | None = None,
    precision: Precision = "exact",
) -> Tensor:
    """``[D/2]``: D/4 frequencies of the first axis, then D/4 of the second; float64 or float32.

    >>> import posenc_ext
    >>> posenc_ext.axial_frequencies(8)
    tensor([1.0000, 0.0100, 1.0000, 0.0100], dtype=torch.float64)

    Arguments and errors are those of :func:`axial_rope_table`. Use them with
    :func:`axial_positions` in ``rope_table(positions, inv_freq, sections=[D/4, D/4])``, for example
    to train them or to move the positions at random.
    """
    checked = _check_frequencies("axial_frequencies", dim, variant, base, precision)
    return _frequencies(torch.device("cpu"), *checked)


def _check_frequencies(
    op: str, dim: int, variant: AxialVariant, base: float | None, precision: Precision
) -> tuple[int, AxialVariant, float, Precision]:
    rule = _variant(op, variant)
    check_precision(op, precision)
    dim = integer(op, "dim", dim)
    if dim <= 0 or dim % 4:
        raise error(ValueError, op, f"dim must be a positive multiple of 4, got {dim}")
    base = rule.base if base is None else number(op, "base", base)
    if base <= 0:
        raise error(ValueError, op, f"base must be positive, got {base}")
    return dim, variant, base, precision


def _frequencies(
    device: torch.device, dim: int, variant: AxialVariant, base: float, precision: Precision
) -> Tensor:
    if variant == "pixtral":
        both = rope_frequencies(dim, base, precision=precision).inv_freq
        return torch.cat([both[0::2], both[1::2]]).to(device)
    if variant == "pixel":
        dtype = torch.float64 if precision == "exact" else torch.float32
        one = torch.linspace(1.0, base / 2, dim // 4, dtype=dtype, device="cpu") * math.pi
    else:
        one = rope_frequencies(dim // 2, base, precision=precision).inv_freq
    return torch.cat([one, one]).to(device)


def axial_positions(
    height: int,
    width: int,
    variant: AxialVariant = "qwen2_vl",
    *,
    merge_size: int = 1,
    trained_size: int = 16,
    normalize: AxialNormalize = "separate",
    device: torch.device | str | None = None,
) -> Tensor:
    """``[2, height*width]``: the coordinates of each patch, row after row of the grid.

    >>> import posenc_ext
    >>> posenc_ext.axial_positions(2, 3)
    tensor([[0, 0, 0, 1, 1, 1],
            [0, 1, 2, 0, 1, 2]])

    Args:
        height, width: of the grid, in patches.
        variant: a row of the table in :mod:`posenc_ext.axial`. It also says which coordinate
            comes first.
        merge_size: patches in square blocks of this side, block after block, as Qwen-VL orders
            them for merging (2 there).
        trained_size: for "eva02", the side of the grid in pre-training, to which the coordinates
            are scaled.
        normalize: for "dinov3", divide coordinates by the sizes of their axes ("separate"), or
            both by the larger ("max") or the smaller size ("min").
        device: where to build them.

    Returns:
        int64, or float64 for the variants that scale.

    Raises:
        TypeError, ValueError: as :func:`axial_rope_table`.
    """
    op = "axial_positions"
    rule = _variant(op, variant)
    height, width = integer(op, "height", height), integer(op, "width", width)
    merge = integer(op, "merge_size", merge_size)
    if merge <= 0 or min(height, width) < 0 or height % merge or width % merge:
        raise error(
            ValueError, op, f"merge_size must divide the grid {[height, width]}, got {merge}"
        )
    if not torch.compiler.is_compiling() and height * width >= 2**40:
        raise error(
            ValueError, op, f"height * width must be less than {2**40}, got {height} * {width}"
        )
    trained = number(op, "trained_size", trained_size)
    if normalize not in ("separate", "max", "min"):
        raise error(
            ValueError, op, f"normalize must be 'separate', 'max' or 'min', got {normalize!r}"
        )

    def coordinates(size: int) -> Tensor:
        index = torch.arange(size, device=device)
        if variant == "llama4":
            return index + 1
        if variant == "eva02":
            return index.double() * trained / size
        if variant == "dinov3":
            by = {"separate": size, "max": max(height, width), "min": min(height, width)}[normalize]
            return 2 * math.pi * (2 * (index.double() + 0.5) / by - 1)
        if variant == "pixel":
            return torch.linspace(-1, 1, size, dtype=torch.float64, device=device)
        return index

    rows = coordinates(height)[:, None].expand(height, width)
    columns = coordinates(width).expand(height, width)
    grid = torch.stack([columns, rows] if rule.width_first else [rows, columns])
    blocks = grid.unflatten(2, (width // merge, merge)).unflatten(1, (height // merge, merge))
    return blocks.transpose(2, 3).reshape(2, -1)


def _variant(op: str, variant: AxialVariant) -> _Variant:
    if variant not in list(VARIANTS):
        raise error(ValueError, op, f"variant must be one of {list(VARIANTS)}, got {variant!r}")
    return VARIANTS[variant]
