"""The demo's text: the source of the Python standard library, as bytes.

It is on every machine that runs the demo, needs no download, and has the long-range structure
(indentation, brackets, repeated names) that makes positions matter.
"""

import sysconfig
import zlib
from pathlib import Path

import torch
from torch import Tensor

# Not library source: packages a user installed, and the test suite, which many installs leave out.
SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"}


def load_source() -> tuple[Tensor, Tensor]:
    """Return (train, held_out), each uint8 [N]: whole files, one after another.

    A file's name alone decides its side (about one in ten is held out), so the split is the same
    on every run, and no file is on both sides.

    Raises FileNotFoundError when the interpreter has no standard library source on disk.
    """
    root = Path(sysconfig.get_path("stdlib"))
    train, held_out = bytearray(), bytearray()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED.isdisjoint(name.parts):
            part = held_out if zlib.crc32(name.as_posix().encode()) % 10 == 0 else train
            part += path.read_bytes()
    if not train or not held_out:
        raise FileNotFoundError(f"no Python source found under {root}")
    return (
        torch.frombuffer(train, dtype=torch.uint8),
        torch.frombuffer(held_out, dtype=torch.uint8),
    )


def random_batch(text: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Return int64 [batch, length + 1]: windows at random starts, inputs and shifted targets."""
    starts = torch.randint(len(text) - length, (batch,), generator=generator)
    return text[starts[:, None] + torch.arange(length + 1)].long()


def even_windows(text: Tensor, count: int, length: int) -> Tensor:
    """Return int64 [count, length + 1]: windows spread evenly over the text, always the same."""
    starts = torch.linspace(0, len(text) - length - 1, count, dtype=torch.float64).long()
    return text[starts[:, None] + torch.arange(length + 1)].long()
