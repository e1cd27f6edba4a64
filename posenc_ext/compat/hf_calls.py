"""How modeling code calls its functions: the parameters they have, and which of them a model uses.

Nothing here runs the code of a model.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

from ..arguments import error

Function = Callable[..., Any]
# What modeling code calls functions that rotate or build a bias.
NAMES = re.compile(r"(apply|vision_apply)_(\w+_)?(rotary|rope)_\w+|build_(\w+_)?alibi_\w+")
# What may hold the code of a method.
KINDS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property,
         functools.partial, nn.Module)  # fmt: skip

# What modeling code calls the arguments of a rotation.
ROLES = {
    name: role
    for role, names in {
        "q": "q xq query query_states x tensor hidden_states",
        "k": "k xk key key_states",
        "cos": "cos freqs_cis freqs_ci",
        "sin": "sin",
        "axis": "unsqueeze_dim",
        "ids": "position_ids",  # not read, since the tables come with a row for each token
    }.items()
    for name in names.split()
}


class Signature(NamedTuple):
    """The parameters of a function that rotates."""

    roles: dict[str, str]  # by name, in order
    places: tuple[str, ...]  # the roles of positional parameters

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments of a call by their roles, None for a call of another form."""
        if len(args) > len(self.places):
            return None
        given = dict(zip(self.places, args))  # noqa: B905  # defaults may be left out
        for name, value in kwargs.items():
            role = self.roles.get(name)
            if role is None or role in given:
                return None
            given[role] = value
        return given

    def call(self, function: Function, **given: Any) -> Any:
        """Call by name where there is one, since a default may stand in between."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_place = True
        for name, role in self.roles.items():
            by_place = by_place and role in given and len(args) < len(self.places)
            if by_place:
                args.append(given[role])
            elif role in given:
                kwargs[name] = given[role]
        return function(*args, **kwargs)


def _usual(*names: str) -> Signature:
    roles = {name: ROLES[name] for name in names}
    return Signature(roles, tuple(roles.values()))


# To try on a wrapper that says no more than `*args, **kwargs`.
USUAL = (
    _usual("q", "k", "cos", "sin", "unsqueeze_dim"),
    _usual("x", "cos", "sin", "unsqueeze_dim"),
    _usual("q", "k", "cos", "sin"),
    _usual("x", "cos", "sin"),
    _usual("xq", "xk", "freqs_cis"),
)


def signatures(function: Function) -> tuple[Signature, ...] | str:
    """The ways to call a function, or why none is known."""
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return "has no signature to read"
    bound = function.keywords if isinstance(function, functools.partial) else {}
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not named and parameters:
        return USUAL
    named = [p for p in named if p.name not in bound or p.name in ROLES]
    roles = {p.name: ROLES.get(p.name, "") for p in named}
    text = f"({', '.join(map(str, parameters))})"
    for name, role in roles.items():
        if not role:
            return f"has a parameter {name!r} in {text} that no rotation here has"
    if not {"q", "cos"} <= set(roles.values()) or len(set(roles.values())) < len(roles):
        return f"takes {text}, not tensors to rotate and tables"
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = tuple(roles[p.name] for p in named if p.kind in positional)
    return (Signature(roles, places),)


def innermost(function: Function) -> Function:
    """What a compiled function was made of: to try it is not to wait for a compiler."""
    function = getattr(function, "_orig_mod", function)
    return getattr(function, "_torchdynamo_orig_callable", function)


def used_names(classes: list[type], modules: list[types.ModuleType]) -> set[tuple[int, str]]:
    """``(id(globals), name)`` of what the code of these classes may look up in these modules, also
    by way of functions that stand there."""
    scopes = {id(vars(module)) for module in modules}
    used: set[tuple[int, str]] = set()
    seen: set[int] = set()
    todo: list[Any] = [value for c in classes for value in vars(c).values()]
    while todo:
        function = todo.pop()
        if not isinstance(function, KINDS) or id(function) in seen:
            continue
        seen.add(id(function))
        if isinstance(function, nn.Module):
            todo.append(type(function).forward)
        elif isinstance(function, types.FunctionType):
            scope = function.__globals__
            todo += [c.cell_contents for c in function.__closure__ or () if _filled(c)]
            todo.append(getattr(function, "__wrapped__", None))
            if id(scope) in scopes:
                names = _names(function.__code__)
                used |= {(id(scope), name) for name in names}
                todo += [scope[name] for name in names if name in scope]
        else:
            todo += [getattr(function, part, None) for part in ("__func__", "fget", "func")]
    return used


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # empty
        return False


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
        elif isinstance(constant, str):  # getattr(module, "apply_rotary_pos_emb")
            names.add(constant)
    return names


def functions_of(op: str, model: Any) -> Iterator[tuple[types.ModuleType, str, Function]]:
    """The functions to swap in the modules that hold the code of a model."""
    if not isinstance(model, types.ModuleType) and not _classes(model):
        raise error(
            TypeError,
            op,
            "model_or_module must be a model, its class or a module of their code, got "
            f"{type(model).__name__}",
        )
    for module in _modules(model):
        for name, value in list(vars(module).items()):
            if callable(value) and NAMES.fullmatch(name):
                yield module, name, value


def _classes(model: Any) -> list[type]:
    if isinstance(model, type) and issubclass(model, nn.Module):
        return list(model.__mro__)
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return list({c: None for part in parts for c in type(part).__mro__})


def _modules(model: Any) -> list[types.ModuleType]:
    if isinstance(model, types.ModuleType):
        return [model]
    names = {c.__module__: None for c in _classes(model)}
    return [sys.modules[name] for name in names if name in sys.modules]


def looks_up(model: Any, module: types.ModuleType, name: str) -> bool:
    """Whether the code of a model has this name in it; of a class, the parts are not known."""
    if not isinstance(model, nn.Module):
        return True
    return (id(vars(module)), name) in used_names(_classes(model), _modules(model))


def name_of(model: Any) -> str:
    return model.__name__ if isinstance(model, (types.ModuleType, type)) else type(model).__name__
