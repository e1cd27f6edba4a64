"""What the build promises: one version, who may include what, file sizes, one OpenMP runtime."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import posenc_ext

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
BUILD_FILES = [
    "setup.py",
    "CMakeLists.txt",
    "Makefile",
    "pyproject.toml",
    ".ci/run",
    ".ci/each_isa",
]
SOURCE_SUFFIXES = {".cpp", ".h", ".inc", ".cu", ".cuh"}

# What a torch-free file may include: no containers, nothing that shares inline code across files.
PLAIN_HEADERS = {"bit", "cmath", "cstddef", "cstdint", "cstring", "immintrin.h", "limits"}
PLAIN_HEADERS |= {"type_traits"}


def read(path):
    return (ROOT / path).read_text()


def source_files(*suffixes):
    return [p for p in sorted(CSRC.rglob("*")) if p.suffix in (suffixes or SOURCE_SUFFIXES)]


def includes(path):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def all_includes(path, seen=None):
    """Every header that `path` includes, also through the project's own headers."""
    seen = set() if seen is None else seen
    for name in includes(path):
        own = next((p for p in (CSRC / name, path.parent / name) if p.is_file()), None)
        if own is None:
            seen.add(name)
        elif own not in seen:
            seen.add(own)
            all_includes(own, seen)
    return {name for name in seen if isinstance(name, str)}


