"""pip install in each of its ways, in fresh environments. Minutes: `make install-test` runs these.

The module is compiled twice in full: once from a copy of the tree, which the environment that has
torch shares between its tests, and once from the sdist, where there is no torch.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TORCH = "torch==" + torch.__version__.split("+")[0]
CHECK = """if True:
    import sys, torch, posenc_ext
    x = torch.arange(24.0).reshape(1, 3, 2, 4)
    y = posenc_ext.rope(x, torch.zeros(3, 2), torch.ones(3, 2))
    assert torch.equal(y, torch.cat([-x[..., 2:], x[..., :2]], -1))
    assert posenc_ext._C.build_info()["torch"] == torch.__version__
    print(posenc_ext.__file__)
"""


def run(*command, cwd, check=True):
    """Run a command without what this process's own environment would add; return its output."""
    env = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    own = os.path.dirname(sys.executable)
    env["PATH"] = os.pathsep.join(p for p in env["PATH"].split(os.pathsep) if p != own)
    # Where pip has to choose a torch, it takes the one that these tests run with.
    (cwd / "constraints.txt").write_text(TORCH + "\n")
    env["PIP_CONSTRAINT"] = env["PIP_BUILD_CONSTRAINT"] = str(cwd / "constraints.txt")
    process = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if check and process.returncode != 0:
        pytest.fail(f"{command} ended with {process.returncode}:\n{process.stdout[-5000:]}")
    return process.stdout


class Environment:
    def __init__(self, folder):
        self.folder = folder
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        self.python = folder / "venv/bin/python"

    def pip(self, *arguments):
        return run(self.python, "-m", "pip", *arguments, cwd=self.folder)

    def install(self, *arguments):
        """Install posenc_ext and nothing else that is there already; return pip's log."""
        self.pip("uninstall", "-y", "posenc_ext")
        return self.pip("install", "-v", *arguments)

    def check(self):
        """Use the installed library; return the folder it was imported from."""
        return Path(run(self.python, "-c", CHECK, cwd=self.folder).splitlines()[-1]).parent


def copy_tree(target):
    ignore = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.egg-info", "_C.*", ".*_cache"
    )
    return shutil.copytree(ROOT, target, ignore=ignore)


def assert_no_torch_was_fetched(log):
    assert "Successfully installed posenc_ext" in log
    assert not re.search(r"(Collecting|Downloading|Processing|Using cached) (\S*/)?torch\b", log)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return copy_tree(tmp_path_factory.mktemp("tree") / "posenc_ext")


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("with-torch"))
    environment.pip("install", TORCH)
    return environment


def test_isolated_build_uses_the_torch_of_the_environment(with_torch, tree):
    log = with_torch.install(tree)
    assert_no_torch_was_fetched(log)
    assert with_torch.folder in with_torch.check().parents


def test_wheel_holds_the_package_and_nothing_else(with_torch, tree):
    with_torch.install(tree)
    installed = with_torch.check()
    names = {p.relative_to(installed).as_posix() for p in installed.rglob("*") if p.is_file()}
    names = {name for name in names if "__pycache__" not in name}
    wanted = {
        p.relative_to(tree / "posenc_ext").as_posix()
        for pattern in ("*.py", "*.pyi", "py.typed")
        for p in (tree / "posenc_ext").rglob(pattern)
    }
    module = {name for name in names if re.fullmatch(r"_C\..*(so|pyd)", name)}
    assert names - module == wanted
    assert len(module) == 1
    beside = {path.name for path in installed.parent.iterdir()}
    assert not beside & {"tests", "bench", "examples", "csrc", "build_backend", "posenc_build.py"}
    metadata = with_torch.pip("show", "--verbose", "posenc_ext")
    assert re.search(r"^Requires: torch$", metadata, re.MULTILINE)


def test_no_build_isolation(with_torch, tree):
    with_torch.pip("install", "setuptools>=77.0.3", "ninja")
    assert_no_torch_was_fetched(with_torch.install("--no-build-isolation", tree))
    assert with_torch.folder in with_torch.check().parents


def test_editable(with_torch, tree):
    assert_no_torch_was_fetched(with_torch.install("-e", tree))
    assert with_torch.check() == tree / "posenc_ext"


def test_newest_pip(with_torch, tree):
    with_torch.pip("install", "--upgrade", "pip")
    assert_no_torch_was_fetched(with_torch.install(tree))
    assert with_torch.folder in with_torch.check().parents
    assert_no_torch_was_fetched(with_torch.install("-e", tree))
    assert with_torch.check() == tree / "posenc_ext"


def uv(*arguments, cwd):
    return run(sys.executable, "-m", "uv", *arguments, cwd=cwd, check=False)


def test_uv_builds_without_isolation_and_keeps_the_torch(with_torch, tree):
    with_torch.pip("install", "setuptools>=77.0.3", "ninja")
    with_torch.pip("uninstall", "-y", "posenc_ext")
    install = ("pip", "install", "--no-cache", "--python", with_torch.python)
    torch_before = with_torch.pip("show", "torch")
    log = uv(*install, tree, cwd=with_torch.folder)
    assert "posenc_ext: the torch to build against is hidden from an isolated build" in log
    assert "uv pip install --no-build-isolation ." in log
    log = uv(*install, "--no-build-isolation", tree, cwd=with_torch.folder)
    assert with_torch.folder in with_torch.check().parents, log
    assert with_torch.pip("show", "torch") == torch_before.replace(
        "Required-by: \n", "Required-by: posenc_ext\n"
    )


def test_target_folder(with_torch, tree):
    target = with_torch.folder / "target"
    assert_no_torch_was_fetched(with_torch.install("--no-deps", "--target", target, tree))
    code = f"import sys; sys.path.insert(0, {str(target)!r})\n{CHECK}"
    where = run(with_torch.python, "-c", code, cwd=with_torch.folder).splitlines()[-1]
    assert target in Path(where).parents


def test_sdist_builds_where_there_is_no_torch(tmp_path):
    code = "import posenc_build; print(posenc_build.build_sdist('..'))"
    # pip keeps the wheel of an sdist by its path, so the path must be a new one.
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    tree = copy_tree(folder / "posenc_ext")
    environment = Environment(folder)
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(tree / "build_backend")},
    )
    (sdist,) = folder.glob("posenc_ext-*.tar.gz")
    environment.install(sdist)
    assert environment.folder in environment.check().parents
    assert TORCH in environment.pip("list", "--format=freeze").replace("+cpu", "")
