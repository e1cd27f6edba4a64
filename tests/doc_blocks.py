"""The Python blocks of README and docs. Each runs as it stands, and passes type checkers, but where
a word after ``python`` says otherwise:

    fragment   part of a program whose rest the reader has: neither
    peers      needs a package that only `make peers-test` installs, which runs it; not typed
    slow       compiles: `make peers-test` runs it

    python tests/doc_blocks.py FOLDER

writes the typed ones as modules, and beside them what users write, for `make lint` to check.
"""

import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Name of the page and number of the block: its word and its code."""
    found = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for i, (word, code) in enumerate(BLOCK.findall(text)):
            if word != "fragment":
                name = page.relative_to(ROOT).with_suffix("").as_posix()
                found[f"{name}_{i}"] = (word, code)
    return found


def write(folder):
    shutil.rmtree(folder, ignore_errors=True)  # what a page no longer has
    folder.mkdir(parents=True)
    for name, (word, code) in blocks().items():
        if word != "peers":
            (folder / (re.sub(r"\W", "_", name) + ".py")).write_text(code, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "typed_use.py", folder)


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
