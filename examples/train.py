"""Train a ByteModel on the standard library's source, and measure it in bits per byte."""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from data import even_windows, random_batch
from model import ByteModel
from positions import NoPositions
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """Sizes of the model and of its training run."""

    steps: int = 500
    seed: int = 0
    width: int = 128
    heads: int = 4
    layers: int = 3
    length: int = 256  # bytes the model sees at once
    batch: int = 8
    learning_rate: float = 4e-3
    held_out_windows: int = 256

    def model(self, position: Callable[[int, int, int], NoPositions]) -> ByteModel:
        """Return the model that this seed gives: the same weights for every `position`, but for
        those of the encoding itself."""
        torch.manual_seed(self.seed)
        return ByteModel(
            position, width=self.width, heads=self.heads, layers=self.layers, length=self.length
        )


@dataclass(frozen=True)
class Result:
    """What one training run gave."""

    model: ByteModel
    seconds: float
    step_seconds: float  # median


class Progress:
    """One line on stderr that rewrites itself; a plain line every tenth when not on a terminal."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.start = name, total, time.perf_counter()
        self.tenths = 0

    def show(self, done: int, note: str) -> None:
        elapsed = time.perf_counter() - self.start
        left = elapsed / done * (self.total - done)
        text = (
            f"{self.name:<10} {done:>4}/{self.total}  {note}  {elapsed:4.0f} s, {left:3.0f} s left"
        )
        if sys.stderr.isatty():
            bar = "#" * (24 * done // self.total)
            end = "\n" if done == self.total else ""
            print(f"\r[{bar:<24}] {text}", end=end, file=sys.stderr, flush=True)
        elif done * 10 // self.total > self.tenths:
            self.tenths = done * 10 // self.total
            print(text, file=sys.stderr, flush=True)


def train(
    name: str, position: Callable[[int, int, int], NoPositions], settings: Settings, text: Tensor
) -> Result:
    """Train on `text` (uint8 [N]).

    The batches depend on the seed alone, so models with different `position` see the same bytes in
    the same order. Raises FloatingPointError when a loss is not finite.
    """
    model = settings.model(position)
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, settings.steps)
    )
    progress = Progress(name, settings.steps)
    durations = []
    for step in range(1, settings.steps + 1):
        start = time.perf_counter()
        loss = model.loss(random_batch(text, settings.batch, settings.length, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bits = loss.item() / math.log(2)
        if not math.isfinite(bits):
            raise FloatingPointError(f"the loss is {bits} at step {step} with {name}")
        durations.append(time.perf_counter() - start)
        progress.show(step, f"{bits:5.2f} bits/byte")
    return Result(model, sum(durations), statistics.median(durations))


def learning_rate_factor(step: int, steps: int) -> float:
    """Rise over the first tenth of the run, then fall to a twentieth along a cosine."""
    warm_up = (step + 1) / max(1.0, 0.1 * steps)
    return min(warm_up, 0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))


@torch.no_grad()
def held_out_bits(model: ByteModel, held_out: Tensor, settings: Settings) -> float:
    """Mean bits per byte over windows spread evenly over the held-out text."""
    windows = even_windows(held_out, settings.held_out_windows, settings.length)
    losses = [model.loss(part).item() * len(part) for part in windows.split(settings.batch)]
    return sum(losses) / len(windows) / math.log(2)
