"""The table of tests/pytorch_table.py: every cell passes, or is refused by name."""

import re

import pytest
import torch
from onnx_run import close
from pytorch_table import (
    CASES,
    COLUMNS,
    PAGE,
    REFUSED,
    Calls,
    assert_equal,
    inputs_of,
    onnx_results,
    packages,
    page,
    render,
    several,
    value_and_grads,
)

from posenc_ext import kept


@pytest.mark.parametrize("column", [c for c, check in COLUMNS.items() if check])
@pytest.mark.parametrize("name", CASES)
def test_cell(name, column):
    check = COLUMNS[column]
    if (name, column) in REFUSED:
        with pytest.raises(NotImplementedError, match=re.escape(REFUSED[name, column])):
            check(CASES[name])
    else:
        check(CASES[name])


@pytest.fixture(scope="module")
def packaged():
    return packages()


@pytest.mark.parametrize("name", CASES)
def test_aot_inductor(name, packaged):
    actual, right = packaged[name]
    assert_equal(actual, tuple(several(right)))


@pytest.fixture(scope="module", params=[torch.float32, torch.float16], ids=str)
def in_onnxruntime(request):
    return onnx_results(request.param)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_onnx(name, in_onnxruntime):
    for results in in_onnxruntime:
        for actual, right in zip(*results[name], strict=True):
            close(actual, right)


def test_the_table_in_the_docs_is_this_one():
    assert set(REFUSED) <= {(name, column) for name in CASES for column in COLUMNS}
    assert render() in PAGE.read_text()
    assert page(PAGE.read_text()) == PAGE.read_text()


def test_every_native_op_is_reached_from_a_row(monkeypatch):
    monkeypatch.setattr(kept, "_constants", {})  # frequencies are made once
    registered = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("posenc_ext::")}
    reached = set()
    for case in CASES.values():
        with Calls() as calls:
            value_and_grads(case.function, inputs_of(case, grad=True))
        reached |= {op.name() for op in calls.made}
    # Not differentiable, or called without a gradient only. They have tests of their own.
    written = {"rope_out", "norm_rope_out", "norm_rope_", "norm_rope_grad", "qk_norm_rope_",
               "apply_rope_cache", "apply_rope_cache_"}  # fmt: skip
    assert registered - reached == {f"posenc_ext::{name}" for name in written}
