"""``torch.fx.symbolic_trace`` keeps a module of this package as one node: what it computes depends
on sizes and values that a trace does not have."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import Proxy


def record(arguments: dict[str, Any]) -> Any:
    """The node of a call with the arguments of a forward, `self` among them."""
    module = arguments.pop("self")
    tracer: Any = next(a for a in arguments.values() if isinstance(a, Proxy)).tracer
    if tracer.root is module:  # the graph is that of a module which holds this one
        tracer.root = nn.Module()
        tracer.root.add_module("module", module)
        name = "module"
    else:
        name = tracer.path_of_module(module)
    return tracer.create_proxy("call_module", name, (), arguments)
