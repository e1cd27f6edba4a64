"""Differentiable ops, each written once, for every way PyTorch has of calling them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from .._native import _C
from ..arguments import error
from .rope_options import check_tensors

_ops = torch.ops.posenc_ext


class Op:
    """The derivatives of the native op `name`, in its first `inputs` arguments.

    A subclass has static methods as an autograd.Function does: `setup_context(ctx, inputs,
    output)`, `backward`, `jvp`, and `vmap` where there is a better way than one call per sample.
    They call differentiable functions, never a raw op, so that every order of derivative works.

    Call it with :func:`apply`. The native op, called through the dispatcher, has the same
    derivatives: what torch.compile, torch.export and torch.func see is that op.
    """

    raw: ClassVar[Callable[..., Any]]
    function: ClassVar[Callable[..., Any]]
    inputs: ClassVar[int]

    setup_context: ClassVar[Callable[..., None]]
    backward: ClassVar[Callable[..., Any]]
    jvp: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, name: str, inputs: int) -> None:
        raw = cls.raw = getattr(_ops, name).default
        cls.inputs = inputs
        cls.function = make_function(cls, lambda *args: _forward(raw, *args))
        _C.differentiate(name, cls._from_dispatcher)
        torch.library.register_vmap(f"posenc_ext::{name}", cls.vmap)

    @classmethod
    def _from_dispatcher(cls, *args: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():
            return cls.function(*args)
        with enable_single_level_autograd_function():
            return cls.function(*args)

    @classmethod
    def vmap(cls, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        return one_by_one(cls, info, in_dims, *args)


def make_function(methods: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The `apply` of a Function with this forward and the other methods of an Op.

    That of Function itself also fills in defaults and looks for transforms, which takes 2 us, and
    20 us more where `setup_context` is a method of its own.
    """

    def forward_and_setup(ctx: Any, *args: Any) -> Any:
        output = forward(*args)
        methods.setup_context(ctx, args, output)
        return output

    static = {"forward": staticmethod(forward_and_setup)}
    for name in ("backward", "jvp"):
        if hasattr(methods, name):
            static[name] = staticmethod(getattr(methods, name))
    function: Any = type(methods.__name__, (_SingleLevelFunction,), static)
    return function.apply


def apply(op: type[Op], *args: Any) -> Any:
    """The op, with a graph for the derivatives if any may be asked for."""
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or not differentiated(*args[: op.inputs])
    ):
        return op.raw(*args)
    # The dispatcher would come to the same, 10 us later.
    return op.function(*[unwrap_if_dead(a) if isinstance(a, Tensor) else a for a in args])


def _forward(raw: Callable[..., Any], *args: Any) -> Any:
    if not torch._C._are_functorch_transforms_active():
        return raw(*args)
    # A Function turns derivatives off for its forward; the transforms around this one need them.
    with torch.enable_grad(), _set_fwd_grad_enabled(True), torch._C._AutoDispatchBelowAutograd():
        return raw(*args)


def one_by_one(
    op: type[Op], info: Any, in_dims: Sequence[int | None], *args: Any
) -> tuple[Any, Any]:
    """vmap by one call per sample."""
    samples = []
    for i in range(info.batch_size):
        picked = (a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True))
        samples.append(op.raw(*picked))
    if isinstance(samples[0], Tensor):
        return torch.stack(samples), 0
    outputs = tuple(torch.stack(each) for each in zip(*samples, strict=True))
    return outputs, (0,) * len(outputs)


def spread(t: Tensor, dim: int | None, size: int, axis: int) -> Tensor:
    """For a vmap rule: t with the batch axis here, expanded to it if t has none."""
    if dim is not None:
        return t.movedim(dim, axis)
    return t.unsqueeze(axis).expand(*t.shape[:axis], size, *t.shape[axis:])


