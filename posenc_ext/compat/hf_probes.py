"""Which rotation a function does, found by calling it with small inputs.

A form is accepted if it gives the same bits in float32 in every kind of call that the function
takes: with more channels than the tables have, with either axis for the heads, with one table or
one for each batch entry, with and without k. Kinds of calls that it does not take stay its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .hf_calls import Function, Signature, innermost, signatures
from .hf_rotations import FORMS, Form, Kind, Rotation
from .hf_trials import FLOATS, SIZES, WIDTHS, Trial
from .tables import HALF_DTYPES

PAIRS = (FLOATS, (torch.float64, torch.float64), (torch.float64, torch.float32),
         *((half, table) for half in HALF_DTYPES for table in (half, torch.float32)))  # fmt: skip


class Found(NamedTuple):
    """What trying one form has shown."""

    form: Form
    same: list[Trial]  # the kinds of calls with the same bits
    differs: list[str]  # where the results differ
    raised: str  # the first exception


def recognize(function: Function) -> Rotation | str:
    """The rotation that gives the bits of `function`, or why none here does."""
    usual = signatures(function)
    if isinstance(usual, str):
        return f"was not called, since it {usual}"
    with torch.inference_mode(False), torch.enable_grad():
        return _recognize(innermost(function), usual)


def _recognize(function: Function, usual: tuple[Signature, ...]) -> Rotation | str:
    nearest: Found | None = None
    for signature in usual:
        for form in FORMS:
            if (form.tables == "complex") == ("sin" in signature.roles.values()):
                continue
            found = _try(function, signature, form)
            if found.same and not found.differs:
                return _finish(signature, found)
            if nearest is None or _score(found) > _score(nearest):
                nearest = found
    assert nearest is not None  # there are forms for each signature
    if nearest.differs:
        return f"gives other results than {nearest.form}: {nearest.differs[0]}"
    return f"was called and raised each time, first {nearest.raised}"


def _score(found: Found) -> tuple[int, int]:
    return len(found.same), -len(found.differs) if found.differs else -1000


def _try(function: Function, signature: Signature, form: Form) -> Found:
    same: list[Trial] = []
    differs: list[str] = []
    raised = ""
    for kind, axes in _kinds(signature):
        outcomes = []
        for heads in axes:
            trial = Trial(function, signature, form, kind, heads)
            outcome = _compare(trial)
            if outcome == "":
                same.append(trial)
                break
            outcomes.append(outcome)
        else:
            other = [outcome for outcome in outcomes if isinstance(outcome, str)]
            if not other:
                raised = raised or f"{type(outcomes[0]).__name__}: {outcomes[0]}"
            else:
                differs.append(other[0])
                if not same:  # not even near
                    break
    return Found(form, same, differs, raised)


def _kinds(signature: Signature) -> Iterator[tuple[Kind, tuple[int, ...]]]:
    """Each with the axes that the heads may have there."""
    roles = signature.roles.values()
    alone = [False, True] if "k" in roles else [True]
    tables = [(4, "bsw"), (4, "sw"), (3, "sw")]
    if "axis" not in roles:
        tables += [(4, "s1w"), (3, "s1w"), (4, "bs1w"), (4, "b1sw")]
    for partial, (rank, axes), single in itertools.product((False, True), tables, alone):
        for shared in (False, True) if axes[0] == "b" else (True,):
            yield Kind(rank, axes, shared, None, single, partial), (-2, -3)
            if "axis" in roles:
                for heads in (-2, -3):
                    for axis in (heads, len(axes) + 1 + heads):
                        yield Kind(rank, axes, shared, axis, single, partial), (heads,)


def _compare(trial: Trial) -> str | Exception:
    """In all sizes, and once with gaps between the channels, which a function may refuse. What it
    gives in some sizes only, because they happen to broadcast, is no kind of call that it takes."""
    widths = itertools.cycle(WIDTHS[trial.kind.partial])
    sizes = [size for size in SIZES if trial.kind.shared or size[0] > 1]
    found = ""
    for number, (size, width) in enumerate(zip([*sizes, *sizes[:1]], widths)):  # noqa: B905
        strided = number == len(sizes)
        outcome = trial.compare(trial.arguments(size, width, strided=strided))
        if isinstance(outcome, Exception) and not strided:
            return outcome
        found = found or ("" if isinstance(outcome, Exception) else outcome)
    return found


def _finish(signature: Signature, found: Found) -> Rotation | str:
    """What else must be known of a function before ours stands in for it."""
    first = found.same[0]
    why = _far(first)
    if why:
        return why
    tied = found.form.full_width and any(
        trial.compare(trial.arguments(width=WIDTHS[trial.kind.partial][0], tied=False))
        for trial in found.same
    )
    alone = [trial for trial in found.same if trial.kind.alone and "k" in signature.places]
    pair = bool(alone) and isinstance(alone[0].theirs(alone[0].arguments()), tuple)
    ids = torch.arange(SIZES[0][3], device="cpu").flip(0).expand(SIZES[0][0], -1)
    reads_ids = "ids" in signature.roles.values() and (
        first.compare({**first.arguments(), "ids": ids}) != ""
    )
    return Rotation(
        found.form,
        signature,
        kinds={trial.kind: trial.heads for trial in found.same},
        prefixed=frozenset(trial.kind for trial in found.same if _keeps_prefix(trial)),
        exact=frozenset(_exact(first)),
        tied=tied,
        pair=pair,
        reads_ids=reads_ids,
    )


def _far(trial: Trial) -> str:
    """Why half precision, or the gradient, is not that of this rotation."""
    for dtype in HALF_DTYPES:
        given = trial.arguments(dtypes=(dtype, dtype))
        if isinstance(trial.compare(given), Exception):
            continue  # it takes no such call
        theirs = trial.theirs(given)
        results = theirs if isinstance(theirs, tuple) else (theirs,)
        for name, mine, right in zip("qk", trial.ours(given), results, strict=False):
            if not torch.allclose(mine.float(), right.float(), atol=0.03):
                return f"gives other results than {trial.form} for {name} in {dtype}"
    grads = trial.gradients(trial.arguments())
    if not grads:
        return "does not pass on the gradients of q and k"
    return "" if torch.allclose(*grads) else f"has other gradients than {trial.form}"


def _exact(trial: Trial) -> Iterator[tuple[torch.dtype, torch.dtype]]:
    """The dtypes of q and tables in which results and gradients are the same bits."""
    if trial.form.tables == "complex":
        return
    for dtypes in PAIRS:
        every = [trial.arguments(size, dtypes=dtypes) for size in SIZES[:2]]
        if all(trial.compare(given) == "" for given in every):
            grads = trial.gradients(every[0])
            if grads and torch.equal(*grads):
                yield dtypes


def _keeps_prefix(trial: Trial) -> bool:
    """Whether the first tokens stay where there are more than the tables have rows."""
    return trial.kind.axis is None and all(
        trial.compare(trial.arguments(size, width, prefix=2)) == ""
        for size in SIZES[:2]
        for width in WIDTHS[trial.kind.partial]
    )
