"""Calls of apply_rope_cache, for the checks of dtensor_cases.py; CASES are those of every op."""

from typing import Any

import torch
from dtensor_cases import CASES as OTHERS
from dtensor_cases import B, Case, D, H, K, S, along, random, tables
from dtensor_norm_cases import NORM_CASES

import posenc_ext

AXES = {"q": "bshd", "k": "bshd", "v": "bshd"}


def cache_cases(inplace: bool) -> list[Case]:
    cases = []
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(0))[: B * S].view(B, S)
    for layout, more, axes in (
        ("blhd", {}, "bh"),
        ("bhld", {"window": 5}, "bh"),
        ("nphd", {"slots": slots}, "h"),
        ("nhpd", {"slots": slots.flatten()}, "h"),
    ):
        sizes = {"b": B, "l": 12, "n": 10, "p": 4, "h": K, "d": D}
        cache = random(*(sizes[axis] for axis in layout))
        xs = {"q": random(B, S, H, D), "k": random(B, S, K, D), "v": random(B, S, K, D) + 1}
        tensors = {**xs, "k_cache": cache, "v_cache": cache + 1, **tables(12)}
        names = {**AXES, "k_cache": layout, "v_cache": layout}

        def call(layout: str = layout, more: Any = more, **given: Any) -> Any:
            given |= {n: given[n].detach().clone() for n in ("q", "k_cache", "v_cache")}
            options = {**more, "cache_layout": layout, "inplace": inplace, "offset": 2}
            y = posenc_ext.apply_rope_cache(**given, **options)
            return y, given["k_cache"], given["v_cache"]

        ways, results = along(names, axes, ("bshd", layout, layout))
        cases.append(Case(call, tensors, ways, results))
    return cases


CASES = (
    OTHERS
    | NORM_CASES
    | {
        "apply_rope_cache": cache_cases(False),
        "apply_rope_cache_": cache_cases(True),
    }
)
