"""The comparison of encodings, with models that are too small to learn anything."""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import posenc_ext

EXAMPLES = Path(__file__).parents[1] / "examples"
TRAINED = ["none", "sinusoidal", "learned", "RoPE", "RoPE, base 500000"]
TRAINED += ["xPos", "ALiBi", "Shaw", "T5"]
STRETCHED = ["RoPE + PI", "RoPE + NTK", "RoPE + YaRN"]


def compare(folder, *options):
    command = [sys.executable, EXAMPLES / "train_short_test_long.py", "--quick", "--out", folder]
    package = str(Path(posenc_ext.__file__).parents[1])
    process = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": package},
    )
    return process


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    process = compare(folder, "--steps", "2")
    assert process.returncode == 0, process.stderr
    return folder, process


def test_every_length_of_the_test_predicts_the_same_bytes(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("OMP_WAIT_POLICY", os.environ.get("OMP_WAIT_POLICY", "passive"))
    example = importlib.import_module("train_short_test_long")

    class Echo:
        def losses(self, windows):  # in nats, as those of the model
            lengths.add(windows.shape[1] - 1)
            return windows[:, 1:].double() * math.log(2)

    windows = torch.arange(3 * 33).view(3, 33)
    for length in (4, 8, 16, 32):
        lengths = set()
        bits = example.measure(Echo(), windows, length, lambda: None)
        torch.testing.assert_close(bits, windows[:, 1:].double())
        assert lengths == {length}


def test_every_encoding_has_figures_for_every_length(run):
    folder, process = run
    record = json.loads((folder / "figures.json").read_text())
    figures = record["figures"]
    assert set(figures) == {*TRAINED, *STRETCHED}
    assert record["lengths"] == [16, 32, 64, 128]
    for name, one in figures.items():
        if name != "learned":
            values = one["all"] + one["end"] + one["by_position"]
            assert len(values) == 4 + 4 + 16
            assert all(4 < bits < 12 and math.isfinite(bits) for bits in values), name
        assert name in process.stdout
        assert f"{name}: test" in process.stderr
    assert "1/2" in process.stderr  # progress


def test_learned_positions_end_with_their_table(run):
    folder, process = run
    learned = json.loads((folder / "figures.json").read_text())["figures"]["learned"]
    assert math.isfinite(learned["all"][0])
    assert learned["all"][1:] == learned["end"][1:] == [None] * 3
    assert "16" in learned["refusal"]
    assert "32" in learned["refusal"]
    assert learned["refusal"] in process.stdout


def test_rules_change_nothing_at_the_trained_length_and_something_beyond(run):
    figures = json.loads((run[0] / "figures.json").read_text())["figures"]
    for name in STRETCHED:
        assert figures[name]["all"][0] == figures["RoPE"]["all"][0]
        assert figures[name]["all"][3] != figures["RoPE"]["all"][3]
    assert figures["RoPE, base 500000"]["all"][0] != figures["RoPE"]["all"][0]


def test_tables_and_picture_are_written(run):
    folder, process = run
    table = (folder / "table.md").read_text()
    assert table in process.stdout
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * (1 + len(TRAINED) + len(STRETCHED))
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_stopped_run_goes_on_where_it_stopped(run):
    folder, process = run
    store = folder / "figures.json"
    record = json.loads(store.read_text())
    del record["figures"]["ALiBi"]
    store.write_text(json.dumps(record))
    again = compare(folder, "--steps", "2", "--resume")
    assert again.returncode == 0, again.stderr
    assert "ALiBi" in again.stderr
    assert "Shaw" not in again.stderr
    assert (folder / "table.md").read_text() in process.stdout  # ALiBi's figures came out the same
    other = compare(folder, "--steps", "3", "--resume")
    assert other.returncode == 2
    assert "other settings" in other.stderr


def test_generating_notices_other_bytes(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("OMP_WAIT_POLICY", os.environ.get("OMP_WAIT_POLICY", "passive"))
    example = importlib.import_module("generate")
    model, prompt = example.Model(), torch.arange(6).view(2, 3)
    with torch.no_grad():
        assert example.compare(model, prompt, 3, 1).shape == (2, 6)
    monkeypatch.setitem(example.WAYS, "cat", lambda model, prompt, count: prompt)
    with pytest.raises(SystemExit, match="cat gives other bytes"), torch.no_grad():
        example.compare(model, prompt, 2, 1)
