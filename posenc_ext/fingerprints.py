"""What ``python -m posenc_ext check --bits`` prints: a hash of the bits that each op gives on the
CPU, of inputs that are the same everywhere.

Two machines, compilers or instruction sets that print the same lines compute the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

import posenc_ext

from .arguments import DTYPES


def whole(*shape: int, dtype: torch.dtype, grad: bool = False) -> Tensor:
    """Multiples of 2^-20 between -2 and 2, rounded to `dtype`: no libm and no vector unit has a say
    in them."""
    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count, dtype=torch.int64, device="cpu").reshape(shape)
    values = (index * 2654435761 + 12345) % 2**22 - 2**21  # a multiplicative hash of the index
    return (values.double() / 2**20).to(dtype).requires_grad_(grad)


def results(dtype: torch.dtype) -> Iterator[tuple[str, list[Tensor]]]:
    """Each op at sizes that fill vectors and leave a rest: (name, what it gives)."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    inv_freq = posenc_ext.rope_frequencies(72, base=500000.0).inv_freq
    cos, sin = posenc_ext.rope_table(300, inv_freq, dtype=wide)
    x, q, k = (whole(2, 37, heads, 80, dtype=dtype, grad=True) for heads in (3, 4, 2))
    w = whole(80, dtype=dtype)
    scores = whole(2, 5, 37, 101, dtype=dtype, grad=True)
    slopes = posenc_ext.alibi_slopes(5, dtype=wide).requires_grad_()
    index = torch.arange(37 + 40 - 1) % 23

    yield "rope_table", [cos, sin]
    yield "sinusoidal_table", [posenc_ext.sinusoidal_table(200, 77, dtype=dtype)]
    yield "add_sinusoidal", [posenc_ext.add_sinusoidal(whole(2, 50, 77, dtype=dtype), offset=9)]
    for interleaved in (False, True):
        y = posenc_ext.rope(x, cos, sin, interleaved=interleaved, offset=100)
        yield f"rope {interleaved=}", [y, *torch.autograd.grad(y, x, y.detach())]
        pair = posenc_ext.qk_norm_rope(q, k, w, w, cos, sin, interleaved=interleaved)
        grads = torch.autograd.grad(pair, (q, k), [t.detach() for t in pair if t is not None])
        yield f"qk_norm_rope {interleaved=}", [*pair, *grads]
    yield "alibi_bias", [posenc_ext.alibi_bias(slopes, 37, 101, causal=True, dtype=dtype)]
    yield "add_alibi", [posenc_ext.add_alibi(scores, slopes)]
    y = posenc_ext.alibi_softmax(scores, slopes)
    yield "alibi_softmax", [y, *torch.autograd.grad(y, (scores, slopes), y.detach() * 3)]
    gathered = posenc_ext.relative_gather(whole(4, 37, 23, dtype=dtype), index)
    yield "relative_gather", [gathered]
    yield "relative_scatter", [posenc_ext.relative_scatter(gathered, index, 23)]


def fingerprints() -> Iterator[tuple[str, str]]:
    """(what, hash) of each op, over all dtypes; the last line is the hash of them all."""
    states: dict[str, hashlib._Hash] = {}
    exact = posenc_ext.rope_frequencies(128, base=500000.0).inv_freq
    both = [exact, posenc_ext.alibi_slopes(112, dtype=torch.float64)]
    cases = [("frequencies and slopes", both)]
    cases += [case for dtype in DTYPES for case in results(dtype)]
    for name, tensors in cases:
        state = states.setdefault(name, hashlib.sha256())
        for t in tensors:
            state.update(bytes(t.detach().contiguous().view(torch.uint8).flatten().tolist()))
    everything = hashlib.sha256()
    for name, state in states.items():
        everything.update(state.digest())
        yield name, state.hexdigest()[:16]
    yield "all", everything.hexdigest()[:16]
