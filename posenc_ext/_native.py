"""Loads the native module `_C`, or says in one sentence why it does not load."""

from __future__ import annotations

import importlib.metadata
import os.path
import re

import torch


def _public(version: str) -> str:
    """2.13.0+cpu and 2.13.0+cu130 have one binary interface."""
    return version.partition("+")[0]


def _sentence(built: str) -> str:
    return (
        f"posenc_ext was built for torch {built}, but torch {torch.__version__} is installed: "
        "reinstall posenc_ext to build it against this one."
    )


def _built_for() -> str:
    """The torch that the installed package asks for; used when `_C` cannot be loaded to tell."""
    try:
        requirements = importlib.metadata.requires("posenc_ext") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    for requirement in requirements:
        if match := re.match(r"torch\s*==\s*([\w.]+)", requirement):
            return match[1]
    return "another version"


try:
    import posenc_ext._C as _C
except ModuleNotFoundError as error:
    raise ImportError(
        f"posenc_ext has no native module here, in {os.path.dirname(__file__)}: if this is the "
        "source folder and posenc_ext is installed, start Python from another folder; if it is "
        "not, `pip install .` builds it."
    ) from error
except ImportError as error:
    if _built_for() == _public(torch.__version__):
        raise
    raise ImportError(_sentence(_built_for())) from error

if _public(_C.build_info()["torch"]) != _public(torch.__version__):
    raise ImportError(_sentence(_C.build_info()["torch"]))

__all__ = ["_C"]
