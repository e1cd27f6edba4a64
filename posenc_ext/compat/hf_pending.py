"""The result of a norm of query or key that waits for the rotation, so that one pass does both.

A norm of the class that `waiting` makes gives out a :class:`PendingNorm`: the shape of its result
and what it was called with. The function that rotates takes both from there. Whatever else touches
it gets what the norm returns, which runs then: it is slower, not different.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..ops.norm_rope import qk_norm_rope
from ..types import Layout

# While a model is tried: the norms that were fused.
seen: contextvars.ContextVar[set[nn.Module] | None] = contextvars.ContextVar("seen", default=None)


class Rule(NamedTuple):
    """An RMS norm of the last axis: x / sqrt(mean(x^2) + eps) * (weight_offset + weight)."""

    eps: float
    weight_offset: float
    roundings: tuple[tuple[torch.dtype, str], ...]  # where it rounds, in each dtype known


def weight_of(norm: nn.Module) -> Tensor | None:
    return next((p for p in norm._parameters.values() if p is not None), None)


def settings_of(norm: nn.Module) -> Any:
    """What it was tried with: with another eps, or a weight in another place, it follows another
    rule."""
    mine = vars(norm)
    return (
        [item for item in mine.items() if item[0] != "training" and item[0][0] != "_"],
        [name for name, weight in norm._parameters.items() if weight is not None],
        [*norm._buffers, *norm._modules],
    )


class Call(NamedTuple):
    """What a norm was called with."""

    norm: nn.Module
    forward: Callable[[Tensor], Tensor]  # what it does by itself
    rule: Rule
    x: Tensor
    weight: Tensor | None
    grad: bool  # the mode in which it was called
    versions: tuple[int, int]

    def check(self) -> None:
        """That neither has been written to: then its result is lost."""
        if _versions(self.x, self.weight) != self.versions or self.weight is not weight_of(
            self.norm
        ):
            raise RuntimeError(
                "posenc_ext.patch: fuse_norm must be False where the input of a norm, or its "
                "weight, is changed before its result is used, got a change"
            )

    def run(self) -> Tensor:
        self.check()
        with torch.set_grad_enabled(self.grad):
            return self.forward(self.x)


def _versions(x: Tensor, weight: Tensor | None) -> tuple[int, int]:
    return x._version, 0 if weight is None else weight._version


ASKED = {getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout",
         "is_cuda", "requires_grad")} | {Tensor.dim, Tensor.size, Tensor.numel}  # fmt: skip


class PendingNorm(Tensor):
    """The result of a norm that has not run yet; it holds no numbers.

    It knows of itself what the result will look like, and what views do to it: `raw` is the input
    in the same view, and `heads` the axis of the heads where a view has split the normalised axis
    into heads and channels.
    """

    call: Call
    raw: Tensor
    heads: int | None
    source: tuple[PendingNorm, Any, Any] | None  # it is a view: of what, and how
    graded: bool  # whether it was made with gradients on
    value: Tensor | None

    @staticmethod
    def of(call: Call, raw: Tensor, heads: int | None = None, source: Any = None) -> PendingNorm:
        weight = call.weight
        wanted = torch.is_grad_enabled() and (
            raw.requires_grad or (weight is not None and weight.requires_grad)
        )
        made = Tensor._make_wrapper_subclass(
            PendingNorm, raw.shape, dtype=raw.dtype, device=raw.device, requires_grad=wanted
        )
        made.call, made.raw, made.heads, made.source, made.value = call, raw, heads, source, None
        made.graded = torch.is_grad_enabled()
        if wanted:
            with torch._C.DisableTorchFunctionSubclass():
                made.register_hook(_no_gradient)
        return made

    def resolve(self) -> Tensor:
        """What the norm returns."""
        if self.value is None:
            if self.source is None:
                self.value = self.call.run()
            else:
                source, view, args = self.source
                with torch.set_grad_enabled(self.graded):
                    self.value = view(source.resolve(), *args)
        return self.value

    @property
    def waits(self) -> bool:
        return self.value is None and (self.source is None or self.source[0].waits)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in VIEWS and not kwargs and type(args[0]) is PendingNorm and args[0].waits:
            view = _view(args[0], func, args[1:])
            if view is not None:
                return view
        args, kwargs = tree_map_only(PendingNorm, PendingNorm.resolve, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(
            f"posenc_ext.patch: fuse_norm must be False where {func} takes the result of a norm "
            "past torch's functions, got one"
        )


def _no_gradient(grad: Tensor) -> None:
    raise NotImplementedError(
        "posenc_ext.patch: fuse_norm must be False where a torch autograd function takes the "
        "result of a norm, got one"
    )


def _view(pending: PendingNorm, func: Any, args: Any) -> PendingNorm | None:
    try:
        raw = func(pending.raw, *args)
    except (RuntimeError, TypeError):  # the result of the norm may have other strides
        return None
    fits, heads = VIEWS[func](pending, raw, *args)
    return PendingNorm.of(pending.call, raw, heads, (pending, func, args)) if fits else None


def _reshaped(pending: PendingNorm, raw: Tensor, *sizes: Any) -> tuple[bool, Any]:
    """Rows of channels stay rows, or become rows of heads and channels."""
    old, new = pending.raw.shape, raw.shape
    if raw.dtype != pending.raw.dtype or len(new) < 2 or pending.heads is not None:
        return False, None
    if new[-1] == old[-1]:
        return True, None
    return new[-2] * new[-1] == old[-1], -2


def _transposed(pending: PendingNorm, raw: Tensor, first: Any, second: Any) -> tuple[bool, Any]:
    """Channels stay last; heads may move."""
    axes = [axis - raw.dim() if axis >= 0 else axis for axis in (first, second)]
    moved = {axes[0]: axes[1], axes[1]: axes[0]}
    heads = None if pending.heads is None else moved.get(pending.heads, pending.heads)
    return -1 not in axes, heads


VIEWS = {
    Tensor.view: _reshaped,
    Tensor.reshape: _reshaped,
    Tensor.transpose: _transposed,
    torch.transpose: _transposed,
}


def make_wait(norm: nn.Module, rule: Rule) -> None:
    """Let it wait, while it has the settings that it was tried with."""
    norm._posenc_waits = rule, settings_of(norm), type(norm).forward  # type: ignore[assignment]
    norm.__class__ = _waiting(type(norm))  # type: ignore[arg-type]


def stop_waiting(norm: nn.Module) -> None:
    """A class that was laid over ours since then keeps it, and does what it did before."""
    vars(norm).pop("_posenc_waits", None)
    norm.__class__ = vars(type(norm)).get("posenc_kind", type(norm))


@functools.cache
def _waiting(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of norms that wait. A copy of one, and one that is pickled, does not."""

    class Waiting(kind):  # type: ignore[misc,valid-type]
        posenc_kind = kind

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            # This method may outlive the class of the norm, in a wrapper of others.
            forward = functools.partial(kind.forward, self)
            rule, settings, tried = vars(self).get("_posenc_waits", (None, None, None))
            if rule is None or kwargs or len(args) != 1 or kind.forward is not tried:
                return forward(*args, **kwargs)
            if settings_of(self) != settings or not _may_wait(self, rule, args[0]):
                return forward(*args)
            (x,), weight = args, weight_of(self)
            versions = _versions(x, weight)
            call = Call(self, forward, rule, x, weight, torch.is_grad_enabled(), versions)
            return PendingNorm.of(call, x)

        def __reduce_ex__(self, protocol: Any) -> Any:
            state = {name: v for name, v in vars(self).items() if name != "_posenc_waits"}
            return object.__new__, (kind,), state

    Waiting.__name__, Waiting.__qualname__ = kind.__name__, kind.__qualname__
    Waiting.__module__ = kind.__module__
    return Waiting


