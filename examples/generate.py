"""Generate text with a preallocated cache: python examples/generate.py [--quick]

Trains a small byte-level model on the source of the Python standard library, then continues a
prompt greedily in three ways, which must give the same bytes:

    again    the whole text goes through the model for every new byte
    cat      a cache of keys and values that torch.cat makes anew for every byte
    KVCache  posenc_ext.KVCache: apply_rope_cache rotates and writes in one call

and prints how many tokens a second each gives. Shapes: B batch, S sequence, H heads, K heads of
keys and values, D channels of one head, C = H * D.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from data import even_windows, load_source, random_batch
from torch import Tensor, nn

import posenc_ext
from posenc_ext import KVCache

HEADS, KEY_HEADS, DIM, LAYERS = 8, 2, 32, 3
WIDTH = HEADS * DIM
LONGEST = 4096


class Attention(nn.Module):
    """Causal attention with rotary positions, and with keys of earlier calls in `past`."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * DIM, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], past: Any) -> tuple[Tensor, Any]:
        """[B, S, C] to the same; `past` is None, a pair [B, K, S', D] of tensors, or a KVCache."""
        heads = self.qkv(x).unflatten(-1, (-1, DIM))
        q, k, v = heads.split([HEADS, KEY_HEADS, KEY_HEADS], 2)  # [B, S, H or K, D]
        if isinstance(past, KVCache):
            q = past.apply_rope(q, k, v, *tables)
            k, v = past.keys, past.values
        else:
            start = 0 if past is None else past[0].shape[2]
            q, k = posenc_ext.apply_rope(q, k, *tables, offset=start)
            k, v = k.transpose(1, 2), v.transpose(1, 2)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            past = (k, v)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, is_causal=x.shape[1] > 1, enable_gqa=True
        )
        return self.out(y.transpose(1, 2).flatten(2)), past


class Block(nn.Module):
    """Attention and a two-layer MLP, each behind a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], past: Any) -> tuple[Tensor, Any]:
        y, past = self.attention(self.norm1(x), tables, past)
        x = x + y
        return x + self.mlp(self.norm2(x)), past


class Model(nn.Module):
    """Predicts the next byte."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        frequencies = posenc_ext.rope_frequencies(DIM)
        cos, sin = posenc_ext.rope_table(LONGEST, frequencies.inv_freq)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, past: list[Any]) -> tuple[Tensor, list[Any]]:
        """Logits [B, S, 256] for tokens int64 [B, S], and what is past for the next call."""
        x, then = self.embed(tokens), []
        for block, before in zip(self.blocks, past, strict=True):
            x, after = block(x, (self.cos, self.sin), before)
            then.append(after)
        return F.linear(self.norm(x), self.embed.weight), then


def train(model: Model, text: Tensor, steps: int, length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=max(steps, 2))
    for step in range(steps):
        windows = random_batch(text, 8, length, generator)
        logits, _ = model(windows[:, :-1], [None] * LAYERS)
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(steps // 10, 1) == 0:
            print(f"step {step + 1}/{steps}: loss {loss.item():.3f}", file=sys.stderr, flush=True)


def again(model: Model, prompt: Tensor, count: int) -> Tensor:
    """`prompt` [B, S] and `count` more bytes, by the whole text every time."""
    tokens = prompt
    for _ in range(count):
        logits, _ = model(tokens, [None] * LAYERS)
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    return tokens


def with_past(model: Model, prompt: Tensor, count: int, past: list[Any]) -> Tensor:
    """The same with keys and values kept: the prompt once, then a byte at a time."""
    tokens, new = [prompt], prompt
    for _ in range(count):
        logits, past = model(new, past)
        new = logits[:, -1:].argmax(-1)
        tokens.append(new)
    return torch.cat(tokens, 1)


def caches(prompt: Tensor, count: int) -> list[KVCache]:
    batch, length = prompt.shape
    return [KVCache(batch, length + count, KEY_HEADS, DIM) for _ in range(LAYERS)]


Way = Callable[[Model, Tensor, int], Tensor]
WAYS: dict[str, Way] = {
    "again": again,
    "cat": lambda model, prompt, count: with_past(model, prompt, count, [None] * LAYERS),
    "KVCache": lambda model, prompt, count: with_past(model, prompt, count, caches(prompt, count)),
}


def compare(model: Model, prompt: Tensor, count: int, rounds: int) -> Tensor:
    """The bytes of all ways, which must be the same, and the speed of each."""
    texts: dict[str, Tensor] = {}
    seconds = dict.fromkeys(WAYS, float("inf"))
    for turn in range(rounds):
        for name, way in WAYS.items():
            if name == "again" and turn:
                continue  # once is enough of it
            start = time.perf_counter()
            texts[name] = way(model, prompt, count)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    batch, length = prompt.shape
    print(f"\n{batch} prompts of {length} bytes, {count} more each:")
    for name, text in texts.items():
        if not torch.equal(text, texts["again"]):
            sys.exit(f"{name} gives other bytes than going through the whole text again")
        speed, factor = batch * count / seconds[name], seconds["cat"] / seconds[name]
        print(f"  {name:<8} {speed:8.0f} tokens/s, {factor:5.2f} times cat, the same bytes")
    return texts["KVCache"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate text with a preallocated cache.")
    parser.add_argument("--quick", action="store_true", help="seconds, too small to learn")
    parser.add_argument("--steps", type=int, help="of training; default 400, with --quick 2")
    options = parser.parse_args()
    quick = options.quick
    steps = options.steps if options.steps is not None else (2 if quick else 400)
    torch.manual_seed(0)
    model = Model()
    text, held_out = load_source()
    train(model, text, steps, 32 if quick else 256)
    with torch.no_grad():
        short = even_windows(held_out, 1, 15 if quick else 127)
        written = compare(model, short, 8 if quick else 128, 1 if quick else 3)
        long = even_windows(held_out, 2 if quick else 4, 31 if quick else 1023)
        compare(model, long, 4 if quick else 32, 1 if quick else 3)
    shown = bytes(written[0].tolist()).decode(errors="replace")
    print(f"\nThe prompt and what follows:\n\n{shown}")


if __name__ == "__main__":
    main()
