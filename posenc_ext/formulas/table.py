"""The formulas by op, and where torch.onnx.export finds them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import register_decomposition

from . import alibi, norm_rope, onnx, relative, rope, rope_cache, tables

_ops = torch.ops.posenc_ext
_FORMULAS: dict[Any, Callable[..., Any]] = {
    _ops.rope: rope.rope,
    _ops.rope_: rope.rope_,
    _ops.rope_out: rope.rope_out,
    _ops.apply_rope: rope.apply_rope,
    _ops.apply_rope_: rope.apply_rope_,
    _ops.rope_table_grad: rope.rope_table_grad,
    _ops.norm_rope: norm_rope.norm_rope,
    _ops.norm_rope_: norm_rope.norm_rope_,
    _ops.norm_rope_out: norm_rope.norm_rope_out,
    _ops.qk_norm_rope: norm_rope.qk_norm_rope,
    _ops.qk_norm_rope_: norm_rope.qk_norm_rope_,
    _ops.norm_rope_grad: norm_rope.norm_rope_grad,
    _ops.apply_rope_cache: rope_cache.apply_rope_cache,
    _ops.apply_rope_cache_: rope_cache.apply_rope_cache_,
    _ops.rope_table: tables.rope_table,
    _ops.sinusoidal_frequencies: tables.sinusoidal_frequencies,
    _ops.sinusoidal_table: tables.sinusoidal_table,
    _ops.add_sinusoidal: tables.add_sinusoidal,
    _ops.alibi_bias: alibi.alibi_bias,
    _ops.add_alibi: alibi.add_alibi,
    _ops.add_alibi_: alibi.add_alibi_,
    _ops.alibi_softmax: alibi.alibi_softmax,
    _ops.alibi_slope_grad: alibi.alibi_slope_grad,
    _ops.alibi_softmax_grad: alibi.alibi_softmax_grad,
    _ops.alibi_softmax_slope_grad: alibi.alibi_softmax_slope_grad,
    _ops.relative_gather: relative.relative_gather,
    _ops.relative_scatter: relative.relative_scatter,
}
_FOR_ONNX: dict[Any, Callable[..., Any]] = {_ops.rope: onnx.rope, _ops.apply_rope: onnx.apply_rope}


def decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """Every op of ``torch.ops.posenc_ext`` in plain PyTorch, for ``run_decompositions``.

    >>> import torch, posenc_ext
    >>> rotary = posenc_ext.RotaryPositionalEmbedding(8)
    >>> program = torch.export.export(rotary, (torch.randn(1, 5, 2, 8),))
    >>> program = program.run_decompositions(posenc_ext.decompositions())
    >>> "posenc_ext" in str(program.graph)
    False

    Such a program runs where this package is not installed, and goes to whatever takes PyTorch's
    own operators. Results are those of the ops to rounding. torch.onnx.export needs none of this:
    it finds the formulas by itself. To have PyTorch's operators reduced to the core ones as well::

        table = torch.export.default_decompositions()
        table.update(posenc_ext.decompositions())
        program = program.run_decompositions(table)
    """
    return {op.default: formula for op, formula in _FORMULAS.items()}


def _register() -> None:
    """torch.onnx.export reads `torch._decomp.decomposition_table`. The formulas are laid behind
    that name alone: in the registry itself inductor would find them too, and where the environment
    has CI set it refuses an op that has both a kernel and a formula."""
    mine = {op.default: _FOR_ONNX.get(op, formula) for op, formula in _FORMULAS.items()}
    both: Any = ChainMap(torch._decomp.decomposition_table, mine)
    torch._decomp.decomposition_table = both
    for op in _FORMULAS:
        # Fake tensors would take the formula in the place of the op's own meta function, which has
        # the checks, unless there is an entry here.
        register_decomposition(op.default, type="meta", unsafe=True)(op.default)


_register()
