"""The Python blocks of README and docs. One marked ``python fragment`` is part of a program whose
rest the reader has; every other one runs as it stands, and passes type checkers.

    python tests/doc_blocks.py FOLDER

writes them as modules, and beside them what users write, for `make lint` to check.
"""

import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(python[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Name of the page and number of the block: its code."""
    found = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for i, (kind, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            if kind != "python fragment":
                found[f"{page.relative_to(ROOT).with_suffix('').as_posix()}_{i}"] = code
    return found


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in blocks().items():
        (folder / (re.sub(r"\W", "_", name) + ".py")).write_text(code, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "typed_use.py", folder)


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
