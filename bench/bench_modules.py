"""Modules as models call them at every step, against the lines of torch that they replace."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import posenc_ext

from .common import Row, Settings, at_most, check_close, time_in_turns

LAYERS = 8


@torch.no_grad()
def sinusoidal(settings: Settings) -> Iterator[Row]:
    """Beside ``x + table[o : o + S]``, whose table has the dtype of x."""
    shapes = [(1, 1, 512), (1, 128, 512), (8, 128, 512), (8, 512, 768)]
    for shape in shapes[:1] if settings.quick else shapes:
        for dtype in (torch.float32, torch.bfloat16):
            x, (_, length, dim) = torch.randn(shape).to(dtype), shape
            table = posenc_ext.sinusoidal_table(4096, dim, dtype=dtype)
            module = posenc_ext.SinusoidalPositionalEncoding(dim).eval()

            def plain(x: Tensor = x, table: Tensor = table, length: int = length) -> Tensor:
                return x + table[7 : 7 + length]

            def ours(x: Tensor = x, module: torch.nn.Module = module) -> Tensor:
                return module(x, offset=7)

            def function(x: Tensor = x) -> Tensor:
                return posenc_ext.add_sinusoidal(x, offset=7)

            check_close("SinusoidalPositionalEncoding", ours(), plain().double(), 1e-2)
            calls = {"module": ours, "function": function, "torch": plain}
            times = time_in_turns(calls, settings)
            name = f"{shape}, {str(dtype).removeprefix('torch.')}"
            for kind in ("module", "function"):
                yield at_most(f"sinusoids, {kind} {name}", times[kind], times["torch"],
                              "x + table[o : o + S]", 1.1)  # fmt: skip


def ragged_decode(settings: Settings) -> Iterator[Row]:
    """Eight layers that share a module and an offset per entry, beside one look-up for all."""
    for batch in (1, 8):
        yield ragged_step(batch, settings)


@torch.no_grad()
def ragged_step(batch: int, settings: Settings) -> Row:
    q, k = torch.randn(batch, 1, 32, 128), torch.randn(batch, 1, 8, 128)
    rotary = posenc_ext.RotaryPositionalEmbedding(128)
    rotary.reserve(4096)
    steps = [torch.randint(0, 4000, (batch,)) for _ in range(2)]  # by turns

    def once() -> Tensor:
        steps.reverse()
        cos, sin = rotary.table(steps[0][:, None])
        for _ in range(LAYERS):
            y = posenc_ext.apply_rope(q, k, cos, sin)[0]
        return y

    def ours() -> Tensor:
        steps.reverse()
        for _ in range(LAYERS):
            y = rotary(q, k, offset=steps[0])[0]
        return y

    right = once().double()
    steps.reverse()
    check_close("RotaryPositionalEmbedding", ours(), right, 1e-6)
    times = time_in_turns({"ours": ours, "once": once}, settings)
    name, limit = f"ragged decode, B = {batch}, {LAYERS} layers", "rotary.table once, apply_rope"
    return at_most(name, times["ours"], times["once"], limit, 1.1)


@torch.no_grad()
def lines(settings: Settings) -> Iterator[Row]:
    """Timesteps, learned positions and ALiBi, beside a few lines of torch."""
    steps = torch.randint(0, 1000, (16,))

    def eager_steps() -> Tensor:
        power = torch.arange(160, dtype=torch.float32) / 159
        angle = steps[:, None].float() * torch.exp(-math.log(10000.0) * power)
        return torch.cat([angle.sin(), angle.cos()], -1)

    def our_steps() -> Tensor:
        return posenc_ext.timestep_embedding(steps, 320)

    check_close("timestep_embedding", our_steps(), eager_steps().double(), 1e-3)
    times = time_in_turns({"ours": our_steps, "torch": eager_steps}, settings)
    yield at_most("timestep_embedding, 16 x 320", times["ours"], times["torch"], "torch", 1.1)

    learned = posenc_ext.LearnedPositionalEncoding(512, 1024).eval()
    x, at = torch.randn(1, 1, 512), torch.tensor([[7]])

    def eager_learned() -> Tensor:
        return x + F.embedding(at, learned.weight)

    def our_learned() -> Tensor:
        return learned(x, positions=at)

    check_close("LearnedPositionalEncoding", our_learned(), eager_learned().double(), 1e-6)
    times = time_in_turns({"ours": our_learned, "torch": eager_learned}, settings)
    yield at_most("learned positions, decode", times["ours"], times["torch"], "x + emb(p)", 1.1)

    for keys in (100, 1000):
        attention = posenc_ext.ALiBiAttention(512, 8).eval()
        past = (torch.randn(1, 8, keys - 1, 64), torch.randn(1, 8, keys - 1, 64))
        bias = posenc_ext.alibi_row_bias(attention.slopes, keys)

        def eager(attention=attention, past=past, bias=bias) -> Tensor:  # type: ignore[no-untyped-def]
            q, k, v = attention.qkv(x).unflatten(-1, (3, 8, 64)).permute(2, 0, 3, 1, 4)
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return attention.out(y.transpose(1, 2).flatten(2))

        def ours(attention=attention, past=past) -> Tensor:  # type: ignore[no-untyped-def]
            return attention(x, past=past, use_cache=True)[0]

        check_close("ALiBiAttention", ours(), eager().double(), 1e-4)
        times = time_in_turns({"ours": ours, "torch": eager}, settings)
        name = f"ALiBiAttention, decode, K = {keys}"
        yield at_most(name, times["ours"], times["torch"], "SDPA with a kept bias", 1.1)
