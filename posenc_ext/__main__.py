"""Facts of the installed posenc_ext, a self-test, the bench, and pictures of encodings."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import posenc_ext

from . import plot, self_check
from .configs import rotary_arguments
from .fingerprints import fingerprints
from .frequencies import RopeFrequencies
from .ops.rope_frequencies import rope_frequencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAILED, USAGE = 1, 2  # exit statuses other than 0


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["bench"]:  # its options are its own
        return bench(given[1:])
    options = parser().parse_args(given)
    return int(options.run(options))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m posenc_ext", description=__doc__)
    top.add_argument("--version", action="version", version=f"posenc_ext {posenc_ext.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("info", help="what is installed").set_defaults(run=info)
    checks = commands.add_parser("check", help="every op beside its formula, in seconds")
    checks.add_argument("--bits", action="store_true", help="hashes of the bits that the ops give")
    checks.set_defaults(run=check)
    commands.add_parser("bench", help="speed beside a copy of the same bytes; in the source tree")
    plots = commands.add_parser("plot", help="a picture of an encoding")
    pictures = plots.add_subparsers(metavar="PICTURE")
    add_pictures(pictures)
    plots.set_defaults(run=lambda _: plots.error(f"PICTURE must be {', '.join(pictures.choices)}"))
    return top


def add_pictures(pictures: Any) -> None:
    one = pictures.add_parser("sinusoidal", help="heat map of the table")
    one.add_argument("--positions", type=int, default=128)
    one.add_argument("--dim", type=int, default=128)
    one.add_argument("--base", type=float, default=10000.0)
    one.add_argument("--convention", default="interleaved")
    one.set_defaults(
        draw=lambda o: plot.sinusoidal(o.positions, o.dim, base=o.base, convention=o.convention)
    )

    one = pictures.add_parser("decay", help="rotary scores by distance, for bases or rules")
    add_rope(one)
    one.add_argument("--rules", action="store_true", help="all rules at one base, not the bases")
    one.add_argument("--longest", type=int, default=32768, help="distance")
    one.set_defaults(draw=lambda o: plot.decay(rope_curves(o, o.rules)[0], longest=o.longest))

    one = pictures.add_parser("frequencies", help="what rules make of each rotary frequency")
    add_rope(one)
    one.set_defaults(draw=draw_frequencies)

    one = pictures.add_parser("alibi", help="the bias of the heads")
    one.add_argument("--heads", type=int, default=8)
    one.add_argument("--length", type=int, default=64)
    one.set_defaults(draw=lambda o: plot.alibi(o.heads, o.length))

    for picture in pictures.choices.values():
        picture.add_argument("--out", required=True, metavar="FILE", help="such as picture.png")
        picture.add_argument("--dpi", type=float, default=80.0)
        picture.set_defaults(run=draw)


def add_rope(picture: argparse.ArgumentParser) -> None:
    picture.add_argument("--dim", type=int, help="R, the channels that rotate (128)")
    picture.add_argument("--base", type=float, action="append", help="may be given several times")
    picture.add_argument("--factor", type=float, help="of the rules (8)")
    picture.add_argument("--length", type=float, help="original length, of the rules (4096)")
    picture.add_argument(
        "--config", metavar="PATH", help="a Hugging Face model's config.json, or its folder"
    )
    picture.add_argument("--layer-type", help="layers of the config, such as full_attention")
    picture.add_argument("--seq-len", type=int, help="for a rule of the config that depends on it")


def info(_: argparse.Namespace) -> int:
    build = posenc_ext._C.build_info()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cuda = build["cuda"] or "no: built for the CPU only"
    facts = {
        "posenc_ext": posenc_ext.__version__,
        "folder": Path(posenc_ext.__file__).parent,
        "python": sys.version.split()[0],
        "torch": f"{torch.__version__} (built against {build['torch']})",
        "instruction set": posenc_ext._C.cpu_capability(),
        "threads": torch.get_num_threads(),
        "OpenMP": "yes" if build["openmp"] else "no: one thread",
        "CUDA": cuda,
        "GPUs": ", ".join(devices) or "none that torch can use",
        "compiler": build["compiler"] or "unknown",
        "fast-math": "yes: results are not exact" if build["fast_math"] else "no",
    }
    for name, fact in facts.items():
        print(f"{name:<16} {fact}")
    return 0


def check(options: argparse.Namespace) -> int:
    if options.bits:
        for name, digest in fingerprints():
            print(f"{name:<30} {digest}")
        return 0
    start, failed, count = time.perf_counter(), 0, 0
    for result in self_check.run():
        count += 1
        failed += not result.passed
        dtype = str(result.case.dtype).removeprefix("torch.")
        print(
            f"{'ok' if result.passed else 'FAILED':<6} {result.op:<17} {dtype:<9} "
            f"{result.case.device.type:<5} "
            + (result.problem or f"error {result.error:.2g} eps, may be {result.bound:g}")
        )
    seconds = time.perf_counter() - start
    print(f"{count - failed} of {count} checks passed in {seconds:.1f} s")
    return FAILED if failed else 0


def bench(arguments: list[str]) -> int:
    root = Path(posenc_ext.__file__).parents[1]
    if not (root / "bench" / "__main__.py").is_file():
        return refuse(
            "bench needs the source tree, which the installed package does not have: run "
            "`make bench` there"
        )
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root).returncode


def draw(options: argparse.Namespace) -> int:
    try:
        figure = options.draw(options)
        # With a format, matplotlib takes the name as it is.
        kind = Path(options.out).suffix[1:] or "png"
        figure.savefig(options.out, dpi=options.dpi, format=kind)
    except (
        TypeError,
        ValueError,
        OSError,
        ModuleNotFoundError,
        RuntimeError,
        MemoryError,
    ) as error:
        return refuse(str(error))
    print(options.out)
    return 0


def draw_frequencies(options: argparse.Namespace) -> Figure:
    curves, base = rope_curves(options, rules=True)
    return plot.frequencies(curves, base=base)


def rope_curves(
    options: argparse.Namespace, rules: bool
) -> tuple[dict[str, RopeFrequencies], float]:
    """The frequencies to draw by name, and the base that they are compared with."""
    if options.config:
        return config_curves(options)
    if options.layer_type or options.seq_len is not None:
        raise ValueError("--layer-type and --seq-len go with --config")
    dim = 128 if options.dim is None else options.dim
    factor = 8.0 if options.factor is None else options.factor
    length = 4096.0 if options.length is None else options.length
    bases = options.base
    if not rules and not (options.factor is None and options.length is None):
        raise ValueError("--factor and --length go with --rules")
    if not rules:
        return plot.bases(dim, bases or (1e4, 5e5, 1e6)), 1e4
    if len(bases or ()) > 1:
        raise ValueError(f"--base may be given once for rules, got {bases}")
    base = bases[0] if bases else 1e4
    return plot.rules(dim, base, factor, length), base


def config_curves(options: argparse.Namespace) -> tuple[dict[str, RopeFrequencies], float]:
    """The frequencies of a model, after the unscaled ones."""
    if any(
        value is not None for value in (options.dim, options.base, options.factor, options.length)
    ):
        raise ValueError("--dim, --base, --factor and --length do not go with --config")
    if getattr(options, "rules", False):
        raise ValueError("--rules does not go with --config, which has its own")
    path = Path(options.config)
    if path.is_dir():  # that of a model
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as problem:
        raise ValueError(f"{path} must be JSON: {problem}") from problem
    # Which channels make a pair does not show in these pictures, so a new model_type will do.
    keys = config.get("text_config", config) if isinstance(config, dict) else {}
    rotary = any(key.startswith(("rope", "rotary")) for key in keys)
    dim, base, scaling, *_ = rotary_arguments(
        config, options.layer_type, interleaved=False if rotary else None
    )
    curves = {f"unscaled, base {base:g}": rope_frequencies(dim, base)}
    if scaling is not None:
        name = scaling.get("rope_type", scaling.get("type", "default"))
        curves[name] = rope_frequencies(dim, base, scaling, seq_len=options.seq_len)
    return curves, base


def refuse(reason: str) -> int:
    print(f"python -m posenc_ext: {' '.join(reason.split())}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `... | head` ends this process, without a traceback
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
