"""What bench/gpu.py does before it needs a GPU."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GPU = runpy.run_path(str(ROOT / "bench/gpu.py"), run_name="not_main")


def test_no_file_of_the_repository_is_taken_for_a_missing_module():
    own = {
        path.stem
        for folder in ("tests", "examples", "bench")
        for path in (ROOT / folder).glob("*.py")
    }
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        assert GPU["lacks"](path) & own == set(), path.name


def test_a_missing_module_is_named_through_what_imports_it(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    test, helper = tmp_path / "tests/test_a.py", tmp_path / "tests/helper.py"
    test.write_text("import helper\nimport torch\n")
    helper.write_text("import nowhere_to_be_found\nfrom test_a import x\n")
    monkeypatch.setitem(GPU["lacks"].__globals__, "ROOT", tmp_path)
    assert GPU["lacks"](test) == {"nowhere_to_be_found"}
