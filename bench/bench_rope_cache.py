"""Rotation with the write into a cache, against the rotation alone and the separate writes."""

from collections.abc import Iterator

import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, WrongResult, at_most, faster, time_in_turns
from .rope_case import DTYPES, EVERY_STEP, RopeCase

LENGTH, PAGE, POSITION = 4096, 16, 1234


def decode(settings: Settings) -> Iterator[Row]:
    """One token: q (1, 1, 32, 128), k and v (1, 1, 8, 128)."""
    for dtype in DTYPES:
        yield from one_token(dtype, settings)


def one_token(dtype: torch.dtype, settings: Settings) -> Iterator[Row]:
    case = RopeCase((1, 1, 32, 128), dtype)
    q, k, v = case.q, case.k, case.k.flip(-1).contiguous()
    cos, sin = posenc_ext.rope_table(LENGTH, posenc_ext.rope_frequencies(128).inv_freq)
    case.set_tables(cos[POSITION : POSITION + 1], sin[POSITION : POSITION + 1])
    shape = (1, LENGTH, *k.shape[2:])
    caches = [torch.zeros(shape, dtype=dtype) for _ in range(4)]
    pages = [t.view(LENGTH // PAGE, PAGE, *k.shape[2:]) for t in caches[:2]]
    eight = [torch.zeros(t.shape, dtype=torch.float8_e4m3fn) for t in pages]
    index = torch.tensor([POSITION])

    def ours() -> Tensor:
        return posenc_ext.apply_rope_cache(q, k, v, *caches[:2], cos, sin, offset=POSITION)

    def paged() -> Tensor:
        return posenc_ext.apply_rope_cache(q, k, v, *pages, cos, sin, offset=POSITION, slots=index)

    def float8() -> Tensor:
        return posenc_ext.apply_rope_cache(q, k, v, *eight, cos, sin, offset=POSITION, slots=index)

    def alone() -> tuple[Tensor, Tensor | None]:
        return posenc_ext.apply_rope(q, k, cos, sin, offset=POSITION)

    def written(q_out: Tensor, k_out: Tensor) -> Tensor:
        caches[2].index_copy_(1, index, k_out)
        caches[3].index_copy_(1, index, v)
        return q_out

    contestants = {
        "ours": ours,
        "paged": paged,
        "float8, paged": float8,
        "apply_rope alone": alone,
        "apply_rope and two index_copy_": lambda: written(*alone()),
        "eager and two index_copy_": lambda: written(*case.eager()),
    }
    case.check_pair("eager of one token", case.eager, EVERY_STEP)
    case.check("apply_rope_cache", q, ours())
    written(*alone())
    for name, a, b in zip(("keys", "values"), caches[:2], caches[2:], strict=True):
        if not torch.equal(a, b):
            raise WrongResult(f"apply_rope_cache: {name} differ from those of index_copy_")
    calls = 20 if settings.quick else 500
    times = time_in_turns(contestants, settings, calls=calls)
    label = f"decode into a cache, {case.label}"
    for kind in ("ours", "paged", "float8, paged"):
        name = label if kind == "ours" else f"{label}, {kind}"
        yield at_most(name, times[kind], times["apply_rope alone"], "apply_rope alone", 1.6)
    peer = "eager and two index_copy_"
    yield faster(label, times["ours"], times[peer], peer, 6)
    peer = "apply_rope and two index_copy_"
    yield faster(label, times["ours"], times[peer], peer, 1.5)


def prefill(settings: Settings) -> Iterator[Row]:
    """Many tokens into pages, against rotation in place and index_copy_ of keys and values."""
    batch, length = settings.shape[:2]
    for dtype in DTYPES:
        case = RopeCase(settings.shape, dtype)
        q, k, v = case.q.clone(), case.k, case.k.flip(-1).contiguous()
        slots = torch.randperm(batch * length // PAGE)[:, None] * PAGE + torch.arange(PAGE)
        slots = slots.flatten()
        pages = [
            torch.zeros(batch * length // PAGE, PAGE, *k.shape[2:], dtype=dtype) for _ in "kvkv"
        ]
        other = k.clone()

        def ours(q: Tensor = q, k: Tensor = k, v: Tensor = v, case: RopeCase = case,
                 pages: list[Tensor] = pages, slots: Tensor = slots) -> Tensor:  # fmt: skip
            return posenc_ext.apply_rope_cache(
                q, k, v, *pages[:2], case.cos, case.sin, slots=slots, inplace=True
            )

        def apart(q: Tensor = q, k: Tensor = other, v: Tensor = v, case: RopeCase = case,
                  pages: list[Tensor] = pages, slots: Tensor = slots) -> None:  # fmt: skip
            posenc_ext.apply_rope(q, k, case.cos, case.sin, inplace=True)
            for page, t in zip(pages[2:], (k, v), strict=True):
                page.flatten(0, 1).index_copy_(0, slots, t.flatten(0, 1))

        ours()
        apart()
        if not all(torch.equal(a, b) for a, b in zip(pages[:2], pages[2:], strict=True)):
            raise WrongResult("apply_rope_cache: pages differ from those of index_copy_")
        times = time_in_turns({"ours": ours, "apart": apart}, settings)
        yield faster(f"prefill into pages, {case.label}", times["ours"], times["apart"],
                     "apply_rope and two index_copy_", 1)  # fmt: skip
