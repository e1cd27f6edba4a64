"""The package as a whole: names, version, the ISA asked for, and the examples in the docstrings."""

import doctest
import importlib
import importlib.metadata
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys

import pytest
import torch

import posenc_ext

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(posenc_ext.__path__, "posenc_ext.")
    if "__main__" not in m.name
)
ISAS = ("default", "avx2", "avx512")


def test_capability_is_the_one_asked_for():
    asked = os.environ.get("ATEN_CPU_CAPABILITY")
    capability = posenc_ext._C.cpu_capability()
    assert capability in ISAS
    if asked in ISAS:
        assert capability == asked
    best = torch.backends.cpu.get_cpu_capability().lower()  # torch reads the variable too
    assert capability == (best if best in ISAS else "default")


def test_public_names():
    wanted = {
        "ALiBiAttention",
        "RotaryPositionalEmbedding",
        "SinusoidalPositionalEncoding",
        "__version__",
        "add_alibi",
        "add_sinusoidal",
        "alibi_bias",
        "alibi_row_bias",
        "alibi_slopes",
        "alibi_softmax",
        "apply_rope",
        "half_to_interleaved",
        "interleaved_to_half",
        "rope",
        "rope_frequencies",
        "rope_table",
        "sinusoidal_table",
    }
    assert wanted <= set(posenc_ext.__all__)
    assert len(set(posenc_ext.__all__)) == len(posenc_ext.__all__)
    for name in posenc_ext.__all__:
        value = getattr(posenc_ext, name)
        assert isinstance(value, str) or value.__doc__, f"{name} has no docstring"
        assert not name.startswith("_") or name == "__version__"


def test_help_lists_every_name_in_one_line():
    lines = posenc_ext.__doc__.splitlines()
    for name in set(posenc_ext.__all__) - {"__version__"}:
        assert sum(line.startswith(f"{name} ") for line in lines) == 1, name
    assert max(map(len, lines)) < 180


def test_nn_has_every_module():
    modules = [
        name
        for name in posenc_ext.__all__
        if isinstance(getattr(posenc_ext, name), type)
        and issubclass(getattr(posenc_ext, name), torch.nn.Module)
    ]
    assert sorted(posenc_ext.nn.__all__) == sorted(modules)
    assert all(getattr(posenc_ext.nn, name) is getattr(posenc_ext, name) for name in modules)


def test_no_module_is_shadowed():
    for name in MODULES:
        parent, _, leaf = name.rpartition(".")
        module = importlib.import_module(name)
        assert getattr(importlib.import_module(parent), leaf, module) is module


def test_version_is_one():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", posenc_ext.__version__)
    info = posenc_ext._C.build_info()
    assert info["version"] == posenc_ext.__version__
    try:
        installed = importlib.metadata.version("posenc_ext")
    except importlib.metadata.PackageNotFoundError:
        installed = posenc_ext.__version__
    assert installed == posenc_ext.__version__


def test_without_a_native_module_the_reason_is_said(tmp_path):
    """As when Python finds the source folder before the installed package."""
    source = pathlib.Path(posenc_ext.__file__).parent
    shutil.copytree(source, tmp_path / "posenc_ext", ignore=shutil.ignore_patterns("_C*", "__py*"))
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    # An editable install finds its _C from anywhere.
    code = "import sys; sys.meta_path = [f for f in sys.meta_path if 'ditable' not in str(f)]"
    command = [sys.executable, "-c", f"{code}; import posenc_ext"]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode != 0
    assert "ImportError: posenc_ext has no native module here" in result.stderr


def test_build_info():
    info = posenc_ext._C.build_info()
    assert set(info) >= {"torch", "cuda", "openmp", "version"}
    assert info["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert isinstance(info["openmp"], bool)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


RESULTS = {"RopeFrequencies", "XPosTable"}  # named tuples, shown by the functions that return them


@pytest.mark.parametrize("name", sorted(set(posenc_ext.__all__) - RESULTS - {"__version__"}))
def test_public_names_show_an_example(name):
    assert doctest.DocTestParser().get_examples(getattr(posenc_ext, name).__doc__)
