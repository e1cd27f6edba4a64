"""The table of systems names what exists."""

import pathlib
import re

import posenc_ext

TEXT = (pathlib.Path(__file__).parents[1] / "docs" / "systems.md").read_text()


def rows():
    """The cells of the table of systems."""
    lines = TEXT.partition("\n## ")[0].splitlines()
    return [line.strip("|").split("|") for line in lines if re.match(r"\| (\d|\|)", line)]


def test_every_system_has_a_row():
    numbers = [int(n) for row in rows() for n in re.findall(r"\d+", row[0])]
    assert sorted(set(numbers)) == list(range(1, 24))
    assert {len(row) for row in rows()} == {8}


def test_names_exist():
    names = set()
    for row in rows():
        for code in re.findall(r"`([^`]+)`", row[2]):
            name = re.match(r"[\w.]+", code)[0]
            if not name.startswith("torch.") and not code.endswith("="):
                names.add(name)
    assert len(names) > 30
    for name in names - {"need_weights", "rotary"}:
        target = posenc_ext
        for part in name.split("."):
            target = getattr(target, part)
