"""What is under test, the device fixture, and a count of what ran on CUDA."""

import importlib.metadata
import json
import os
import pathlib
import re
import sys
import types

import pytest
import torch

import posenc_ext

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.Path(posenc_ext.__file__).resolve().parent
CUDA = torch.cuda.is_available() and bool(posenc_ext._C.build_info()["cuda"])
# CI runs the suite under several instruction sets and builds. In all runs but one POSENC_TESTS
# names what is left out, so that each fact is tested once:
#   again    tests that neither another build of the module nor another torch can change;
#   kernels  besides, tests that no row kernel can change: of errors, transforms, compilation and
#            modules, and those that start a process for each instruction set themselves.
ONCE = (
    "test_attention_memory",
    "test_attention_modules",
    "test_attention_transformers",
    "test_build_backend",
    "test_compat",
    "test_config",
    "test_context_parallel",
    "test_distributed",
    "test_doc",
    "test_examples",
    "test_export",
    "test_formulas",
    "test_fuzz",
    "test_interrupts",
    "test_known_failures",
    "test_onnx",
    "test_package_known",
    "test_plot",
    "test_position_ids",
    "test_pytorch_table",
    "test_rope_frequencies_hf",
    "test_rotary_configs",
    "test_rotary_published",
    "test_rotary_transformers",
    "test_systems",
    "test_threads",
    "test_transformers_table",
)
NO_KERNELS = (
    "test_alibi_attention",
    "test_alibi_errors",
    "test_alibi_ops",
    "test_attention",
    "test_build",
    "test_learned",
    "test_main",
    "test_package",
    "test_permute",
    "test_pytorch_life",
    "test_relative_index",
    "test_roberta",
    "test_rope_errors",
    "test_rope_frequencies",
    "test_rope_ops",
    "test_rotary",
    "test_sinusoidal_errors",
    "test_sinusoidal_ops",
    "test_transforms",
    "test_vmap",
)
LEFT_OUT = {None: (), "all": (), "again": ONCE, "kernels": ONCE + NO_KERNELS}
FAIL_WITHOUT_CUDA = os.environ.get("FAIL_WITHOUT_CUDA", "0") not in ("", "0")


def installed_elsewhere():
    """The folder of an installed, non-editable posenc_ext other than the one imported, or None."""
    path = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != ROOT]
    for dist in importlib.metadata.distributions(name="posenc_ext", path=path):
        if (
            json.loads(dist.read_text("direct_url.json") or "{}")
            .get("dir_info", {})
            .get("editable")
        ):
            return None
        folder = pathlib.Path(dist.locate_file("posenc_ext")).resolve()
        return folder if folder.is_dir() and folder != PACKAGE else None
    return None


def pytest_configure(config):
    config.addinivalue_line("markers", "cuda: needs a GPU and a build with CUDA")
    # What torch's own forward-mode decompositions, dynamo and export do to themselves.
    for message in (
        ".torch.jit.script. is deprecated",
        ".*Function.* should not be instantiated",
        ".isinstance.treespec, LeafSpec.. is deprecated",
    ):
        for kind in ("DeprecationWarning", "FutureWarning"):
            config.addinivalue_line("filterwarnings", f"ignore:{message}:{kind}")
    other = installed_elsewhere()
    if PACKAGE == ROOT / "posenc_ext" and other and "POSENC_MODULE_DIR" not in os.environ:
        pytest.exit(
            f"posenc_ext was imported from the source tree although it is installed in {other}; "
            "run `pytest`, not `python -m pytest`, or unset PYTHONPATH",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def pytest_report_header():
    return [
        f"posenc_ext {posenc_ext.__version__}: {PACKAGE}",
        f"_C: {posenc_ext._C.__file__}",
        f"cpu capability: {posenc_ext._C.cpu_capability()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, CUDA tests: {'run' if CUDA else 'skipped'}",
    ]


def pytest_collection_modifyitems(config, items):
    names = LEFT_OUT[os.environ.get("POSENC_TESTS")]
    if not names:
        return
    kept, left_out = [], []
    for item in items:
        # Of the code around the rows, or of a process for each instruction set.
        around = re.search("instruction_sets|memory|compile", item.name)
        (left_out if around or item.path.name.startswith(names) else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.get_closest_marker("cuda") and not CUDA:
        if FAIL_WITHOUT_CUDA:
            pytest.fail("needs CUDA, and FAIL_WITHOUT_CUDA is set", pytrace=False)
        pytest.skip("needs CUDA")


def pytest_terminal_summary(terminalreporter):
    def on_cuda(outcome, when):
        reports = terminalreporter.stats.get(outcome, [])
        return sum("cuda" in r.keywords for r in reports if getattr(r, "when", None) == when)

    ran = on_cuda("passed", "call") + on_cuda("failed", "call")
    skipped = on_cuda("skipped", "setup")
    terminalreporter.write_line(f"CUDA: {ran} tests ran, {skipped} skipped for want of a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    return request.param


@pytest.fixture(scope="session")
def golden():
    return json.loads((ROOT / "tests" / "golden.json").read_text())


@pytest.fixture
def module():
    """A module of modeling code to patch."""
    from posenc_ext.compat.transformers import unpatch

    module = types.ModuleType("modeling_mine")
    yield module
    unpatch(module)


@pytest.fixture
def turns(monkeypatch):
    """A list that grows with each rotation by ours."""
    from posenc_ext.compat import hf_rotations

    made, rotate = [], hf_rotations.rotate
    monkeypatch.setattr(hf_rotations, "rotate", lambda *args: (made.append(args), rotate(*args))[1])
    return made
