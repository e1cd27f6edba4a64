"""README and the site: what `mkdocs build --strict` does not see."""

import pathlib
import re
import sys

import pytest

import posenc_ext

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read(path):
    return path.read_text(encoding="utf-8")


def anchors(page):
    """Of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_readme_is_short():
    assert len(read(ROOT / "README.md").split()) <= 900


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_from_outside_the_site(page):
    for link in LINK.findall(read(ROOT / page)):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = ROOT / path
            assert target.is_file(), link
            assert not anchor or anchor in anchors(target), link


def test_every_public_name_is_on_one_page_of_the_reference():
    pages = [read(page) for page in sorted(REFERENCE.glob("*.md"))]
    found = re.findall(r"^::: posenc_ext\.(\w+)$", "\n".join(pages), re.MULTILINE)
    modules = {"scaling", "types", "plot", "axial"}
    names = set(posenc_ext.__all__) - {"__version__"}
    assert sorted(name for name in found if name not in modules) == sorted(names)


def test_the_cookbook_has_a_block_or_a_link_in_every_recipe():
    recipes = re.split(r"^### (.*)$", read(DOCS / "cookbook.md"), flags=re.MULTILINE)[1:]
    titles, texts = recipes[::2], recipes[1::2]
    assert len(titles) >= 30
    assert len(set(titles)) == len(titles)
    for title, text in zip(titles, texts, strict=True):
        assert "```python" in text or LINK.search(text), title


def test_the_picture_of_speed_is_that_of_the_table():
    sys.path.insert(0, str(DOCS))
    try:
        import speed_picture
    finally:
        sys.path.remove(str(DOCS))
    assert len(speed_picture.ratios()) == 6
    assert read(speed_picture.PICTURE) == speed_picture.svg()
