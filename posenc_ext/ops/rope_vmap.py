"""vmap of rope: one more batch axis V becomes part of B, so that there is one call, not V."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from .functions import per_batch, spread
from .rope_options import RopeOptions


class Folded(NamedTuple):
    """The arguments of one call, and what takes the batch axis out of a result again."""

    xs: list[Tensor]
    options: RopeOptions
    unfold: Callable[[Tensor], Tensor]
    axis: int  # of V after unfold


def fold(
    size: int, dims: Sequence[int | None], xs: tuple[Tensor, ...], given: tuple[Any, ...]
) -> Folded | None:
    """None if the options have no form for V tables or sequences in one call.

    `dims` are the batch axes of `xs` and then of the options; `size` is V.
    """
    options = RopeOptions(*given)
    x_dims = dims[: len(xs)]
    cos_dim, sin_dim, positions_dim, offsets_dim, cu_seqlens_dim = dims[len(xs) : len(xs) + 5]
    others = (cos_dim, sin_dim, positions_dim, offsets_dim, cu_seqlens_dim)
    layout = options.layout
    if any(x.dim() - (d is not None) != len(layout) for x, d in zip(xs, x_dims, strict=True)):
        return None  # the wrong rank, which a single call puts into words
    if options.cu_seqlens is not None:  # sequences cannot be batched, but heads are alike
        if layout != "thd" or any(d is not None for d in others):
            return None
        return _folded(size, x_dims, xs, options, axis=1, grow=False)

    axis, grow = layout.find("b"), "b" not in layout
    length_axis = max(layout.find("s"), layout.find("t"))
    shapes = [spread(x, d, size, 0).shape for x, d in zip(xs, x_dims, strict=True)]
    batch = 1 if grow else shapes[0][1 + axis]
    cos, sin, offset = options.cos, options.sin, options.offset
    if cos_dim is not None or sin_dim is not None:
        cos, sin = spread(cos, cos_dim, size, 0), spread(sin, sin_dim, size, 0)
        cos_dim = sin_dim = 0
        if cos.dim() == 3 and sin.dim() == 3:  # [V, L, R/2]: rows of V tables
            lengths = {shape[1 + length_axis] for shape in shapes}
            length = max(lengths)
            rows = options.positions is None and options.offsets is None
            if not (rows and len(lengths) == 1 and 0 <= offset <= cos.shape[1] - length):
                return None
            cos, sin = (t[:, offset : offset + length] for t in (cos, sin))
            offset = 0
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return _folded(
        size,
        x_dims,
        xs,
        options._replace(
            cos=per_batch(cos, cos_dim, 3, size, batch, broadcast=True),
            sin=per_batch(sin, sin_dim, 3, size, batch, broadcast=True),
            positions=per_batch(options.positions, positions_dim, 2, size, batch, broadcast=True),
            offsets=per_batch(options.offsets, offsets_dim, 1, size, batch),
            offset=offset,
            layout="b" + layout.replace("t", "s") if grow else layout,
        ),
        axis=max(axis, 0),
        grow=grow,
    )


def _folded(
    size: int,
    dims: Sequence[int | None],
    xs: tuple[Tensor, ...],
    options: RopeOptions,
    axis: int,
    grow: bool,
) -> Folded:
    """V becomes a new axis, or the outer part of this one."""
    wide = [spread(x, d, size, axis) for x, d in zip(xs, dims, strict=True)]
    if grow:
        return Folded(wide, options, lambda y: y, axis)
    flat = [x.flatten(axis, axis + 1) for x in wide]
    return Folded(flat, options, lambda y: y.unflatten(axis, (size, y.shape[axis] // size)), axis)
