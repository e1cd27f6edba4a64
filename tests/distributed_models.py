"""Parallel models beside the same model in one process: more of `distributed_checks.CHECKS`."""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from distributed_checks import CHECKS, mesh, on
from dtensor_cases import random
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import posenc_ext

__all__ = ["CHECKS"]  # all of them

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
from model import ByteModel
from positions import ALiBi, RoPE, Sinusoidal


class Attention(nn.Module):
    """With projections of their own for q, k and v, as tensor parallelism wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, n, bias=False) for n in (32, 16, 16))
        self.out = nn.Linear(32, 16, bias=False)
        self.rotary = posenc_ext.RotaryPositionalEmbedding(8)

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).unflatten(-1, (-1, 8)) for layer in (self.q, self.k, self.v))
        q, k = self.rotary(q, k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        scores = posenc_ext.add_alibi(q @ k.mT / 8**0.5, torch.linspace(0.1, 0.4, 4), causal=True)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@on(2)
def tensor_parallel() -> None:
    """Heads over ranks: the collectives of the projections, and no other."""
    results, counts = [], []
    for parallel in (False, True):
        torch.manual_seed(0)
        layer, x = Attention(), random(2, 6, 16).requires_grad_()
        if parallel:
            column = ColwiseParallel(use_local_output=False)
            plan = dict.fromkeys("qkv", column) | {"out": RowwiseParallel()}
            layer = parallelize_module(layer, mesh(), plan)
        with CommDebugMode() as comm:
            y = layer(x)
            y.pow(2).sum().backward()
        counts.append(comm.get_total_counts())
        grads = [p.grad for p in layer.parameters()]
        results.append([y, x.grad, *(g.full_tensor() if parallel else g for g in grads)])
    # What is summed: the output, and the gradient of x from each of q, k and v.
    assert counts == [0, 4], counts
    for want, given in zip(*results, strict=True):
        torch.testing.assert_close(given, want, rtol=1e-5, atol=1e-5)


@on(2)
def torch_context_parallel_holds_these_tokens() -> None:
    tokens = torch.arange(16).reshape(1, 16)
    shards = tokens.clone()
    with context_parallel(mesh(), buffers=[shards], buffer_seq_dims=[1]):
        own = posenc_ext.context_parallel_positions(16, dist.get_rank(), 2, mode="zigzag")
        assert torch.equal(shards[0], own), (shards, own)


def train(model: nn.Module, shares: list[torch.Tensor], loss: Callable[[Any], Any]) -> None:
    """Two steps of SGD on the mean loss of these shares of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        for share in shares:
            (loss(share) / len(shares)).backward()
        optimizer.step()


def byte_model(position: Any) -> ByteModel:
    torch.manual_seed(0)
    return ByteModel(position, width=32, heads=2, layers=2, length=16)


def train_alone(position: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Weights after training on the shares of both ranks in one process; the share of this rank."""
    generator = torch.Generator().manual_seed(1)
    shares = list(torch.randint(256, (2, 2, 17), generator=generator))
    model = byte_model(position)
    train(model, shares, model.loss)
    return model.state_dict(), shares[dist.get_rank()]


def mean_loss(model: nn.Module) -> Callable[[Any], Any]:
    return lambda w: F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten())


@on(2)
def data_parallel() -> None:
    """Bit for bit: a sum of two is the same in any order, and halves are exact."""
    for position in (RoPE, Sinusoidal, ALiBi):
        wanted, share = train_alone(position)
        model = DistributedDataParallel(byte_model(position))
        train(model, [share], mean_loss(model))
        for name, value in model.module.state_dict().items():
            assert torch.equal(value, wanted[name]), (position, name)


@on(2)
def fully_sharded() -> None:
    for position in (RoPE, Sinusoidal, ALiBi):
        wanted, share = train_alone(position)
        model = byte_model(position)
        for block in model.blocks:
            fully_shard(block, mesh=mesh())
        fully_shard(model, mesh=mesh())
        train(model, [share], mean_loss(model))
        for name, value in model.state_dict().items():
            assert isinstance(value, DTensor)
            assert torch.equal(value.full_tensor(), wanted[name]), (position, name)
