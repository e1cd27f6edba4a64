"""Every Python block of README and docs runs; what the type checkers of `make lint` look at runs
too."""

import pathlib
import runpy

import pytest
import torch
from doc_blocks import BLOCK, ROOT, blocks, write

BLOCKS = blocks()
THEIRS = pytest.mark.filterwarnings("default")  # compilers and other libraries warn of themselves
MARKS = {"": (), "slow": (pytest.mark.slow, THEIRS), "peers": (pytest.mark.peers, THEIRS)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS[word]) for name, (word, _) in BLOCKS.items()]
)
def test_block(name):
    exec(compile(BLOCKS[name][1], name, "exec"), {"__name__": name})
    assert torch.is_grad_enabled()  # no block leaves the process changed


def test_what_is_typed_runs():
    runpy.run_path(str(pathlib.Path(__file__).with_name("typed_use.py")))


def test_blocks_are_found_and_written(tmp_path):
    marked = len(BLOCK.findall("\n".join(p.read_text() for p in (ROOT / "docs").rglob("*.md"))))
    assert "README_0" in BLOCKS
    assert len(BLOCKS) > marked / 2
    write(tmp_path / "typed")
    typed = [word for word, _ in BLOCKS.values() if word != "peers"]
    assert len(list((tmp_path / "typed").iterdir())) == len(typed) + 1
