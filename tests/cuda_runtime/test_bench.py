"""bench/gpu.py from beginning to end, at small sizes: what it finds is not judged."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import posenc_ext

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Where the module in the tree would be that of this torch."""
    folder = tmp_path_factory.mktemp("tree")
    own = {"bench", "tests", "examples"}  # these look for the root above where they are
    for path in ROOT.iterdir():
        if path.name in own:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, folder / path.name, ignore=ignored)
        elif path.name not in ("posenc_ext", "build") and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    (folder / "posenc_ext").symlink_to(Path(posenc_ext._C.__file__).parent)
    command = [sys.executable, "bench/gpu.py", "--no-build", "--rehearse"]
    environment = {name: v for name, v in os.environ.items() if not name.startswith("POSENC_")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return folder, done


def test_it_gets_to_the_end(rehearsal):
    _, done = rehearsal
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = re.findall(r"^(\w+): passed$", done.stdout, re.MULTILINE)
    assert passed == ["checks", "tests", "timings"]


def test_it_lists_what_differs_and_times_all(rehearsal):
    folder, done = rehearsal
    assert len(re.findall(r"differ in bits$", done.stdout, re.MULTILINE)) >= 50
    lines = (folder / "build/gpu.json").read_text().splitlines()
    cases = [json.loads(line)["case"] for line in lines]
    for part in ("float32", "bfloat16", "backward", "decode", "rope_table", "alibi_softmax"):
        assert any(part in case for case in cases), part
    for case in cases:
        assert f"\n{case} " in done.stdout, case
