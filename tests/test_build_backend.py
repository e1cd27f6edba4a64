"""How the build finds torch and CUDA: the in-tree backend and the functions of setup.py."""

import json
import os
import runpy
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import setuptools
import torch

ROOT = Path(__file__).parents[1]
BACKEND = ROOT / "build_backend"

ASK_BACKEND = """if True:
    import json, sys, setuptools
    before = list(sys.path)
    import posenc_build
    needs = posenc_build.get_requires_for_build_wheel()
    print(json.dumps([needs, before, sys.path, setuptools.__file__]))
"""


def ask_backend(python, tmp_path, **environ):
    """Run the backend as pip does: its own setuptools, and the target's packages hidden."""
    isolated = tmp_path / "isolated"
    isolated.mkdir()
    for package in ("setuptools", "_distutils_hack"):
        (isolated / package).symlink_to(Path(setuptools.__file__).parents[1] / package)
    # -S hides site-packages, as pip's own sitecustomize does.
    process = subprocess.run(
        [python, "-S", "-c", ASK_BACKEND],
        env=os.environ | {"PYTHONPATH": f"{isolated}{os.pathsep}{BACKEND}"} | environ,
        capture_output=True, text=True,
    )  # fmt: skip
    if process.returncode:
        return process.stderr
    needs, before, after, used = json.loads(process.stdout)
    assert used.startswith(str(isolated))
    return needs, before, after


@pytest.fixture
def no_torch(tmp_path):
    """The Python of an environment without torch."""
    venv.create(tmp_path / "target", symlinks=os.name != "nt")
    python = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    return str(tmp_path / "target" / python)


def test_torch_of_the_target_is_found_and_goes_last(tmp_path):
    needs, before, after = ask_backend(sys.executable, tmp_path)
    assert "torch" not in needs
    assert after[: len(before)] == before
    assert str(Path(torch.__file__).parents[1]) in after[len(before) :]


def test_torch_is_required_when_the_target_has_none(no_torch, tmp_path):
    needs, before, after = ask_backend(no_torch, tmp_path, PIP_BUILD_TRACKER="folder")
    assert "torch" in needs
    assert after == before


def test_isolation_that_hides_the_target_is_refused_in_one_sentence(no_torch, tmp_path):
    said = ask_backend(no_torch, tmp_path)
    assert said.startswith("posenc_ext: the torch to build against is hidden from an isolated")
    assert "uv pip install --no-build-isolation ." in said
    assert said.count("\n") == 1


def test_isolation_asks_for_the_torch_that_is_named(no_torch, tmp_path):
    needs, _, _ = ask_backend(no_torch, tmp_path, POSENC_TORCH="torch==2.12.0")
    assert "torch==2.12.0" in needs


@pytest.fixture
def build():
    """The functions of setup.py, without running the build."""
    return runpy.run_path(str(ROOT / "setup.py"), run_name="not_main")


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A pretended CUDA 13 toolkit, with nvcc on PATH as a wrapper script outside of it."""
    home = tmp_path / "toolkit"
    for folder in (home / "bin", tmp_path / "bin"):
        folder.mkdir(parents=True)
    (home / "bin/nvcc").write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"--dryrun) echo '#$ _SPACE_= ' >&2; echo '#$ TOP={home}/bin/..' >&2;;\n"
        "--version) echo 'Cuda compilation tools, release 13.0, V13.0.88';;\n"
        "--list-gpu-arch) for a in 75 80 86 90 90a; do echo compute_$a; done;;\nesac\n"
    )
    (tmp_path / "bin/nvcc").write_text(f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
    for nvcc in (home / "bin/nvcc", tmp_path / "bin/nvcc"):
        nvcc.chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH", "POSENC_CUDA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return str(home)


def test_nvcc_behind_a_wrapper_script_is_resolved(build, toolkit):
    assert build["find_cuda_home"]() == toolkit


def test_cuda_home_wins_over_path(build, toolkit, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))  # it holds bin/nvcc too
    assert build["find_cuda_home"]() == str(tmp_path)


def test_archs_are_those_the_toolkit_knows(build, toolkit):
    assert build["choose_archs"](toolkit) == "7.5+PTX;8.0+PTX;8.6;9.0+PTX"


def test_cuda_is_used_when_all_is_there(build, toolkit, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert build["find_cuda"](["csrc/cuda/x.cu"]) == toolkit


@pytest.mark.parametrize(
    ("forced", "cuda", "sources", "reason"),
    [
        ("0", "13.0", ["x.cu"], "POSENC_CUDA=0"),
        ("", None, ["x.cu"], "has no CUDA"),
        ("", "13.0", [], "csrc/cuda holds no sources"),
    ],
)
def test_cpu_only_says_why(build, toolkit, monkeypatch, capsys, forced, cuda, sources, reason):
    monkeypatch.setenv("POSENC_CUDA", forced)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert build["find_cuda"](sources) is None
    printed = capsys.readouterr().out
    assert printed.startswith("posenc_ext: building for the CPU only: ")
    assert reason in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("forced", "cuda", "message"),
    [
        ("2", "13.0", "POSENC_CUDA must be 0, 1 or unset, got '2'"),
        ("1", None, "POSENC_CUDA=1 asks for CUDA, but torch .* has no CUDA"),
        ("", "12.8", "built for CUDA 12.8, but .*toolkit holds CUDA 13: set CUDA_HOME"),
        ("1", "12.8", "built for CUDA 12.8, but .*toolkit holds CUDA 13: set CUDA_HOME"),
    ],
)
def test_impossible_cuda_is_one_clear_error(build, toolkit, monkeypatch, forced, cuda, message):
    monkeypatch.setenv("POSENC_CUDA", forced)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(SystemExit, match=message):
        build["find_cuda"](["x.cu"])


def test_missing_nvcc_is_the_reason(build, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("POSENC_CUDA", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))  # a folder without bin/nvcc
    monkeypatch.setattr(build["shutil"], "which", lambda *args, **kwargs: None)
    assert build["find_cuda"](["x.cu"]) is None
    assert "nvcc was not found" in capsys.readouterr().out
