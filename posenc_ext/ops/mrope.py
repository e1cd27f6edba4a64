"""Multi-axis rotary position embedding (M-RoPE): which axis turns which frequency, position ids.

Sources: Qwen2-VL, https://arxiv.org/abs/2409.12191, section 2.1; Qwen3-VL,
https://arxiv.org/abs/2511.21631; ERNIE 4.5 technical report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from ..arguments import error, integer, number
from ..kept import constant, of_integers
from ..types import AxisOrder

ORDERS = get_args(AxisOrder)
# On what mrope_axes returns: the number of axes, one without a frequency among them.
COUNT = "_posenc_axis_count"


def mrope_axes(sections: Sequence[int], order: AxisOrder = "chunked") -> Tensor:
    """The axis whose position turns each frequency: the `sections` of :func:`rope_table`.

    >>> import posenc_ext
    >>> posenc_ext.mrope_axes([2, 3, 3])
    tensor([0, 0, 1, 1, 1, 2, 2, 2])
    >>> posenc_ext.mrope_axes([4, 2, 2], "interleaved")
    tensor([0, 1, 2, 0, 1, 2, 0, 0])

    Args:
        sections: how many frequencies each axis turns, in the order of the rows of the positions;
            their sum is R/2. For models with time, height and width: ``[t, h, w]``.
        order: "chunked", one axis after the other (Qwen2-VL, Qwen2.5-VL, GLM-4V); "interleaved",
            axis a at a, a + n, a + 2n .. for n axes, as often as its section says, and the first
            axis everywhere else (Qwen3-VL); "ernie", whose sections are ``[h, w, t]`` (ERNIE 4.5
            VL): height and width by turns, then time, for rows of positions in the order t, h, w.

    Returns:
        int64 ``[R/2]``.

    Raises:
        TypeError, ValueError: sections that are not ints or do not fit the order.
    """
    axes = torch.tensor(_axes(sections, order), dtype=torch.int64, device="cpu")
    setattr(axes, COUNT, len(sections))
    return axes


def _axes(sections: Sequence[int], order: AxisOrder) -> list[int]:
    op = "mrope_axes"
    if isinstance(sections, str) or not isinstance(sections, Sequence):
        got = type(sections).__name__
        raise error(TypeError, op, f"sections must be a list of sizes, got {got}")
    sizes = [integer(op, "sections", size) for size in sections]
    if order not in ORDERS:
        raise error(ValueError, op, f"order must be one of {list(ORDERS)}, got {order!r}")
    if not sizes or min(sizes) < 0:
        raise error(ValueError, op, f"sections must be sizes that are not negative, got {sizes}")
    if order == "chunked":
        return [axis for axis, size in enumerate(sizes) for _ in range(size)]
    if order == "interleaved":
        axes = [0] * sum(sizes)
        for axis, size in enumerate(sizes[1:], 1):
            where = range(axis, len(sizes) * size, len(sizes))
            if size and where[-1] >= len(axes):
                raise error(
                    ValueError,
                    op,
                    f"sections must leave room to interleave axis {axis}, got {sizes}",
                )
            for i in where:
                axes[i] = axis
        return axes
    if len(sizes) != 3 or sizes[0] != sizes[1]:
        raise error(
            ValueError, op, f"sections must be [h, w, t] with h = w for 'ernie', got {sizes}"
        )
    return [1, 2] * sizes[0] + [0] * sizes[2]


class Axes(NamedTuple):
    """The axis of each frequency, and how many axes there are."""

    of: list[int]
    number: int


def section_axes(op: str, sections: Any, n: int) -> Axes:
    if isinstance(sections, Tensor):
        if sections.dim() != 1 or sections.dtype not in (torch.int32, torch.int64):
            raise error(
                ValueError,
                op,
                "sections must be sizes, or an int tensor [R/2] of axes, got "
                f"{sections.dtype} {list(sections.shape)}",
            )
        of = sections.tolist()
        axes = Axes(of, getattr(sections, COUNT, max(of, default=0) + 1))
    elif isinstance(sections, Sequence) and not isinstance(sections, str):
        axes = Axes(_axes(sections, "chunked"), len(sections))
    else:
        raise error(
            TypeError,
            op,
            f"sections must be a list of sizes or a tensor, got {type(sections).__name__}",
        )
    if len(axes.of) != n:
        raise error(
            ValueError, op, f"sections must cover R/2 = {n} frequencies, got {len(axes.of)}"
        )
    if min(axes.of, default=0) < 0:
        raise error(ValueError, op, f"sections must name axes from 0 on, got {min(axes.of)}")
    return axes


def check_axes(op: str, axes: Axes, positions: Any) -> None:
    if not isinstance(positions, Tensor) or positions.shape[:1] != (axes.number,):
        got = list(positions.shape) if isinstance(positions, Tensor) else positions
        raise error(
            ValueError,
            op,
            f"positions must be a tensor [{axes.number}, ...], a row for each axis of sections, "
            f"got {got}",
        )


def by_axes(
    build: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    positions: Tensor,
    inv_freq: Tensor,
    axes: Axes,
) -> tuple[Tensor, Tensor]:
    """`build` of each axis with its frequencies, put together: [axes, ...] -> [..., R/2].

    Each value is what `build` gives for its position and frequency, so that equal rows of positions
    give the bits of one axis.
    """
    if not axes.of:
        return build(positions[0], inv_freq)
    order = sorted(range(len(axes.of)), key=axes.of.__getitem__)  # those of one axis side by side
    mixed = order != sorted(order)
    if mixed:
        inv_freq = inv_freq.index_select(0, constant(of_integers, inv_freq.device, *order))
    sizes = [axes.of.count(axis) for axis in range(axes.number)]
    parts = [
        build(positions[axis], group)
        for axis, group in enumerate(inv_freq.split(sizes))
        if sizes[axis]
    ]
    cos, sin = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    if not mixed:
        return cos, sin
    place = constant(of_integers, cos.device, *sorted(range(len(order)), key=order.__getitem__))
    return cos.index_select(-1, place), sin.index_select(-1, place)


def mrope_position_ids(
    segments: Sequence[int | Sequence[int]],
    *,
    spatial_merge_size: int = 1,
    time_interval: float = 1.0,
    device: torch.device | str | None = None,
) -> tuple[Tensor, int]:
    """Time, height and width positions of a sequence of text and vision tokens.

    >>> import posenc_ext
    >>> ids, delta = posenc_ext.mrope_position_ids([3, (1, 4, 6), 2], spatial_merge_size=2)
    >>> ids
    tensor([[0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7],
            [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7],
            [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]])
    >>> delta
    -3

    Text counts on in all three rows. The tokens of a grid, row by row, take the position of its
    frame, row and column, counted from where the text stopped; the text after it goes on at
    ``max(height, width) / spatial_merge_size`` further.

    Args:
        segments: in the order of the sequence, an int for a run of text of that many tokens, or
            ``(t, h, w)`` for an image or video in patches. For Qwen3-VL give each frame of a video
            as a grid of its own, ``(1, h, w)``.
        spatial_merge_size: patches per token, in height and in width; it divides both. 2 for
            Qwen-VL models.
        time_interval: positions per frame, rounded down for each frame: 1 for Qwen2-VL,
            ``tokens_per_second * seconds_per_grid`` for Qwen2.5-VL.
        device: where to put the ids, which are built on the host: a copy to a GPU waits for it, and
            no CUDA graph can capture it.

    Returns:
        int64 ``[3, S]``, and what to add to the index of each token that is decoded later:
        ``ids.max() + 1 - S``.

    Raises:
        TypeError, ValueError: a segment that is neither, a grid that the merge does not divide.
    """
    op = "mrope_position_ids"
    merge = integer(op, "spatial_merge_size", spatial_merge_size)
    interval = number(op, "time_interval", time_interval)
    if merge <= 0 or interval < 0:
        name, value = ("spatial_merge_size", merge) if merge <= 0 else ("time_interval", interval)
        raise error(ValueError, op, f"{name} must be positive, got {value}")
    if isinstance(segments, (str, bytes, Tensor)) or not isinstance(segments, Iterable):
        raise error(TypeError, op, f"segments must be a list, got {type(segments).__name__}")
    rows: list[tuple[int, int, int]] = []
    start = 0
    for segment in segments:
        if not isinstance(segment, Sequence):
            length = integer(op, "segments", segment)
            if length < 0:
                raise error(ValueError, op, f"segments must not be negative, got {length}")
            rows += [(start + i,) * 3 for i in range(length)]
            start += length
            continue
        grid = [integer(op, "segments", size) for size in segment]
        if len(grid) != 3 or min(grid) < 0 or grid[1] % merge or grid[2] % merge:
            raise error(
                ValueError,
                op,
                f"segments must be ints or (t, h, w) with h and w divided by {merge}, got {grid}",
            )
        t, h, w = grid[0], grid[1] // merge, grid[2] // merge
        times = [start + math.floor(i * interval) for i in range(t)]
        rows += [(i, start + j, start + k) for i in times for j in range(h) for k in range(w)]
        start += max(h, w)
    ids = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, 3).T.contiguous()
    return ids, max(map(max, rows)) + 1 - len(rows) if rows else 0
