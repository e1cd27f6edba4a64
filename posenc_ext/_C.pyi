"""Types of the native module; posenc_ext.ops is its only caller."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

# The short path of eager calls that need no derivative: None means "go the long way".
def rope(
    x: Any,
    cos: Any,
    sin: Any,
    layout: Any,
    positions: Any,
    offset: Any,
    cu_seqlens: Any,
    interleaved: Any,
    inverse: Any,
    inplace: Any,
    interleaved_out: Any,
    out: Any,
    /,
) -> Tensor | None: ...
def apply_rope(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    layout: Any,
    positions: Any,
    offset: Any,
    cu_seqlens: Any,
    interleaved: Any,
    inverse: Any,
    inplace: Any,
    interleaved_out: Any,
    /,
) -> tuple[Tensor, Tensor] | None: ...
def apply_rope_cache(
    q: Any,
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    cos: Any,
    sin: Any,
    layout: Any,
    positions: Any,
    offset: Any,
    cu_seqlens: Any,
    interleaved: Any,
    inverse: Any,
    inplace: Any,
    interleaved_out: Any,
    slots: Any,
    cache_layout: Any,
    window: Any,
    k_scale: Any,
    v_scale: Any,
    norm: Any,
    /,
) -> Tensor | None: ...
def norm_rope(
    x: Any,
    weight: Any,
    bias: Any,
    cos: Any,
    sin: Any,
    layout: Any,
    positions: Any,
    offset: Any,
    cu_seqlens: Any,
    interleaved: Any,
    inverse: Any,
    inplace: Any,
    eps: Any,
    weight_offset: Any,
    norm: Any,
    norm_dims: Any,
    order: Any,
    rounding: Any,
    out: Any,
    /,
) -> Tensor | None: ...
def qk_norm_rope(
    q: Any,
    k: Any,
    q_weight: Any,
    k_weight: Any,
    q_bias: Any,
    k_bias: Any,
    cos: Any,
    sin: Any,
    layout: Any,
    positions: Any,
    offset: Any,
    cu_seqlens: Any,
    interleaved: Any,
    inverse: Any,
    inplace: Any,
    eps: Any,
    weight_offset: Any,
    norm: Any,
    norm_dims: Any,
    order: Any,
    rounding: Any,
    /,
) -> tuple[Tensor, Tensor] | None: ...
def add_sinusoidal(
    x: Any,
    offset: Any,
    scale: Any,
    base: Any,
    interleaved: bool,
    cos_first: bool,
    pad: bool,
    shift: float,
    /,
) -> Tensor | None: ...

# Raises what autograd would raise for a write into this tensor, of a result that requires grad.
def check_inplace(tensor: Tensor, requires_grad: bool, /) -> None: ...

# Is `given` a plain tensor on the CPU with the dtype, shape and values of `seen`, a dense one?
def same_values(seen: Tensor, given: Tensor, /) -> bool: ...

# Correctly rounded, whatever the processor.
def power(base: float, exponent: float) -> float: ...

# This process was made by fork(), without an exec since.
def in_forked_child() -> bool: ...

# Calls of this op through the dispatcher that need a derivative go to the function.
def differentiate(name: str, function: Callable[..., Any], /) -> None: ...

# "default", "avx2" or "avx512": the row kernels in use.
def cpu_capability() -> str: ...

# version, torch, cuda, openmp, compiler, fast_math: what the module was compiled with.
def build_info() -> dict[str, Any]: ...
