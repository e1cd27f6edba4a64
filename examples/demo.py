"""Train the same small language model with RoPE and without positions, and compare them.

    python examples/demo.py [--steps N] [--seed N] [--json FILE] [--quick]

The exit status is 0 when RoPE gives the better model and matches the eager rotation, else 1.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time

# Threads that wait asleep, not spinning: on a machine with other jobs this is several times faster.
# OpenMP reads it once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from data import even_windows, load_source
from model import ByteModel
from positions import EagerRoPE, NoPositions, RoPE, rotate_eager
from torch import Tensor
from train import Settings, held_out_bits, train

import posenc_ext

QUICK = Settings(steps=100, layers=2, length=128, held_out_windows=64)  # about ten seconds


def compare_with_eager(trained: ByteModel, settings: Settings, windows: Tensor) -> dict[str, float]:
    """Run one check batch through the trained model and through its eager twin."""
    eager = settings.model(EagerRoPE)
    eager.load_state_dict(trained.state_dict())
    losses, grads = [], []
    for model in (trained, eager):
        loss = model.loss(windows)
        losses.append(loss.item())
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    scale = max(grad.abs().max().item() for grad in grads[1])
    gap = max((ours - theirs).abs().max().item() for ours, theirs in zip(*grads, strict=True))
    return {"loss": abs(losses[0] - losses[1]) / losses[1], "gradient": gap / scale}


def time_rotation(settings: Settings, repeats: int = 60) -> dict[str, float]:
    """Median seconds to rotate one step's q and k, forward and backward, in every layer.

    The two contestants take turns on the shapes and strides of the model's own q and k.
    """
    head_dim = settings.width // settings.heads
    qkv = torch.randn(settings.batch, settings.length, 3, settings.heads, head_dim)
    q, k = (t.requires_grad_() for t in qkv.unbind(dim=2)[:2])
    grads = (torch.randn_like(q), torch.randn_like(k))
    cos, sin = posenc_ext.RotaryPositionalEmbedding(head_dim).table(settings.length)
    contestants = {
        "posenc_ext": lambda: posenc_ext.apply_rope(q, k, cos, sin, layout="bshd"),
        "eager": lambda: (rotate_eager(q, cos, sin), rotate_eager(k, cos, sin)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, rotate in contestants.items():
            start = time.perf_counter()
            torch.autograd.grad(rotate(), (q, k), grads)
            seconds[name].append(time.perf_counter() - start)
    return {name: settings.layers * statistics.median(all_) for name, all_ in seconds.items()}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="RoPE against no positions, on real text")
    parser.add_argument("--steps", type=int, help="training steps of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    parser.add_argument("--quick", action="store_true", help="a smaller model, in ten seconds")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    settings = QUICK if arguments.quick else Settings()
    settings = dataclasses.replace(
        settings, seed=arguments.seed, steps=arguments.steps or settings.steps
    )
    isa, threads = posenc_ext._C.cpu_capability(), torch.get_num_threads()
    print(
        f"posenc_ext {posenc_ext.__version__}, torch {torch.__version__}, {isa}, {threads} threads"
    )
    text, held_out = load_source()
    print(
        f"text: {len(text) / 1e6:.1f} MB of the Python standard library's source, "
        f"and {len(held_out) / 1e6:.1f} MB held out"
    )

    kinds = {"rope": RoPE, "none": NoPositions}
    results = {name: train(name, kind, settings, text) for name, kind in kinds.items()}
    rope, none = results["rope"], results["none"]
    bits = {name: held_out_bits(r.model, held_out, settings) for name, r in results.items()}
    size = sum(p.numel() for p in rope.model.parameters())
    difference = compare_with_eager(
        rope.model, settings, even_windows(held_out, settings.batch, settings.length)
    )
    rotation = time_rotation(settings)
    # The step was timed with this library's rotation; its eager twin differs in the rotation only.
    steps = {
        "posenc_ext": rope.step_seconds,
        "eager": rope.step_seconds - rotation["posenc_ext"] + rotation["eager"],
    }

    print(f"\nheld-out bits per byte after {settings.steps} steps ({size / 1e6:.1f} M weights)")
    print(f"  with posenc_ext RoPE   {bits['rope']:.3f}   ({rope.seconds:.0f} s)")
    print(f"  without positions      {bits['none']:.3f}   ({none.seconds:.0f} s)")
    print("\nrotation of q and k, forward and backward, in one training step")
    for name, seconds in rotation.items():
        share = seconds / steps[name]
        print(f"  {name:<12} {seconds * 1e3:6.2f} ms of {steps[name] * 1e3:5.1f} ms = {share:.1%}")
    print("  (rotations timed alone, in turns, on the step's q and k; medians)")
    print(
        "\nagainst the eager rotation on a check batch, relative difference: "
        f"loss {difference['loss']:.1e}, gradients {difference['gradient']:.1e}"
    )

    if arguments.json:
        figures = {
            "settings": dataclasses.asdict(settings),
            "isa": isa,
            "threads": threads,
            "bits_per_byte": bits,
            "train_seconds": {name: result.seconds for name, result in results.items()},
            "step_seconds": steps,
            "rotation_seconds": rotation,
            "difference_from_eager": difference,
        }
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)

    failures = []
    if not bits["rope"] < bits["none"]:
        failures.append("RoPE gave no better model than no positions")
    if not (difference["loss"] <= 1e-6 and difference["gradient"] <= 1e-5):
        failures.append("posenc_ext and the eager rotation differ by more than rounding")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
