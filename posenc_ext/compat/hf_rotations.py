"""The rotations that modeling code in the style of Hugging Face defines, told apart by trying them.

Model families differ in which channels form a pair, how a table repeats its columns, and where they
round. What a function is called and where it stands says little about that; what it returns for a
small input says all of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..arguments import error
from ..ops.rope import apply_rope, rope
from ..types import Layout, Rounding

HALF_DTYPES = (torch.bfloat16, torch.float16)
Function = Callable[..., Any]


class Form(NamedTuple):
    """A rotation by the tables of Hugging Face code, ``[.., S, W]``."""

    tables: str  # "tiled" c0 c1 c0 c1, "repeated" c0 c0 c1 c1, "half" c0 c1
    interleaved: bool = False
    inverse: bool = False
    halved: bool = False  # reads interleaved pairs and writes halves

    def __str__(self) -> str:
        pairs = "interleaved" if self.interleaved or self.halved else "half"
        notes = [", inverse"] * self.inverse + [" written as halves"] * self.halved
        return f"{pairs} pairs{''.join(notes)}, {self.tables} tables"


FORMS = (
    Form("tiled"),  # LLaMA and most others
    Form("repeated", interleaved=True),  # Cohere
    Form("tiled", interleaved=True),  # GLM
    Form("half", interleaved=True),  # GPT-J
    Form("half"),  # gpt-oss
    Form("tiled", inverse=True),  # nanochat
    Form("tiled", halved=True),  # DeepSeek-V3
)


def rotate(
    op: str, form: Form, q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, unsqueeze_dim: int
) -> tuple[Tensor, Tensor | None]:
    """Rotate with tables ``[S, W]`` or ``[B | 1, S, W]`` that get an axis at `unsqueeze_dim` to
    line up with q and k."""
    layout = layout_of(op, q, cos, unsqueeze_dim)
    cos, sin = _half_width(op, form, cos), _half_width(op, form, sin)
    if cos.dim() == 2:  # as rows of one batch entry, so that their number must be S
        cos, sin = cos[None], sin[None]
    options: dict[str, Any] = {
        "interleaved": form.interleaved or form.halved,
        "interleaved_out": form.interleaved,
        "inverse": form.inverse,
    }
    if k is None:
        return rope(q, cos, sin, layout=layout, **options), None
    return apply_rope(q, k, cos, sin, layout=layout, **options)


def layout_of(op: str, q: Tensor, cos: Tensor, unsqueeze_dim: int) -> Layout:
    """Where the heads of q stand, from where its tables get an axis to broadcast over."""
    ranks = cos.dim() + 1
    heads = unsqueeze_dim - ranks if unsqueeze_dim >= 0 else unsqueeze_dim
    if cos.dim() not in (2, 3) or heads not in (-2, -3):
        raise error(
            ValueError,
            op,
            "unsqueeze_dim must put the axis of the heads before or after the tokens of cos, got "
            f"{unsqueeze_dim} with cos of shape {list(cos.shape)}",
        )
    layout = "b" * (q.dim() - 3) + ("shd" if heads == -2 else "hsd")
    return cast(Layout, layout)  # anything else is refused, as q of a wrong shape


def _half_width(op: str, form: Form, table: Tensor) -> Tensor:
    width = table.shape[-1]
    if form.tables == "half":
        return table
    if width % 2:
        raise error(ValueError, op, f"cos and sin must have an even number of columns, got {width}")
    return table[..., ::2] if form.tables == "repeated" else table[..., : width // 2]


def _pair(form: Form, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return rotate("apply_rotary_pos_emb", form, q, k, cos, sin, unsqueeze_dim)


def _pair_with_ids(
    form: Form, q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None, unsqueeze_dim: int = 1
) -> Any:
    return _pair(form, q, k, cos, sin, unsqueeze_dim)  # these do not read position_ids either


def _vision(form: Form, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return _pair(form, q, k, cos, sin, -2)


def _single(form: Form, x: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return rotate("apply_rotary_pos_emb", form, x, None, cos, sin, unsqueeze_dim)[0]


def _single_sin_first(form: Form, tensor: Any, sin: Any, cos: Any) -> Any:
    return _single(form, tensor, cos, sin, 2)


class ContiguousGradient(torch.autograd.Function):
    """The identity; the gradient becomes contiguous, as that of sums and of `cat` is. It keeps its
    values, but what adds it up later, as a norm of q does for its weight, adds in that order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


