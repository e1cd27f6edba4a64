"""docs/known_failures.md names every kind of fault, and tests that exist."""

import ast
import itertools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs/known_failures.md").read_text()
ROWS = [line.strip("|").split("|") for line in TEXT.splitlines() if re.match(r"\| \d", line)]
KINDS = 66
SUITES = {
    "CPU run of the CUDA source": r"cuda_source/.*",
    "GPU suite": r"test_cuda(_ops)?\.py",
    "install tests": r"test_install\.py",
    "build": r"test_build(_backend)?\.py",
}


def names(cell):
    """(file, function) of each test that a cell names."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", cell)


def suite_of(file):
    """The label that stands before tests of this file, or "" for the rest of the suite."""
    return next((label for label, files in SUITES.items() if re.fullmatch(files, file)), "")


def functions(file):
    body = ast.parse((TESTS / file).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_kind_has_one_row():
    assert sorted(int(row[0]) for row in ROWS) == list(range(1, KINDS + 1))
    assert {len(row) for row in ROWS} == {5}
    for row in ROWS:
        assert re.fullmatch(r" ([\w.-]+/[\w.-]+#\d+(, )?)+ ", row[3]), row[3]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_named_tests_exist(row):
    covering = names(row[4])
    assert covering or "Not covered: " in row[4]
    assert row[4].count(".py") == len(covering)  # none is written in a way that is not read
    for file, function in covering:
        assert function.startswith("test_")
        assert function in functions(file), f"{file}::{function}"
    for part in re.split(r"; (?=\w[\w ]*: `)", row[4].partition(" Not covered: ")[0].strip()):
        label = part.partition(": `")[0] if not part.startswith("`") else ""
        assert {suite_of(file) for file, _ in names(part)} == {label}, part


def test_rows_of_an_op_stand_together():
    ops = [row[1].strip() for row in ROWS]
    assert len(set(ops)) == 1 + sum(a != b for a, b in itertools.pairwise(ops))


def test_counts():
    """Each count at the top is that of the rows."""
    per_row = [{suite_of(file) for file, _ in names(row[4])} for row in ROWS]
    counts = {
        "kinds": len(ROWS),
        "with tests that run on any CPU": sum(bool(s & {"", "build"}) for s in per_row),
        "with tests in the CPU run of the CUDA source": sum(
            "CPU run of the CUDA source" in s for s in per_row
        ),
        "with tests in the GPU suite": sum("GPU suite" in s for s in per_row),
        "with tests in the GPU suite alone": sum(s == {"GPU suite"} for s in per_row),
        "with install tests": sum("install tests" in s for s in per_row),
        "with a part that no test covers, for the reason given": sum(
            "Not covered: " in row[4] for row in ROWS
        ),
        "with no test at all": sum(not s for s in per_row),
    }
    written = re.findall(r"^- (\d+) (.+)$", TEXT, re.MULTILINE)
    assert {what: int(count) for count, what in written} == counts
