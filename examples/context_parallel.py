"""One causal attention layer with its sequence split over ranks, beside the same in one process.

    torchrun --standalone --nproc-per-node 2 examples/context_parallel.py

Each rank holds one piece near the start of the sequence and one near its end (zigzag), which gives
all of them the same work under a causal mask. Keys and values have to be gathered; positions have
not: every rank rotates its own tokens by their own positions. Prints both results' distance, and
every collective that ran. Fails if the results differ.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import posenc_ext

BATCH, LENGTH, HEADS, DIM = 2, 256, 4, 32
WIDTH = HEADS * DIM


def attend(x: Tensor, weights: list[Tensor], positions: Tensor, whole: Tensor) -> Tensor:
    """Attention on x [B, S, C]; `positions` [S] are those of its tokens.

    `whole` are the positions of the keys, on every rank.
    """
    cos, sin = posenc_ext.rope_table(LENGTH, posenc_ext.rope_frequencies(DIM).inv_freq)
    q, k, v = ((x @ w).unflatten(-1, (HEADS, DIM)) for w in weights[:3])  # [B, S, H, D]
    q, k = posenc_ext.apply_rope(q, k, cos, sin, positions=positions)
    q, k, v = (t.transpose(1, 2) for t in (q, gathered(k), gathered(v)))
    hidden = positions.unsqueeze(-1) < whole
    scores = (q @ k.transpose(-2, -1) * DIM**-0.5).masked_fill(hidden, -float("inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ weights[3]


def gathered(t: Tensor) -> Tensor:
    """All tokens, on every rank."""
    return t.redistribute(placements=[Replicate()]) if hasattr(t, "redistribute") else t


def collectives(comm: CommDebugMode) -> str:
    counts = {str(op).split(".")[-1]: n for op, n in comm.get_comm_counts().items()}
    return ", ".join(f"{n} {op}" for op, n in counts.items()) or "none"


def main() -> None:
    if "RANK" not in os.environ:
        sys.exit(__doc__)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    weights = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(4)]
    target = torch.randn(BATCH, LENGTH, WIDTH)
    order = torch.cat(
        [posenc_ext.context_parallel_positions(LENGTH, r, size, mode="zigzag") for r in range(size)]
    )

    # In one process, in the natural order.
    inputs = [x.clone().requires_grad_(), *(w.clone().requires_grad_() for w in weights)]
    tokens = torch.arange(LENGTH)
    y = attend(inputs[0], inputs[1:], tokens, tokens)
    (y * target).sum().backward()
    wanted = [y.detach()[:, order], inputs[0].grad[:, order], *(w.grad for w in inputs[1:])]

    # On all ranks: tokens in zigzag order, each rank with its part of them.
    split, same = [Shard(1)], [Replicate()]
    x_part, target_part = (distribute_tensor(t[:, order], mesh, split) for t in (x, target))
    positions = distribute_tensor(order, mesh, [Shard(0)])
    whole = distribute_tensor(order, mesh, same)
    parts = [x_part, *(distribute_tensor(w, mesh, same) for w in weights)]
    parts = [t.requires_grad_() for t in parts]
    with CommDebugMode() as forward:
        y = attend(parts[0], parts[1:], positions, whole)
    with CommDebugMode() as backward:
        (y * target_part).sum().backward()
    given = [t.full_tensor() for t in (y.detach(), *(p.grad for p in parts))]
    pairs = list(zip(given, wanted, strict=True))
    distance = max((g - w).abs().max().item() for g, w in pairs)
    close = all(torch.allclose(g, w, rtol=1e-4, atol=1e-4) for g, w in pairs)

    # The rotation alone, of DTensors and of the plain tensors of this rank.
    cos, sin = posenc_ext.rope_table(LENGTH, posenc_ext.rope_frequencies(DIM).inv_freq)
    q = x.unflatten(-1, (HEADS, DIM))
    all_rotated = posenc_ext.rope(q, cos, sin)
    q_part = distribute_tensor(q[:, order], mesh, split).requires_grad_()
    with CommDebugMode() as rotation:
        rotated = posenc_ext.rope(q_part, cos, sin, positions=positions)
        rotated.backward(rotated.detach())
    mine = posenc_ext.context_parallel_positions(LENGTH, rank, size, mode="zigzag")
    plain = posenc_ext.rope(q[:, mine], cos, sin, positions=mine)
    same_bits = torch.equal(rotated.to_local(), all_rotated[:, mine])
    same_bits = same_bits and torch.equal(plain, all_rotated[:, mine])

    half = len(mine) // 2
    spans = f"{mine[0]} to {mine[half - 1]} and {mine[half]} to {mine[-1]}"
    lines: list[str | None] = [None] * size
    dist.all_gather_object(lines, f"rank {rank} holds tokens {spans}")
    passed = torch.tensor(int(close and same_bits))
    dist.all_reduce(passed, dist.ReduceOp.MIN)
    if rank == 0:
        print(*lines, sep="\n")
        print(f"output and gradients of the layer: within {distance:.1e} of one process")
        print(f"rotated queries: {'the bits' if same_bits else 'NOT the bits'} of one process")
        print(f"collectives of the layer, forward: {collectives(forward)}")
        print(f"collectives of the layer, backward: {collectives(backward)}")
        print(f"collectives of the rotation, forward and backward: {collectives(rotation)}")
    if not passed:
        print("context parallelism differs from one process", file=sys.stderr)
    dist.barrier()
    # Not through the destructors of gloo, which may abort while another rank is still closing.
    sys.stdout.flush()
    os._exit(0 if passed else 1)


if __name__ == "__main__":
    main()
