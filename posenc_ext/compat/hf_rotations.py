"""The rotations that modeling code in the style of Hugging Face defines, and ours in their place.

Model families differ in which channels form a pair, how a table repeats its columns, and where they
round. What a function is called and where it stands says little about that; `hf_probes` tells them
apart by trying them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..arguments import error
from ..ops.rope import apply_rope, rope
from ..types import Layout, Rounding
from .hf_calls import Signature
from .hf_gradient import contiguous_gradient
from .hf_pending import PendingNorm, normed_and_rotated, raw, resolved
from .hf_short import Short, key_of
from .tables import check_tied

Function = Callable[..., Any]


class Form(NamedTuple):
    """A rotation by the tables of Hugging Face code, ``[.., S, W]``."""

    tables: str  # "tiled" c0 c1 c0 c1, "repeated" c0 c0 c1 c1, "half" c0 c1, "complex" c0 + i*s0
    interleaved: bool = False
    inverse: bool = False
    halved: bool = False  # reads interleaved pairs and writes halves
    tail: bool = False  # the last R of D channels

    def __str__(self) -> str:
        pairs = "interleaved" if self.interleaved or self.halved else "half"
        notes = [", inverse"] * self.inverse + [" written as halves"] * self.halved
        notes += [" of the last channels"] * self.tail
        return f"{pairs} pairs{''.join(notes)}, {self.tables} tables"

    @property
    def full_width(self) -> bool:
        return self.tables in ("tiled", "repeated")

    def rotary_dim(self, table: Tensor) -> int:
        return table.shape[-1] if self.full_width else 2 * table.shape[-1]


FRONT = (
    Form("tiled"),  # LLaMA and most others
    Form("repeated", interleaved=True),  # Cohere
    Form("tiled", interleaved=True),  # GLM
    Form("half", interleaved=True),  # GPT-J
    Form("half"),  # gpt-oss
    Form("tiled", inverse=True),  # nanochat
    Form("tiled", halved=True),  # DeepSeek-V3
    Form("complex", interleaved=True),  # Llama 4
)
FORMS = (*FRONT, *(form._replace(tail=True) for form in FRONT))


def rotate(
    op: str,
    form: Form,
    layout: Layout,
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Rotate the last S tokens, with tables ``[B | 1, S, W]``."""
    rotary_dim, tokens = form.rotary_dim(cos), layout.index("s") - len(layout)
    whole = not form.tail and q.shape[tokens] == cos.shape[-2]
    if type(q) is PendingNorm or type(k) is PendingNorm:
        if whole and not form.halved:
            tables = half_width(op, form, cos), None if sin is None else half_width(op, form, sin)
            both = normed_and_rotated(layout, q, k, *tables, form.interleaved, form.inverse)
            if both is not None:
                return both
        q, k = resolved(q), resolved(k)
    inner = (q, k) if whole else [_part(form, x, tokens, cos, rotary_dim) for x in (q, k)]
    options: dict[str, Any] = {"layout": layout, "interleaved": form.interleaved}
    if form.halved:
        options = {"layout": layout, "interleaved": True, "interleaved_out": False}
    if form.inverse:
        options["inverse"] = True
    cos = half_width(op, form, cos)
    sin = None if sin is None else half_width(op, form, sin)
    if inner[1] is None:
        turned = rope(inner[0], cos, sin, **options), None  # type: ignore[arg-type]
    else:
        turned = apply_rope(inner[0], inner[1], cos, sin, **options)  # type: ignore[arg-type,assignment]
    if whole:
        return turned
    joined = [_join(form, x, y, tokens, rotary_dim) for x, y in zip((q, k), turned, strict=True)]
    return joined[0], joined[1]  # type: ignore[return-value]  # q is a tensor


def _part(form: Form, x: Tensor | None, tokens: int, cos: Tensor, rotary_dim: int) -> Tensor | None:
    """What is turned, a view."""
    if x is None:
        return None
    prefix = x.shape[tokens] - cos.shape[-2]
    if prefix > 0:
        x = x.narrow(tokens, prefix, cos.shape[-2])
    if form.tail:
        x = x[..., x.shape[-1] - rotary_dim :]
    return x


