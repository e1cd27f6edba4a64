"""RoPE against the limits of memory, of a Python call, and of one thread."""

from collections.abc import Iterator

import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, Skipped, at_most, faster, time_in_turns
from .rope_case import DTYPES, EVERY_STEP, RopeCase


def out_of_place(settings: Settings) -> Iterator[Row]:
    """`rope` into fresh memory against `clone`: both pay for the page faults of new pages."""
    for dtype in DTYPES:
        yield against_clone(RopeCase(settings.shape, dtype), settings)


def against_clone(case: RopeCase, settings: Settings) -> Row:
    x = case.q
    case.check("rope", x, posenc_ext.rope(x, case.cos, case.sin))
    times = time_in_turns(
        {"ours": lambda: posenc_ext.rope(x, case.cos, case.sin), "clone": x.clone}, settings
    )
    name = f"rope out of place, {case.label}"
    return at_most(name, times["ours"], times["clone"], "clone", 1.15, bytes=2 * x.nbytes)


def prepared(settings: Settings) -> Iterator[Row]:
    """`out=` and in place against `copy_` into a prepared tensor: no new pages."""
    for dtype in DTYPES:
        case = RopeCase(settings.shape, dtype)
        yield out_against_copy(case, settings)
        yield in_place_against_copy(case, settings)


def out_against_copy(case: RopeCase, settings: Settings) -> Row:
    x, out = case.q, torch.zeros_like(case.q)
    case.check("rope out=", x, posenc_ext.rope(x, case.cos, case.sin, out=out))
    times = time_in_turns(
        {
            "ours": lambda: posenc_ext.rope(x, case.cos, case.sin, out=out),
            "copy_": lambda: out.copy_(x),
        },
        settings,
    )
    name = f"rope out=, {case.label}"
    return at_most(name, times["ours"], times["copy_"], "copy_", 1.15, bytes=2 * x.nbytes)


def in_place_against_copy(case: RopeCase, settings: Settings) -> Row:
    """The copy reads and writes as many bytes as the rotation in place does."""
    q, k = case.q.clone(), case.k.clone()
    case.check_pair("apply_rope inplace", lambda: case.ours(q, k, inplace=True))
    to_q, to_k = torch.zeros_like(q), torch.zeros_like(k)
    times = time_in_turns(
        {
            # Turning q and k on and on keeps their size, so the values stay ordinary.
            "ours": lambda: case.ours(q, k, inplace=True),
            "copy_": lambda: (to_q.copy_(case.q), to_k.copy_(case.k)),
        },
        settings,
    )
    name, moved = f"apply_rope in place, {case.label}", 2 * (q.nbytes + k.nbytes)
    return at_most(name, times["ours"], times["copy_"], "copy_", 1.15, bytes=moved)


def decode(settings: Settings) -> Iterator[Row]:
    """One token: q (1, 1, 32, 128) and k (1, 1, 8, 128), where the call itself is the cost."""
    for dtype in DTYPES:
        yield from one_token(dtype, settings)


def one_token(dtype: torch.dtype, settings: Settings) -> Iterator[Row]:
    position, head_dim = 1234, 128
    case = RopeCase((1, 1, 32, head_dim), dtype)
    frequencies = posenc_ext.rope_frequencies(head_dim)
    cos, sin = posenc_ext.rope_table(4096, frequencies.inv_freq)
    # Eager is handed the wide row of its position, which a model makes once for all layers.
    case.set_tables(cos[position : position + 1], sin[position : position + 1])

    def ours() -> tuple[Tensor, Tensor]:
        return posenc_ext.apply_rope(case.q, case.k, cos, sin, offset=position)

    case.check_pair("apply_rope of one token", ours)
    case.check_pair("eager of one token", case.eager, EVERY_STEP)
    calls = 20 if settings.quick else 500
    times = time_in_turns({"ours": ours, "eager": case.eager}, settings, calls=calls)
    name = f"decode, q and k of one token, {case.label}"
    yield at_most(name, times["ours"], 8e-6, "fixed", 1)
    yield faster(name, times["ours"], times["eager"], "eager", 6)


def threads(settings: Settings) -> Iterator[Row]:
    """Two threads against one, in place on 4 MB, which stay in cache."""
    before = torch.get_num_threads()
    if before < 2:
        raise Skipped("torch runs on one thread here")
    case = RopeCase((1, 256, 32, 128), torch.float32)
    x = case.q.clone()
    case.check("rope in cache", case.q, posenc_ext.rope(x, case.cos, case.sin, inplace=True))
    calls = 20

    def run(count: int) -> None:
        torch.set_num_threads(count)
        for _ in range(calls):
            posenc_ext.rope(x, case.cos, case.sin, inplace=True)

    try:
        turns = time_in_turns({"two": lambda: run(2), "one": lambda: run(1)}, settings)
    finally:
        torch.set_num_threads(before)
    two, one = turns["two"] / calls, turns["one"] / calls
    name = f"rope in place, 2 threads, {case.label}, 4 MB"
    yield faster(name, two, one, "1 thread", 1.7, bytes=2 * x.nbytes)
