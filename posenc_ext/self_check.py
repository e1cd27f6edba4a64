"""What ``python -m posenc_ext check`` runs: each op, in each dtype and on each device, beside its
formula. The formulas are in :mod:`posenc_ext.op_checks`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import posenc_ext

from .arguments import DTYPES
from .op_checks import CHECKS, Case


class Result(NamedTuple):
    """The largest error of an op, in units of eps times the largest value, and what it may be."""

    op: str
    case: Case
    error: float
    bound: float
    problem: str | None = None  # the op raised this

    @property
    def passed(self) -> bool:
        return self.error <= self.bound  # False for nan


def run() -> Iterator[Result]:
    """Check one op after another, in each dtype, on the CPU and on CUDA if there is one."""
    devices = [torch.device("cpu")]
    if posenc_ext._C.build_info()["cuda"] and torch.cuda.is_available():
        devices.append(torch.device("cuda"))
    for op, (check, bound) in CHECKS.items():
        for case in (Case(dtype, device) for device in devices for dtype in DTYPES):
            try:
                errors = [error_of(got, want, case.dtype) for got, want in check(case)]
            except Exception as problem:  # the other ops are checked all the same
                yield Result(op, case, math.inf, bound, f"{type(problem).__name__}: {problem}")
            else:
                yield Result(op, case, max(errors, key=lambda e: math.inf if e != e else e), bound)


def error_of(got: Tensor, want: Tensor, dtype: torch.dtype) -> float:
    """max |got - want| in units of eps * max |want|; infinite where infinities or shapes differ."""
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    finite = want.isfinite()
    if got.shape != want.shape or not torch.equal(got[~finite], want[~finite]):
        return math.inf
    difference = (got - want)[finite].abs().max() / want[finite].abs().max()
    return difference.item() / torch.finfo(dtype).eps