def _join(
    form: Form, x: Tensor | None, turned: Tensor | None, tokens: int, rotary_dim: int
) -> Tensor | None:
    """Together with the channels and tokens that stay."""
    if x is None or turned is None:
        return None
    prefix = x.shape[tokens] - turned.shape[tokens]
    if form.tail and x.shape[-1] > rotary_dim:
        rest = x.narrow(tokens, prefix, turned.shape[tokens])[..., : x.shape[-1] - rotary_dim]
        turned = torch.cat([rest, turned], -1)
    return torch.cat([x.narrow(tokens, 0, prefix), turned], tokens) if prefix > 0 else turned


def half_width(op: str, form: Form, table: Tensor) -> Tensor:
    width = table.shape[-1]
    if not form.full_width:
        return table
    if width % 2:
        raise error(ValueError, op, f"cos and sin must have an even number of columns, got {width}")
    return table[..., ::2] if form.tables == "repeated" else table.narrow(-1, 0, width // 2)


def heads_axis(op: str, cos: Tensor, unsqueeze_dim: int) -> int:
    """-2 or -3: where the heads of q stand, from where its tables get an axis to broadcast over."""
    ranks = cos.dim() + 1
    heads = unsqueeze_dim - ranks if unsqueeze_dim >= 0 else unsqueeze_dim
    if cos.dim() not in (2, 3) or heads not in (-2, -3):
        raise error(
            ValueError,
            op,
            "unsqueeze_dim must put the axis of the heads before or after the tokens of cos, got "
            f"{unsqueeze_dim} with cos of shape {list(cos.shape)}",
        )
    return heads


def layout_of(q: Tensor, heads: int) -> Layout:
    layout = "b" * (q.dim() - 3) + ("shd" if heads == -2 else "hsd")
    return cast(Layout, layout)  # anything else is refused, as q of a wrong shape


class Kind(NamedTuple):
    """What calls have in common for which a function has been tried."""

    rank: int  # of q: 4 or 3
    tables: str  # axes of the tables, "1" being one of size 1: "sw", "bsw", "s1w", "bs1w", "b1sw"
    shared: bool  # one table for all of the batch
    axis: int | None  # unsqueeze_dim, None where it is not given
    alone: bool  # without k
    partial: bool  # R < D


def kind_of(
    form: Form, q: Tensor, k: Tensor | None, cos: Tensor, axis: int | None, fixed: bool
) -> Kind:
    """`fixed`: the function takes no axis, so that tables may have that of the heads already."""
    rank, tables = cos.dim(), "sw"
    if rank == 3:
        column = fixed and cos.shape[1] == 1 and cos.shape[0] == q.shape[-3] != 1
        tables = "s1w" if column else "bsw"
    elif rank == 4:
        tables = "b1sw" if cos.shape[1] == 1 else "bs1w"
    # Not the comparisons themselves: of traced sizes they are no bool.
    shared = True if tables[0] != "b" or cos.shape[0] == 1 else False  # noqa: SIM210
    partial = True if form.rotary_dim(cos) < q.shape[-1] else False  # noqa: SIM210
    return Kind(q.dim(), tables, shared, axis, k is None, partial)


def in_rows(table: Tensor, tables: str) -> Tensor:
    """As ``[B | 1, S, W]``."""
    if tables == "sw":
        return table[None]
    if tables == "s1w":
        return table.transpose(0, 1)
    return table if tables == "bsw" else table.squeeze(2 if tables == "bs1w" else 1)


class Rotation(NamedTuple):
    """A known rotation: where ours gives the results of a function. Every other call is its own."""

    form: Form
    signature: Signature
    kinds: dict[Kind, int]  # to the axis of the heads
    prefixed: frozenset[Kind]  # where q may have more tokens than the tables: the first stay
    exact: frozenset[tuple[torch.dtype, torch.dtype]]  # of q and tables: ours gives its bits
    tied: bool  # it reads all columns of a full-width table, so that they must be tied
    pair: bool  # without k it returns (q, None)
    reads_ids: bool

    def __str__(self) -> str:
        return str(self.form)

    def run(self, given: dict[str, Any] | None, exact: bool = False) -> Any:
        """Ours, None for a call that is not known."""
        if given is None or not {"q", "cos"} <= given.keys():
            return None
        given_q, given_k, cos, sin = given["q"], given.get("k"), given["cos"], given.get("sin")
        q, k = raw(given_q), raw(given_k)  # of the same shape
        axis = given.get("axis")
        if not all(isinstance(x, Tensor) for x in (q, cos)) or isinstance(axis, bool):
            return None
        if (self.reads_ids and given.get("ids") is not None) or not 3 <= q.dim() <= 4:
            return None
        kind = kind_of(self.form, q, k, cos, axis, "axis" not in self.signature.roles.values())
        heads = self.kinds.get(kind)
        if heads is None or not self._fits(kind, heads, q, k, cos, sin):
            return None
        if exact:
            if (q.dtype, cos.dtype) not in self.exact:
                return None
            given_q, given_k = (contiguous_gradient(resolved(x)) for x in (given_q, given_k))
        op = "apply_rotary_pos_emb"
        if self.tied:
            check_tied(op, cos, sin, self.form.tables == "repeated")  # type: ignore[arg-type]
        cos, sin = in_rows(cos, kind.tables), None if sin is None else in_rows(sin, kind.tables)
        results = rotate(op, self.form, layout_of(q, heads), given_q, given_k, cos, sin)
        return (
            results if "k" in self.signature.places and (k is not None or self.pair) else results[0]
        )

    def _fits(self, kind: Kind, heads: int, q: Tensor, k: Any, cos: Tensor, sin: Any) -> bool:
        """Whether shapes and dtypes match without broadcasting, and no table wants a gradient."""
        if self.form.tables == "complex":
            fitting = sin is None and cos.is_complex()
        else:
            fitting = (
                isinstance(sin, Tensor)
                and (sin.shape, sin.dtype) == (cos.shape, cos.dtype)
                and cos.dtype in (q.dtype, torch.float32)
            )
        # The gradient of a full-width table would come out in half of its columns.
        wanted = cos.requires_grad or (sin is not None and sin.requires_grad)
        shape, tokens = q.shape, -3 if heads == -2 else -2
        if k is not None:
            if not isinstance(k, Tensor) or k.dtype != q.dtype or k.dim() != len(shape):
                return False
            other = k.shape
            if other[tokens] != shape[tokens] or other[-1] != shape[-1]:
                return False
            if len(other) == 4 and other[0] != shape[0]:
                return False
        rows = in_rows(cos, kind.tables).shape
        return (
            fitting
            and not (wanted and torch.is_grad_enabled())
            and (kind.shared or rows[0] == shape[0])
            and (rows[1] == shape[tokens] or (rows[1] < shape[tokens] and kind in self.prefixed))
            and self.form.rotary_dim(cos) <= shape[-1]
        )

    def short(self, key: Any, given: dict[str, Any]) -> Short | None:
        """What a call has in common with others of the same key, None where that is not enough."""
        q, k, cos = given["q"], given["k"], given["cos"]
        kind = kind_of(self.form, q, k, cos, key[-1], "axis" not in self.signature.roles.values())
        heads = self.kinds.get(kind)
        plain = self.form.tables == "tiled" and not (self.form.tail or self.form.halved)
        if not plain or heads is None or kind.tables != "bsw":
            return None
        layout = layout_of(q, heads)
        if q.shape[layout.index("s")] != cos.shape[1]:
            return None
        options = {"interleaved": self.form.interleaved, "inverse": self.form.inverse}
        return Short(key, cos.shape[-1] // 2, {"layout": layout, **options})

    def replacement(self, original: Function, rounding: Rounding) -> Function:
        exact, last = rounding == "transformers", None

        def rotated(*args: Any, **kwargs: Any) -> Any:
            nonlocal last
            given = self.signature.bind(args, kwargs)
            key = None if exact else key_of(given)
            known = last  # other threads may put another one there
            if key is not None and known is not None and known.key == key:
                return known.run(self.tied, **given)
            results = self.run(given, exact)
            if results is None:
                return original(*args, **kwargs)
            if key is not None:
                last = self.short(key, given)  # type: ignore[arg-type]  # it has a key
            return results

        return functools.update_wrapper(rotated, original, updated=())