def contiguous_gradient(x: Any) -> Any:
    if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
        return ContiguousGradient.apply(x)
    return x


def _signature(function: Function) -> tuple[tuple[str, Any, Any], ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple((p.name, p.kind, p.default) for p in parameters)


CALLS = {_signature(call)[1:]: call for call in
         (_pair, _pair_with_ids, _vision, _single, _single_sin_first)}  # fmt: skip


class Rotation(NamedTuple):
    """A known rotation: how to call ours in its place."""

    call: Function
    form: Form
    rounds_once: bool  # in bfloat16 too, so that ours gives its bits

    def __str__(self) -> str:
        return str(self.form)

    def replacement(self, original: Function, rounding: Rounding) -> Function:
        call, form, rounds_once = self.call, self.form, self.rounds_once

        @functools.wraps(original)
        def rotated_once(*args: Any, **kwargs: Any) -> Any:
            return call(form, *args, **kwargs)

        @functools.wraps(original)
        def as_original(*args: Any, **kwargs: Any) -> Any:
            x = args[0] if args else next(iter(kwargs.values()))
            if x.dtype in HALF_DTYPES and not rounds_once:
                return original(*args, **kwargs)
            return call(form, *map(contiguous_gradient, args), **kwargs)

        return rotated_once if rounding == "once" else as_original


def recognize(function: Function) -> Rotation | None:
    """The rotation that gives the bits of `function`, None if none here does."""
    try:
        call = CALLS.get(_signature(function))
    except (TypeError, ValueError):  # no signature
        return None
    if call is None:
        return None
    for form in FORMS:
        if _agree(call, form, function, torch.float32):
            return Rotation(call, form, _agree(call, form, function, torch.bfloat16))
    return None


def _agree(call: Function, form: Form, function: Function, dtype: torch.dtype) -> bool:
    with torch.no_grad():
        for args in _probes(call, form, dtype):
            try:
                right = function(*args)
            except (RuntimeError, IndexError):
                return False  # these tables do not fit it: it is of another form
            ours = call(form, *args)
            pairs = zip(_tuple(ours), _tuple(right), strict=False)
            if len(_tuple(ours)) != len(_tuple(right)):
                return False
            if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs):
                return False
    return True


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _probes(call: Function, form: Form, dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Arguments for both: 2 batch entries of different tables, 3 and 1 heads, 4 tokens, 16 of 16
    channels."""
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> Tensor:
        values = torch.rand(*shape, generator=generator, dtype=torch.float32, device="cpu")
        return (2 * values - 1).to(dtype)

    def table(*shape: int) -> Tensor:
        half = random(*shape)
        if form.tables == "half":
            return half
        return half.repeat_interleave(2, -1) if form.tables == "repeated" else half.repeat(1, 1, 2)

    if call is _vision:
        tables = (table(1, 4, 8)[0], table(1, 4, 8)[0])
        yield random(4, 3, 16), random(4, 1, 16), *tables
        return
    tables = (table(2, 4, 8), table(2, 4, 8))
    if call is _single_sin_first:
        yield random(2, 4, 3, 16), *tables
    elif call is _single:
        yield random(2, 3, 4, 16), *tables
        yield random(2, 4, 3, 16), *tables, 2
    else:
        extra = [None] if call is _pair_with_ids else []
        yield random(2, 3, 4, 16), random(2, 1, 4, 16), *tables
        yield random(2, 4, 3, 16), random(2, 4, 1, 16), *tables, *extra, 2