def imports(path):
    """Modules that a Python file imports, and the names it takes from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def run_python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True
    )


def test_the_module_under_test_is_the_one_asked_for():
    expected = os.environ.get("POSENC_MODULE_DIR", str(ROOT / "posenc_ext"))
    assert os.path.dirname(posenc_ext.__file__) == expected
    assert os.path.dirname(posenc_ext._C.__file__) == expected


def test_version_is_written_once():
    info = posenc_ext._C.build_info()
    assert posenc_ext.__version__ == info["version"]
    assert info["torch"] == torch.__version__
    others = [ROOT / name for name in BUILD_FILES] + source_files()
    others += [p for p in (ROOT / "posenc_ext").rglob("*.py") if p.name != "_version.py"]
    assert [p for p in others if posenc_ext.__version__ in p.read_text()] == []


@pytest.mark.parametrize(
    ("files", "more"),
    [
        (r"_math\.h$|_rows\.(h|inc|cpp)$|_operand\.h$", set()),
        (r"_kernels\.(h|cu)$|\.cuh$", {"algorithm", "cuda_on_cpu.h", "cuda_runtime_api.h"}),
    ],
    ids=["math_and_rows", "cuda_kernels"],
)
def test_math_rows_and_kernels_are_torch_free(files, more):
    files = [p for p in source_files() if re.search(files, p.name)]
    assert files
    for path in files:
        assert all_includes(path) <= PLAIN_HEADERS | more, path
        assert "TORCH_CHECK" not in path.read_text(), path


def test_cpu_files_include_no_umbrella_header_and_no_intrinsics():
    files = [p for p in CSRC.glob("cpu/*.cpp") if "_rows" not in p.name]
    assert files
    for path in files:
        banned = {"torch/extension.h", "torch/torch.h", "torch/all.h", "ATen/ATen.h", "immintrin.h"}
        assert not all_includes(path) & banned, path


def test_only_the_bindings_and_autograd_see_python():
    known = ("bindings.cpp", "norm_rope_bindings.cpp", "short_arguments.h", "autograd.cpp")
    for path in source_files():
        python = [n for n in includes(path) if re.search(r"pybind|Python\.h|torch/extension\.h", n)]
        assert not python or path.name in known, path


def test_cuda_files_need_no_cublas_or_cusparse_headers():
    files = [p for p in source_files() if p.parent.name == "cuda"]
    assert files
    for path in files:  # CUDAContext.h pulls both in
        assert "ATen/cuda/CUDAContext.h" not in all_includes(path), path


def test_python_files_import_neither_numpy_nor_private_names_of_others():
    for path in (ROOT / "posenc_ext").rglob("*.py"):
        for module, name in imports(path):
            assert module.split(".")[0] != "numpy", path
            if module.startswith("posenc_ext.ops."):
                assert not (name or "").startswith("_"), f"{path}: {name}"


def test_oracle_needs_numpy_only():
    for path in sorted((ROOT / "tests").glob("oracle*.py")):
        modules = {module.split(".")[0] for module, _ in imports(path)}
        assert modules - sys.stdlib_module_names - {"oracle"} == {"numpy"}, path.name


def test_files_stay_short():
    code = [
        p
        for folder in ("csrc", "posenc_ext", "tests", "bench", "examples", "build_backend")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in SOURCE_SUFFIXES | {".py"}
    ]
    budget = dict.fromkeys([*code, ROOT / "setup.py"], 300)
    budget |= {ROOT / "CMakeLists.txt": 60}
    lengths = {path: len(path.read_text().splitlines()) for path in budget}
    assert [(str(p), n) for p, n in lengths.items() if n > budget[p]] == []


def test_no_flag_depends_on_the_machine_or_loosens_arithmetic():
    for name in BUILD_FILES:
        text = re.sub(r"#.*", "", read(name))
        found = re.findall(r"-march|-mtune|-mavx|-mfma|-msse|-Ofast|fast.math|arch:AVX", text)
        assert found == [], name
    for name in ("setup.py", "CMakeLists.txt"):
        for needed in ("-ffp-contract=off", "-O3", "csrc/*.cpp", "csrc/cpu/*.cpp"):
            assert needed in read(name), f"{name} lacks {needed}"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_one_openmp_runtime():
    code = """if True:
        import torch, posenc_ext
        torch.set_num_threads(2)
        torch.ones(1 << 20).add_(1)
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps}
        print(*(path for path in paths if "gomp" in path or "iomp" in path or "libomp" in path))
    """
    runtimes = run_python(code).stdout.split()
    assert len(runtimes) == 1, runtimes
    assert posenc_ext._C.build_info()["openmp"]


def test_another_torch_is_refused_in_one_sentence():
    code = "import torch; torch.__version__ = '1.0.0'; import posenc_ext"
    process = run_python(code)
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    built = re.escape(torch.__version__)
    assert re.match(
        rf"ImportError: posenc_ext .* torch {built}, but torch 1\.0\.0 .*install", last
    ), last


def test_sdist_is_complete(tmp_path):
    ignore = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", ".*_cache")
    tree = shutil.copytree(ROOT, tmp_path / "tree", ignore=ignore)
    code = f"import posenc_build; print(posenc_build.build_sdist({str(tmp_path)!r}))"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "build_backend")},
    )
    with tarfile.open(tmp_path / f"posenc_ext-{posenc_ext.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    junk = re.compile(r"__pycache__|egg-info|\.(so|pyd|pyc)$|/\.")
    folders = ("csrc", "posenc_ext", "tests", "bench", "examples", "build_backend")
    files = {
        p.relative_to(tree).as_posix()
        for f in folders
        for p in (tree / f).rglob("*")
        if p.is_file()
    }
    expected = {name for name in files if not junk.search(name)}
    expected |= {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", ".clang-format"}
    expected |= {*BUILD_FILES}
    assert expected - names == set()
    assert {n for n in names if re.search(r"\.(so|pyd|pyc|o)$|^build/|^\.venv", n)} == set()


def test_workflows_and_hooks_run_what_is_pinned_here():
    """The workflows call targets that the Makefile has; the hooks are of the versions of `dev`."""
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    called = set()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        called |= set(re.findall(r"\bmake ([a-z-]+)", path.read_text()))
    assert called
    assert called <= targets
    pinned = dict(re.findall(r'"(ruff|clang-format)==([\d.]+)"', read("pyproject.toml")))
    hooks = read(".pre-commit-config.yaml").replace("-pre-commit\n", "\n")
    assert dict(re.findall(r"(ruff|clang-format)\n +rev: v([\d.]+)", hooks)) == pinned