def _may_wait(norm: nn.Module, rule: Rule, x: Any) -> bool:
    """Not where it cannot be told later whether anything has changed, or where torch looks on."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or type(x) is not Tensor:
        return False
    if (
        x.is_inference()
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
        or torch.is_autocast_enabled(x.device.type)
        or x.dtype not in dict(rule.roundings)
        or x.dim() < 2
    ):
        return False
    weight = weight_of(norm)
    return weight is None or (
        type(weight) in (Tensor, nn.Parameter)
        and not weight.is_inference()
        and not torch._C._functorch.is_functorch_wrapped_tensor(weight)
        and (weight.dtype, weight.device) == (x.dtype, x.device)
        and weight.numel() == x.shape[-1]
    )


def raw(x: Any) -> Any:
    """Of the shape and dtype of x."""
    return x.raw if type(x) is PendingNorm else x


def resolved(x: Any) -> Any:
    return x.resolve() if type(x) is PendingNorm else x


def normed_and_rotated(
    layout: Layout,
    q: Any,
    k: Any,
    cos: Tensor,
    sin: Tensor | None,
    interleaved: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Both steps at once; None where they are to be done one after the other."""
    pending = [x for x in (q, k) if x is not None]
    if not all(type(x) is PendingNorm and x.waits for x in pending):
        return None
    calls, heads = [x.call for x in pending], {x.heads for x in pending}
    rule = calls[0].rule
    if heads not in ({None}, {layout.index("h") - len(layout)}) or any(
        (call.rule, call.grad) != (rule, torch.is_grad_enabled()) for call in calls
    ):
        return None
    found = seen.get()
    for call in calls:
        call.check()
        if found is not None:
            found.add(call.norm)
    weights = [call.weight for call in calls]
    return qk_norm_rope(
        q.raw, None if k is None else k.raw, weights[0], weights[-1], cos, sin, eps=rule.eps,
        weight_offset=rule.weight_offset, rounding=dict(rule.roundings)[q.raw.dtype],
        norm_dims="head" if heads == {None} else "all", layout=layout,
        interleaved=interleaved, inverse=inverse,
    )  # fmt: skip
