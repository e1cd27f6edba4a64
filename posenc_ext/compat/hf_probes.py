"""Which rotation a function does, found by calling it with small inputs.

A form is accepted if it gives the same bits in float32 in every kind of call that the function
takes: with more channels than the tables have, with either axis for the heads, with one table or
one for each batch entry, with and without k. Kinds of calls that it does not take stay its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .hf_calls import Function, Signature, innermost, signatures
from .hf_rotations import FORMS, Form, Kind, Rotation, in_rows, layout_of, rotate

D = 16
SIZES = ((2, 3, 1, 4), (3, 1, 2, 5), (1, 2, 2, 3), (2, 2, 2, 2), (2, 3, 1, 1))  # B, Hq, Hk, S
WIDTHS = {False: (D,), True: (8, 4, 12)}  # R where all channels are turned, or a part
PAIRS = ((torch.float32, torch.float32), (torch.float64, torch.float64),
         (torch.float64, torch.float32), (torch.bfloat16, torch.bfloat16),
         (torch.bfloat16, torch.float32), (torch.float16, torch.float16),
         (torch.float16, torch.float32))  # fmt: skip
Given = dict[str, Any]


class Found(NamedTuple):
    """What trying one form has shown."""

    form: Form
    kinds: dict[Kind, int]  # same bits, with the heads at this axis
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
    nearest = None
    for signature in usual:
        for form in FORMS:
            if (form.tables == "complex") == ("sin" in signature.roles.values()):
                continue
            found = _try(function, signature, form)
            if found.kinds and not found.differs:
                return _finish(function, signature, found)
            if nearest is None or _score(found) > _score(nearest):
                nearest = found
    assert nearest is not None  # there are forms
    if nearest.differs:
        return f"gives other results than {nearest.form}: {nearest.differs[0]}"
    return f"was called and raised each time, first {nearest.raised}"


def _score(found: Found) -> tuple[int, int]:
    return len(found.kinds), -len(found.differs) if found.differs else -1000


def _try(function: Function, signature: Signature, form: Form) -> Found:
    kinds: dict[Kind, int] = {}
    differs: list[str] = []
    raised = ""
    for kind, axes in _kinds(signature):
        outcomes = []
        for heads in axes:
            outcome = _compare_kind(function, signature, form, kind, heads)
            if outcome == "":
                kinds[kind] = heads
                break
            outcomes.append(outcome)
        else:
            other = [outcome for outcome in outcomes if isinstance(outcome, str)]
            if not other:
                raised = raised or f"{type(outcomes[0]).__name__}: {outcomes[0]}"
            else:
                differs.append(other[0])
                if not kinds:  # not even near
                    break
    return Found(form, kinds, differs, raised)


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


def _compare_kind(
    function: Function, signature: Signature, form: Form, kind: Kind, heads: int
) -> str | Exception:
    """Empty if all results are the same bits, else where not, or what was raised."""
    widths = itertools.cycle(WIDTHS[kind.partial])
    sizes = [size for size in SIZES if kind.shared or size[0] > 1]
    for number, (size, width) in enumerate(zip([*sizes, *sizes[:1]], widths)):  # noqa: B905
        strided = number == len(sizes)
        given = arguments(form, signature, kind, heads, size, width, strided=strided)
        outcome = compare(function, signature, form, kind, heads, given)
        if outcome != "" and not (strided and isinstance(outcome, Exception)):
            return outcome
    return ""


def compare(
    function: Function, signature: Signature, form: Form, kind: Kind, heads: int, given: Given
) -> str | Exception:
    kept = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
    with torch.no_grad():
        try:
            theirs = signature.call(function, **given)
        except Exception as exception:  # whatever code of others raises: it takes no such call
            return exception
        ours = expected(form, kind, heads, given)
    if any(not torch.equal(given[name], x) for name, x in kept.items()):
        return "it writes into its arguments"
    results = tuple(theirs) if type(theirs) is tuple else (theirs,)
    if len(results) == 2 and results[1] is None and kind.alone:
        results = results[:1]
    if len(results) != len(ours) or not all(isinstance(x, Tensor) for x in results):
        return f"it returns {type(theirs).__name__} of {len(results)}, not {len(ours)} tensors"
    for name, mine, right in zip("qk", ours, results, strict=False):
        if mine.shape != right.shape:  # it has broadcast: these tables do not fit it
            return ValueError(f"{name} of shape {list(right.shape)} for {list(mine.shape)}")
        where = _where(mine, right)
        if where:
            q, cos = given["q"], given["cos"]
            return f"{name} {where}, for q {list(q.shape)} {_dtype(q)} and cos {list(cos.shape)}"
    return ""


def _where(mine: Tensor, right: Tensor) -> str:
    """How two results differ."""
    if mine.dtype != right.dtype:
        return f"is {_dtype(right)}, not {_dtype(mine)}"
    if torch.equal(mine, right):
        return ""
    channels = (mine != right).flatten(0, -2).any(0).nonzero().flatten().tolist()
    return f"differs in channels {', '.join(map(str, channels))}"


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def expected(form: Form, kind: Kind, heads: int, given: Given) -> tuple[Tensor, ...]:
    cos, sin = (None if t is None else in_rows(t, kind.tables) for t in
                (given["cos"], given.get("sin")))  # fmt: skip
    q = given["q"]
    results = rotate("patch", form, layout_of(q, heads), q, given.get("k"), cos, sin)  # type: ignore[arg-type]
    return results[:1] if kind.alone else results  # type: ignore[return-value]


@functools.cache
def _values(dtype: torch.dtype) -> Tensor:
    """Random ones between -1 and 1."""
    generator = torch.Generator("cpu").manual_seed(0)
    values = torch.rand(4096, generator=generator, dtype=torch.float64, device="cpu")
    return (2 * values - 1).to(dtype)


def arguments(
    form: Form,
    signature: Signature,
    kind: Kind,
    heads: int,
    size: tuple[int, int, int, int],
    width: int,
    *,
    dtypes: tuple[torch.dtype, torch.dtype] = PAIRS[0],
    strided: bool = False,
    tied: bool = True,
    prefix: int = 0,
) -> Given:
    """Arguments of one kind, by their roles; tables for `width` of D channels."""
    batch, q_heads, k_heads, tokens = size
    start = itertools.count(tokens, 97)  # every tensor has values of its own

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        step = 2 if strided else 1
        wide = (*shape[:-1], step * shape[-1])
        first = next(start)
        return _values(dtype)[first : first + math.prod(wide)].clone().view(wide)[..., ::step]

    def heads_of(count: int) -> Tensor:
        shape = (
            [batch, tokens + prefix, count, D]
            if heads == -2
            else [batch, count, tokens + prefix, D]
        )
        if strided and heads == -3:
            shape[1:3] = shape[2:0:-1]
        x = random(*shape, dtype=dtypes[0])
        x = x.transpose(1, 2) if strided and heads == -3 else x
        return x if kind.rank == 4 else x[0]

    def table() -> Tensor:
        rows = 1 if kind.shared else batch
        columns = width if form.full_width and not tied else width // 2
        values = random(rows, tokens, columns, dtype=dtypes[1])
        if form.full_width and tied:
            values = (
                values.repeat_interleave(2, -1)
                if form.tables == "repeated"
                else values.repeat(1, 1, 2)
            )
        axes = {"sw": lambda t: t[0], "s1w": lambda t: t.transpose(0, 1), "bsw": lambda t: t,
                "bs1w": lambda t: t[:, :, None], "b1sw": lambda t: t[:, None]}  # fmt: skip
        return axes[kind.tables](values)

    given: Given = {"q": heads_of(q_heads), "cos": table()}
    if "k" in signature.roles.values():
        given["k"] = None if kind.alone else heads_of(k_heads)
    if form.tables == "complex":
        given["cos"] = torch.complex(given["cos"].float(), table().float())
    elif "sin" in signature.roles.values():
        given["sin"] = table()
    if kind.axis is not None:
        given["axis"] = kind.axis
    return given


def _finish(function: Function, signature: Signature, found: Found) -> Rotation | str:
    """What else must be known of a function before ours stands in for it."""
    form, (kind, heads) = found.form, next(iter(found.kinds.items()))
    exact = set()
    for dtypes in PAIRS:
        every = [
            arguments(form, signature, kind, heads, size, D, dtypes=dtypes) for size in SIZES[:2]
        ]
        if all(compare(function, signature, form, kind, heads, given) == "" for given in every):
            grads = _gradients(function, signature, form, kind, heads, every[0])
            if grads and torch.equal(*grads):
                exact.add((dtypes[0], every[0]["cos"].dtype))
    near = _near(function, signature, form, kind, heads)
    if near:
        return near
    tied = form.full_width and any(
        compare(function, signature, form, k, h,
                arguments(form, signature, k, h, SIZES[0], WIDTHS[k.partial][0], tied=False))
        for k, h in found.kinds.items()
    )  # fmt: skip
    prefixed = [
        kind for kind, heads in found.kinds.items()
        if kind.axis is None and all(
            compare(function, signature, form, kind, heads,
                    arguments(form, signature, kind, heads, size, width, prefix=2)) == ""
            for size in SIZES[:2] for width in WIDTHS[kind.partial])
    ]  # fmt: skip
    given = arguments(form, signature, kind, heads, SIZES[0], D)
    ids = torch.arange(SIZES[0][3], device="cpu").flip(0).expand(SIZES[0][0], -1)
    reads_ids = "ids" in signature.roles.values() and (
        compare(function, signature, form, kind, heads, {**given, "ids": ids}) != ""
    )
    alone = next((k for k in found.kinds if k.alone and not kind.alone), None)
    pair = alone is not None and isinstance(signature.call(function, **{**given, "k": None}), tuple)
    return Rotation(
        form, signature, found.kinds, frozenset(prefixed), frozenset(exact), tied, pair, reads_ids
    )


def _near(function: Function, signature: Signature, form: Form, kind: Kind, heads: int) -> str:
    """Why half precision, or the gradient, is not that of this rotation."""
    for dtype in (torch.bfloat16, torch.float16):
        given = arguments(form, signature, kind, heads, SIZES[0], D, dtypes=(dtype, dtype))
        try:
            theirs = signature.call(function, **given)
        except Exception:  # it takes no such call
            continue
        results = theirs if isinstance(theirs, tuple) else (theirs,)
        for name, mine, right in zip(
            "qk", expected(form, kind, heads, given), results, strict=False
        ):
            if right.shape != mine.shape or not torch.allclose(
                mine.float(), right.float(), atol=0.03
            ):
                return f"gives other results than {form} in {_dtype(given['q'])} {name}"
    given = arguments(form, signature, kind, heads, SIZES[0], D)
    grads = _gradients(function, signature, form, kind, heads, given)
    if not grads:
        return "does not pass on the gradient of q"
    return "" if torch.allclose(*grads) else f"has another gradient than {form}"


def _gradients(
    function: Function, signature: Signature, form: Form, kind: Kind, heads: int, given: Given
) -> tuple[Tensor, Tensor] | None:
    """Theirs and ours of q, None if theirs has none."""
    q = given["q"].requires_grad_()
    grads = []
    for outcome in (signature.call(function, **given), expected(form, kind, heads, given)):
        result = outcome[0] if isinstance(outcome, tuple) else outcome
        if not result.requires_grad:
            return None
        weights = _values(result.dtype)[: q.numel()].view(q.shape)
        grads += torch.autograd.grad(result, q, weights)
    return grads[0], grads[1]
