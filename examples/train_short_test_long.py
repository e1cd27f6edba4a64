"""Train one small language model with each encoding on short text, and test it on longer text.

    python examples/train_short_test_long.py [--out FOLDER] [--quick] [--resume] [--seed N]

Writes into FOLDER: figures.json after each encoding, table.md and plot.png at the end.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

# Threads that wait asleep, not spinning: on a machine with other jobs this is several times faster.
# OpenMP reads it once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from data import even_windows, load_source
from model import ByteModel
from positions import T5, ALiBi, Learned, NoPositions, RoPE, Shaw, Sinusoidal, XPos
from torch import Tensor
from train import Progress, Settings, train

from posenc_ext.scaling import NTK, Linear, YaRN

FULL = Settings(steps=600, layers=2, length=128, batch=16, learning_rate=2e-3, held_out_windows=128)
QUICK = Settings(steps=10, width=32, layers=1, length=16, batch=4, held_out_windows=4)
STRETCH = (1, 2, 4, 8)  # lengths of the test, in lengths of training
READ_AT_ONCE = 4  # of the longest windows, or as many bytes in shorter ones

TRAINED: dict[str, Callable[[int, int, int], NoPositions]] = {
    "none": NoPositions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "RoPE": RoPE,
    "RoPE, base 500000": partial(RoPE, base=500000.0),
    "xPos": XPos,
    "ALiBi": ALiBi,
    "Shaw": Shaw,
    "T5": T5,
}
# The RoPE model as trained, tested with the frequencies of a rule, by factor and trained length.
STRETCHED = {
    "RoPE + PI": lambda factor, length: Linear(factor),
    "RoPE + NTK": lambda factor, length: NTK(factor),
    "RoPE + YaRN": lambda factor, length: YaRN(factor, length),
}


@dataclasses.dataclass
class Figures:
    """Bits per byte of one encoding at each length of the test; None where it is refused."""

    all: list[float | None] = dataclasses.field(default_factory=list)
    end: list[float | None] = dataclasses.field(default_factory=list)  # of the longest windows
    by_position: list[float] = dataclasses.field(default_factory=list)  # in the longest windows
    refusal: str | None = None
    train_seconds: float | None = None


@torch.no_grad()
def measure(model: ByteModel, windows: Tensor, length: int, show: Callable[[], None]) -> Tensor:
    """Bits [N, M] of each byte but the first of `windows` [N, M + 1], read `length` at a time.

    Every length predicts the same bytes; what differs is how much text before them it sees.
    """
    count, width = windows.shape[0], windows.shape[1] - 1
    pieces = windows.unfold(1, length + 1, length).flatten(0, 1)  # neighbours share a byte
    bits = []
    for part in pieces.split(READ_AT_ONCE * width // length):
        bits.append(model.losses(part) / math.log(2))
        show()
    return torch.cat(bits).view(count, width)


def evaluate(
    name: str, model_for: Callable[[int], ByteModel], settings: Settings, held_out: Tensor
) -> Figures:
    """Test at every length, with the model that `model_for` gives for a stretch of 1, 2, ..."""
    windows = even_windows(held_out, settings.held_out_windows, STRETCH[-1] * settings.length)
    end = settings.length // 2
    figures, done = Figures(), 0
    progress = Progress(f"{name}: test", len(STRETCH) * -(-len(windows) // READ_AT_ONCE))
    for stretch in STRETCH:
        length = stretch * settings.length

        def show(length: int = length) -> None:
            nonlocal done
            done += 1
            progress.show(done, f"{length:>4} bytes at once")

        try:
            bits = measure(model_for(stretch), windows, length, show)
        except IndexError as refusal:  # of a table that ends
            figures.refusal = figures.refusal or str(refusal)
            figures.all.append(None)
            figures.end.append(None)
            continue
        figures.all.append(bits.mean().item())
        figures.end.append(bits[:, -end:].mean().item())
        if stretch == STRETCH[-1]:
            figures.by_position = bits.unflatten(1, (-1, end)).mean((0, 2)).tolist()
    return figures


def stretched(rule: str, trained: ByteModel, settings: Settings, stretch: int) -> ByteModel:
    """The trained RoPE model with the frequencies of a rule, which are no weights."""
    scaling = STRETCHED[rule](float(stretch), settings.length)
    model = settings.model(partial(RoPE, scaling=scaling))
    model.load_state_dict(trained.state_dict())
    return model


def compare(
    settings: Settings, text: Tensor, held_out: Tensor, known: dict[str, Figures]
) -> Iterator[dict[str, Figures]]:
    """Yield the figures of each encoding that `known` lacks, as they come."""
    for name, position in TRAINED.items():
        rules = [rule for rule in STRETCHED if name == "RoPE"]
        if known.keys() >= {name, *rules}:
            continue
        result = train(name, position, settings, text)
        model = result.model
        models = {name: lambda stretch, model=model: model}
        models |= {rule: partial(stretched, rule, model, settings) for rule in rules}
        gained = {name: evaluate(name, of, settings, held_out) for name, of in models.items()}
        gained[name].train_seconds = result.seconds
        yield gained


def in_order(figures: dict[str, Figures]) -> dict[str, Figures]:
    order = [*TRAINED]
    at = order.index("RoPE") + 1
    order[at:at] = STRETCHED
    return {name: figures[name] for name in order if name in figures}


def table(figures: dict[str, Figures], settings: Settings) -> str:
    """Markdown: bits per byte over all bytes, then over the last ones of the longest windows."""
    lengths = [stretch * settings.length for stretch in STRETCH]
    width = max(map(len, figures))

    def rows(title: str, part: str) -> Iterator[str]:
        yield f"| {title:<{width}} | " + " | ".join(f"{n:>5}" for n in lengths) + " |"
        yield f"|{'-' * (width + 2)}|" + "------:|" * len(lengths)
        for name, one in figures.items():
            shown = ["-" if bits is None else f"{bits:.3f}" for bits in getattr(one, part)]
            yield f"| {name:<{width}} | " + " | ".join(f"{bits:>5}" for bits in shown) + " |"

    lines = [*rows("all bytes", "all"), ""]
    lines += rows(f"last {settings.length // 2} of {lengths[-1]}", "end")
    for name, one in figures.items():
        if one.refusal:
            lines += ["", f"{name}: no figure where its table ends. {one.refusal}"]
    return "\n".join(lines) + "\n"


def plot(figures: dict[str, Figures], settings: Settings, path: Path) -> None:
    from matplotlib.figure import Figure

    lengths = [stretch * settings.length for stretch in STRETCH]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for i, (name, one) in enumerate(figures.items()):
        style = {"color": f"C{i % 10}", "linestyle": ("-", "--")[i // 10], "marker": "."}
        values = [math.nan if bits is None else bits for bits in one.all]
        left.plot(lengths, values, label=name, **style)
        step = settings.length / 2
        where = [step * (i + 0.5) for i in range(len(one.by_position))]
        right.plot(where, one.by_position, **style)
    left.set_xscale("log", base=2)
    left.set_xticks(lengths, [str(n) for n in lengths])
    left.set(xlabel="bytes read at once", ylabel="bits per byte", title="all bytes")
    right.axvline(settings.length, color="0.6", linewidth=0.8, zorder=0)
    right.set(xlabel="position in the window", title=f"{lengths[-1]} bytes read at once")
    low = min(bits for one in figures.values() for bits in one.all if bits is not None)
    left.set_ylim(low - 0.1, low + 2.5)  # what is worse leaves the picture
    figure.legend(loc="outside right center")
    figure.savefig(path, dpi=80)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="train on short text, test on longer text")
    parser.add_argument("--out", type=Path, help="a folder for what is written")
    parser.add_argument("--quick", action="store_true", help="a tiny model, in seconds")
    parser.add_argument(
        "--resume", action="store_true", help="keep what the figures.json of a stopped run holds"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="training steps of each model")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    if arguments.out is None:
        arguments.out = Path("build/train_short_test_long" + "_quick" * arguments.quick)
    return arguments


def main() -> int:
    arguments = parse_arguments()
    settings = QUICK if arguments.quick else FULL
    settings = dataclasses.replace(
        settings, seed=arguments.seed, steps=arguments.steps or settings.steps
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    store = arguments.out / "figures.json"
    figures: dict[str, Figures] = {}
    if arguments.resume and store.exists():
        saved = json.loads(store.read_text(encoding="utf-8"))
        if saved["settings"] != dataclasses.asdict(settings):
            print(f"{store} is of other settings: resume with those", file=sys.stderr)
            return 2
        figures = {name: Figures(**one) for name, one in saved["figures"].items()}
    text, held_out = load_source()
    for gained in compare(settings, text, held_out, figures):
        figures = in_order(figures | gained)
        record = {
            "settings": dataclasses.asdict(settings),
            "lengths": [stretch * settings.length for stretch in STRETCH],
            "figures": {name: dataclasses.asdict(one) for name, one in figures.items()},
        }
        store.write_text(json.dumps(record, indent=1), encoding="utf-8")
    (arguments.out / "table.md").write_text(table(figures, settings), encoding="utf-8")
    plot(figures, settings, arguments.out / "plot.png")
    print(f"bits per byte, by bytes read at once; trained on {settings.length}\n")
    print(table(figures, settings))
    print(f"written: {', '.join(sorted(str(path) for path in arguments.out.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