def per_batch(
    t: Any, dim: int | None, rank: int, size: int, batch: int = 1, broadcast: bool = False
) -> Any:
    """For a vmap rule that makes the batch axis V a part of B: an option with B or V in it, made
    one for each of V*B.

    The option has `rank` axes if there is one for each of B. `broadcast`: or one for all of B, with
    that axis of size 1. What is the same for all of V and B stays as it is.
    """
    if t is None:
        return None
    own = t.dim() - (dim is not None) == rank
    if dim is None and (not own or (broadcast and t.shape[0] == 1)):
        return t
    t = spread(t, dim, size, 0)
    if not own:
        t = t.unsqueeze(1)
    if t.shape[1] == 1 and (broadcast or not own):
        t = t.expand(size, batch, *t.shape[2:])
    return t.flatten(0, 1)


def unwrapped(t: Tensor) -> Tensor:
    """Its values, of all samples under vmap, where they can be looked at."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


def readable(t: Tensor) -> bool:
    """Can its values be looked at, at no cost? Not in a trace, in fake tensors, or on a GPU."""
    return (
        not torch.compiler.is_compiling()
        and t.device.type == "cpu"
        and not isinstance(unwrapped(t), FakeTensor)
    )


def forward_mode() -> bool:
    return forward_ad._current_level >= 0


def transformed() -> bool:
    """In forward mode, or under a transform of torch.func?"""
    return forward_mode() or (
        not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    )


def differentiated(*tensors: Tensor | None) -> bool:
    """Does any derivative flow through these?"""
    if transformed():
        return True
    if torch.is_grad_enabled():
        for t in tensors:  # any() of a generator would cost more than all else here
            if t is not None and t.requires_grad:
                return True
    return False


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """Keep tensors for the derivatives, whose incoming gradients and tangents may be None."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def total(*terms: Tensor | None) -> Tensor | None:
    """The sum of those that are there."""
    result: Tensor | None = None
    for term in terms:
        if term is not None:
            result = term if result is None else result + term
    return result


def check_inplace(op: str, written: dict[str, Tensor], others: dict[str, Tensor | None]) -> None:
    """What autograd would refuse after the write, refuse before it.

    `written` are the tensors to write into, `others` those that a derivative keeps.
    """
    compiling = torch.compiler.is_compiling()
    for name, x in written.items():
        leaf = x.is_leaf and x.requires_grad
        base = None if compiling else x._base
        if leaf or (base is not None and base.is_leaf and base.requires_grad):
            what = "a leaf" if leaf else "a view of a leaf"
            raise error(
                ValueError,
                op,
                f"{name} must not be {what} that requires grad when inplace=True, got one of shape "
                f"{list(x.shape)}",
            )
        if not compiling:
            inputs = (x, *others.values())
            _C.check_inplace(x, any(t is not None and t.requires_grad for t in inputs))
    if compiling or torch.is_inference_mode_enabled():
        return
    for name, other in others.items():
        if other is not None and other.is_inference():
            raise error(
                ValueError,
                op,
                f"{name} must not be an inference tensor when a gradient is needed, got one: "
                "clone() it outside inference mode",
            )


def check_not_negated(op: str, name: str, x: Tensor) -> None:
    if not torch.compiler.is_compiling() and x.is_neg():
        raise error(
            ValueError,
            op,
            f"{name} must not be a lazily negated view when inplace=True, got one: call "
            "resolve_neg() first",
        )


def has_tangent(*tensors: Tensor) -> bool:
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(t).tangent is not None for t in tensors
    )


def check_out(op: str, out: Tensor, inplace: bool, inputs: Iterable[Tensor]) -> None:
    """out= takes no derivative, of the inputs or of itself, and no part in inplace=True."""
    check_tensors(op, out=out)
    if inplace:
        raise error(ValueError, op, "out must not be given with inplace=True, got both")
    if not torch.compiler.is_compiling() and out.is_neg():
        raise error(ValueError, op, "out must not be a lazily negated view, got one")
    every = (*inputs, out)
    if has_tangent(*every) or (torch.is_grad_enabled() and any(t.requires_grad for t in every)):
        raise error(
            ValueError,
            op,
            "out must not be given when a gradient is needed (out= is not differentiable), got an "
            "argument that requires grad",
        )
