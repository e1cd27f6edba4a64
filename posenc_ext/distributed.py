"""Models on several ranks: DTensor arguments, and the positions of a rank in context parallelism.

Nothing here imports torch.distributed before a DTensor turns up.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard, get_args

import torch
from torch import Tensor

from .arguments import error, integer
from .types import ContextMode

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from .ops.rope_options import RopeOptions

MODES = get_args(ContextMode)


def context_parallel_positions(
    seq_len: int,
    rank: int,
    world_size: int,
    *,
    mode: ContextMode = "contiguous",
    device: torch.device | str | None = None,
) -> Tensor:
    """The positions of the tokens that a rank holds when the sequence is split over ranks.

    >>> import posenc_ext
    >>> posenc_ext.context_parallel_positions(8, 1, 2)
    tensor([4, 5, 6, 7])
    >>> posenc_ext.context_parallel_positions(8, 1, 2, mode="zigzag")
    tensor([2, 3, 4, 5])
    >>> posenc_ext.context_parallel_positions(8, 1, 2, mode="striped")
    tensor([1, 3, 5, 7])

    With tokens ``x [B, S, ...]``, ``x[:, positions]`` is the part of the rank, and
    ``apply_rope(q, k, cos, sin, positions=positions)`` rotates it as the whole sequence would be.

    Args:
        seq_len: the length of the whole sequence: a multiple of `world_size`, for "zigzag" of
            ``2 * world_size``.
        rank, world_size: of the context parallel group.
        mode: which tokens a rank holds.

            - "contiguous": one piece, in order, as in plain ring attention.
            - "zigzag": of ``2 * world_size`` pieces the one at `rank` from the start and the one
              at `rank` from the end, so that a causal mask leaves every rank equal work. This is
              what torch's ``context_parallel`` (its load balancer), Megatron-LM and Llama 3 do.
            - "striped": every `world_size`-th token from `rank` on (Striped Attention,
              https://arxiv.org/abs/2311.09431).
        device: of the result.

    Returns:
        int64 ``[seq_len / world_size]``.

    Raises:
        TypeError: an argument that is not an int.
        ValueError: an unknown mode, a length that does not divide, a rank outside its group.
    """
    op = "context_parallel_positions"
    seq_len, rank = integer(op, "seq_len", seq_len), integer(op, "rank", rank)
    world_size = integer(op, "world_size", world_size)
    if mode not in MODES:
        raise error(ValueError, op, f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if world_size < 1:
        raise error(ValueError, op, f"world_size must be at least 1, got {world_size}")
    if not 0 <= rank < world_size:
        text = f"rank must be at least 0 and below world_size = {world_size}, got {rank}"
        raise error(ValueError, op, text)
    pieces = world_size * (2 if mode == "zigzag" else 1)
    if seq_len < 0 or seq_len % pieces:
        text = f"seq_len must be a multiple of {pieces} for mode {mode!r}, got {seq_len}"
        raise error(ValueError, op, text)
    if mode == "striped":
        return torch.arange(rank, seq_len, world_size, device=device)
    size = seq_len // pieces
    first = torch.arange(rank * size, (rank + 1) * size, device=device)
    if mode == "contiguous":
        return first
    return torch.cat([first, first + (pieces - 1 - 2 * rank) * size])


def register_sharding_rules() -> None:
    """Tell DTensor how to run ``torch.ops.posenc_ext.*``.

    The functions and modules of this package do so themselves when they meet a DTensor. Only code
    that hands DTensors to the ops directly must call this first.
    """
    from . import norm_sharding_rules, sharding_rules  # noqa: F401


def is_dtensor(x: Any) -> TypeGuard[DTensor]:
    """Also sees to it that the ops have their sharding rules."""
    if type(x) is Tensor or not isinstance(x, Tensor):
        return False
    module = sys.modules.get("torch.distributed.tensor")  # without it there is no DTensor
    if module is None or not isinstance(x, module.DTensor):
        return False
    register_sharding_rules()
    return True


def beside(x: Tensor, *tensors: Tensor | None) -> Any:
    """Tables, positions, slopes .. for x: beside a DTensor, a plain one is whole on every rank."""
    if not is_dtensor(x):
        return tensors
    from torch.distributed.tensor import DTensor, Replicate

    mesh = x.device_mesh
    whole = [Replicate()] * mesh.ndim
    return tuple(
        t
        if t is None or isinstance(t, DTensor)
        else DTensor.from_local(t, mesh, whole, run_check=False)
        for t in tensors
    )


def is_sharded(x: Tensor, axis: int) -> bool:
    """Is this axis of a DTensor split in any way?"""
    return is_dtensor(x) and any(getattr(p, "dim", None) == axis for p in x.placements)


def tril(x: Tensor, diagonal: int) -> Tensor:
    """``x.tril(diagonal)``, for which DTensor would gather all of x."""
    if not is_dtensor(x):
        return x.tril(diagonal)
    kept = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(diagonal)
    return torch.where(beside(x, kept)[0], x, 0.0)


def token_positions(x: DTensor, axis: int, starts: Tensor | None) -> Any:
    """``[1, S]`` or ``[B, S]``, sharded as axis S of x is: where the tokens of each shard stand.

    `starts` is added to the index of each token: one for all, ``[B]``, or ``[1, S]``.
    """
    from torch.distributed.tensor import Shard

    count: Any = torch.arange(x.shape[axis], device=x.device).unsqueeze(0)
    (count,) = beside(x, count)
    if starts is not None:
        (starts,) = beside(x, starts.unsqueeze(-1) if starts.dim() == 1 else starts)
    positions = count if starts is None else count + starts
    placements = [
        Shard(1) if isinstance(p, Shard) and p.dim == axis else mine
        for p, mine in zip(x.placements, positions.placements, strict=True)
    ]
    return positions.redistribute(placements=placements)


def varying(x: Tensor, offsets: Tensor | None, offset: int) -> tuple[Tensor | None, int]:
    """The offset as a tensor: DTensor decides anew for each int, and keeps what it decided."""
    if isinstance(offset, int) and offset == 0:
        return offsets, 0
    return torch.full((), offset, dtype=torch.int64, device=x.device), 0


def rope_options_beside(op: str, xs: tuple[Tensor, ...], options: RopeOptions) -> RopeOptions:
    """The options for DTensors `xs`: if their tokens are sharded, with explicit positions."""
    x, axis = xs[0], max(options.layout.find("s"), options.layout.find("t"))
    if not is_dtensor(x) or not is_dtensor(xs[-1]):
        raise error(TypeError, op, "q and k must both be DTensors or both plain, got one of each")
    offsets, offset = varying(x, options.offsets, options.offset)
    options = options._replace(offsets=offsets, offset=offset)
    tensors = beside(x, *options[:5])
    options = options._replace(**dict(zip(options._fields[:5], tensors, strict=True)))
    if options.positions is not None:
        # DTensor tells positions [S] from offsets [B], for which it decided before, by shape only.
        if options.positions.dim() == 1:
            options = options._replace(positions=options.positions.unsqueeze(0))
        return options
    per_token = options.cos.dim() == 3
    alike = all(axis < t.dim() and t.shape[axis] == x.shape[axis] for t in xs)
    if per_token or not alike or not any(is_sharded(t, axis) for t in xs):
        return options
    packed = options.cu_seqlens is not None
    starts = _packed_starts(x, axis, options) if packed else options.offsets
    positions = token_positions(x, axis, starts)
    return options._replace(positions=positions, offsets=None, cu_seqlens=None)


def _packed_starts(x: DTensor, axis: int, options: RopeOptions) -> Tensor:
    """``[1, T]``: what to add to the index of each token for its position in its sequence."""
    tensors: Any = options[:5]
    whole: list[Any] = [t if t is None else t.full_tensor() for t in tensors]
    cos, sin, _, offsets, bounds = whole
    size = x.shape[axis]
    # Rotating no heads checks all of them.
    nothing = torch.empty(size, 0, x.shape[-1], dtype=x.dtype, device=x.device)
    torch.ops.posenc_ext.rope(nothing, cos, sin, None, offsets, bounds, *options[5:])
    token = torch.arange(size, device=x.device)
    which = torch.searchsorted(bounds, token.to(bounds.dtype), right=True) - 1
    starts = 0 if offsets is None else offsets[which] if offsets.dim() else offsets
    result: Tensor = (starts - bounds[which]).unsqueeze(0)
    return result
