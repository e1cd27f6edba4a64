"""One way to call a function that may be a rotation, tried on small inputs beside ours."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .hf_calls import Function, Signature
from .hf_rotations import Form, Kind, in_rows, layout_of, rotate

D = 16
SIZES = ((2, 3, 1, 4), (3, 1, 2, 5), (1, 2, 2, 3), (2, 2, 2, 2), (2, 3, 1, 1))  # B, Hq, Hk, S
WIDTHS = {False: (D,), True: (8, 4, 12)}  # R where all channels are turned, or a part
FLOATS = (torch.float32, torch.float32)  # of q and k, and of the tables
Given = dict[str, Any]  # arguments by their roles


@functools.cache
def values(dtype: torch.dtype) -> Tensor:
    """Random ones between -1 and 1."""
    generator = torch.Generator("cpu").manual_seed(0)
    numbers = torch.rand(4096, generator=generator, dtype=torch.float64, device="cpu")
    return (2 * numbers - 1).to(dtype)


class Trial(NamedTuple):
    """A function, and the rotation and kind of call that it may be."""

    function: Function
    signature: Signature
    form: Form
    kind: Kind
    heads: int  # -2 or -3, the axis of the heads in q

    def arguments(
        self,
        size: tuple[int, int, int, int] = SIZES[0],
        width: int = D,
        *,
        dtypes: tuple[torch.dtype, torch.dtype] = FLOATS,
        strided: bool = False,
        tied: bool = True,
        prefix: int = 0,
    ) -> Given:
        """Random ones, with tables for `width` of D channels, and `prefix` more tokens than they
        have rows. `strided` leaves gaps between channels."""
        batch, q_heads, k_heads, tokens = size
        start = itertools.count(tokens, 97)  # every tensor has values of its own

        def random(*shape: int, dtype: torch.dtype) -> Tensor:
            step = 2 if strided else 1
            first, n = next(start), math.prod(shape) * step
            part = values(dtype)[first : first + n].clone()
            return part.view(*shape[:-1], step * shape[-1])[..., ::step]

        def with_heads(count: int) -> Tensor:
            shape = [batch, tokens + prefix, count, D]
            x = random(*shape, dtype=dtypes[0])
            if self.heads == -3:
                x = x.transpose(1, 2) if strided else x.view(batch, count, tokens + prefix, D)
            return x if self.kind.rank == 4 else x[0]

        def table() -> Tensor:
            half = self.form.full_width and tied
            columns = width // 2 if half or not self.form.full_width else width
            rows = random(1 if self.kind.shared else batch, tokens, columns, dtype=dtypes[1])
            if half:
                repeated = self.form.tables == "repeated"
                rows = rows.repeat_interleave(2, -1) if repeated else rows.repeat(1, 1, 2)
            return {"sw": rows[0], "s1w": rows.transpose(0, 1), "bsw": rows,
                    "bs1w": rows[:, :, None], "b1sw": rows[:, None]}[self.kind.tables]  # fmt: skip

        roles = self.signature.roles.values()
        given: Given = {"q": with_heads(q_heads), "cos": table()}
        if self.form.tables == "complex":
            given["cos"] = torch.complex(given["cos"].float(), table().float())
        if "k" in roles:
            given["k"] = None if self.kind.alone else with_heads(k_heads)
        if "sin" in roles:
            given["sin"] = table()
        if self.kind.axis is not None:
            given["axis"] = self.kind.axis
        return given

    def theirs(self, given: Given) -> Any:
        return self.signature.call(self.function, **given)

    def ours(self, given: Given) -> tuple[Tensor, ...]:
        cos, sin = (
            None if t is None else in_rows(t, self.kind.tables)
            for t in (given["cos"], given.get("sin"))
        )
        q, k = given["q"], given.get("k")
        results = rotate("patch", self.form, layout_of(q, self.heads), q, k, cos, sin)  # type: ignore[arg-type]
        return results[:1] if self.kind.alone else results  # type: ignore[return-value]

    def compare(self, given: Given) -> str | Exception:
        """Empty if the results are the same bits, else where not, or what was raised."""
        kept = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
        with torch.no_grad():
            try:
                theirs = self.theirs(given)
            except Exception as exception:  # whatever code of others raises: it takes no such call
                return exception
            ours = self.ours(kept | {name: given[name] for name in given.keys() - kept.keys()})
        if any(not torch.equal(given[name], x) for name, x in kept.items()):
            return "it writes into its arguments"
        results = tuple(theirs) if type(theirs) is tuple else (theirs,)
        if len(results) == 2 and results[1] is None and self.kind.alone:
            results = results[:1]
        if len(results) != len(ours) or not all(isinstance(x, Tensor) for x in results):
            return f"it returns {type(theirs).__name__} of {len(results)}, not {len(ours)} tensors"
        for name, mine, right in zip("qk", ours, results, strict=False):
            if mine.shape != right.shape:  # it has broadcast: these tables do not fit it
                return ValueError(f"{name} of shape {list(right.shape)} for {list(mine.shape)}")
            where = _where(mine, right, self.form.tables == "complex")
            if where:
                q, cos = given["q"], given["cos"]
                return f"{name} {where}, for q {list(q.shape)} {_name(q)} and cos {list(cos.shape)}"
        return ""

    def gradients(self, given: Given) -> tuple[Tensor, Tensor] | None:
        """Theirs and ours of q and k, None if theirs has none."""
        inputs = [given[name].requires_grad_() for name in "qk" if given.get(name) is not None]
        grads = []
        for outcome in (self.theirs(given), self.ours(given)):
            results = [
                x for x in (outcome if isinstance(outcome, tuple) else (outcome,)) if x is not None
            ]
            if not all(x.requires_grad for x in results):
                return None
            weights = [values(x.dtype)[: x.numel()].view(x.shape) for x in results]
            found = torch.autograd.grad(results, inputs, weights, allow_unused=True)
            if any(grad is None for grad in found):
                return None
            grads.append(torch.cat([grad.flatten() for grad in found]))
        return grads[0], grads[1]


def _where(mine: Tensor, right: Tensor, complex_tables: bool) -> str:
    """How two results differ."""
    if mine.dtype != right.dtype:
        return f"is {_name(right)}, not {_name(mine)}"
    if torch.equal(mine, right):
        return ""
    # The last bit of a complex product depends on strides and sizes: torch may fuse its sums.
    if complex_tables and torch.allclose(mine, right, rtol=0, atol=2 * torch.finfo(mine.dtype).eps):
        return ""
    channels = (mine != right).flatten(0, -2).any(0).nonzero().flatten().tolist()
    return f"differs in channels {', '.join(map(str, channels))}"


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
