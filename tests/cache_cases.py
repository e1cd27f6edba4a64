"""Calls of apply_rope_cache: its inputs, and the same by a rotation and index_put."""

from typing import Any, NamedTuple

import torch
from rope_cases import table, uniform

import posenc_ext

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
CACHE_LAYOUTS = ("blhd", "bhld", "nphd", "nhpd")
PAGE = 4


def in_eight_bits(x, scale, dtype):
    """x / scale as torch rounds it, held at the largest number; `scale` is a number or [H, 1]."""
    y = x.float() / scale
    if dtype == torch.int8:
        return y.nan_to_num(0.0, 1e9, -1e9).round().clamp(-128, 127).to(dtype)
    most = torch.finfo(dtype).max
    return y.clamp(-most, most).to(dtype)


class Call(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    tables: tuple[torch.Tensor, ...]
    options: dict[str, Any]

    def make(self, function=posenc_ext.apply_rope_cache):
        caches = self.k_cache.clone(), self.v_cache.clone()
        q = function(self.q.clone(), self.k, self.v, *caches, *self.tables, **self.options)
        return q, *caches


def filled(size, dtype):
    """A cache with something in it."""
    return torch.arange(torch.Size(size).numel()).remainder(97).view(size).to(dtype)


def cache_of(layout, blocks, rows, heads, dim, dtype):
    sizes = {"b": blocks, "n": blocks, "l": rows, "p": rows, "h": heads, "d": dim}
    return filled([sizes[axis] for axis in layout], dtype)


def paged_slots(batch, length, blocks, seed=0):
    """A slot of its own for every token, in no order, and some -1."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(blocks * PAGE, generator=generator)[: batch * length]
    slots[1::5] = -1
    return slots


def call_of(cache_layout, dtype=torch.float32, stored=None, layout="bshd", batch=2, length=5,
            dim=20, value_dim=12, pairs=8, **options):  # fmt: skip
    """k has 2 heads, q 4."""
    sizes = {"b": batch, "s": length, "t": length}

    def of(heads, last, seed):
        axes = sizes | {"h": heads, "d": last}
        return uniform([axes[a] for a in layout], dtype, seed)

    batch = batch if "b" in layout else 1
    heads = 2 if "h" in layout else 1
    paged = cache_layout.startswith("n")
    blocks, rows = (9, PAGE) if paged else (batch, 32)
    if paged:
        options = {"slots": paged_slots(batch, length, blocks), **options}
    stored = stored or dtype
    caches = [cache_of(cache_layout, blocks, rows, heads, n, stored) for n in (dim, value_dim)]
    tables = table(pairs, torch.float64 if dtype == torch.float64 else torch.float32)
    options = {"layout": layout, "cache_layout": cache_layout, **options}
    return Call(of(4, dim, 1), of(2, dim, 2), of(2, value_dim, 3), *caches, tables, options)


ROPE = ("layout", "positions", "offset", "cu_seqlens", "interleaved", "interleaved_out", "inverse")


def rows_of(x, layout):
    """[B * S, H, D], the tokens of each batch entry one after the other."""
    for axis in "bh":
        if axis not in layout:
            x, layout = x.unsqueeze(0), axis + layout
    axes = layout.replace("t", "s")
    return x.permute([axes.index(a) for a in "bshd"]).flatten(0, 1)


NORM = ("norm", "eps", "weight_offset", "norm_dims", "order", "rounding")


def turned(call, name, x):
    """x, which is q or k, rotated and if the call says so normalised."""
    given = {key: value for key, value in call.options.items() if key in ROPE}
    if call.options.get("norm") is None:
        return posenc_ext.rope(x, *call.tables, **given)
    given |= {key: value for key, value in call.options.items() if key in NORM}
    weight, bias = (call.options.get(f"{name}_{kind}") for kind in ("weight", "bias"))
    if x.dtype != call.k.dtype:  # widened, as for an 8-bit cache
        weight, bias = (None if t is None else t.to(x.dtype) for t in (weight, bias))
    return posenc_ext.norm_rope(x, weight, *call.tables, bias=bias, **given)


def with_norm(call, kind, **options):
    """The call with a norm of this (norm, norm_dims, order), its weights and biases."""
    for seed, name in enumerate("qk"):
        x = getattr(call, name)
        heads = x.shape[call.options["layout"].index("h")] if kind[1] == "all" else 1
        for part in ("weight", "bias"):
            seed += 2
            call.options[f"{name}_{part}"] = uniform((heads * x.shape[-1],), x.dtype, seed)
    names = ("norm", "norm_dims", "order")
    call.options.update(dict(zip(names, kind, strict=True)), eps=1e-3, weight_offset=1.0, **options)
    return call


def expected(call, slots):
    """q, k_cache and v_cache by apply_rope and index_put; `slots` [B * S], -1 for none."""
    same = call.k_cache.dtype == call.k.dtype
    k = call.k if same else call.k.float()
    q, k = turned(call, "q", call.q), turned(call, "k", k)
    outs = []
    for name, x, cache in (("k", k, call.k_cache), ("v", call.v, call.v_cache)):
        rows = rows_of(x, call.options["layout"])
        if not same:
            scale = torch.as_tensor(call.options.get(f"{name}_scale", 1.0))
            rows = in_eight_bits(rows, scale.view(-1, 1), cache.dtype)
        heads_first = call.options["cache_layout"][1] == "h"
        out = cache.clone()
        flat = (out.transpose(1, 2) if heads_first else out).contiguous().flatten(0, 1)
        kept = slots >= 0
        bytes_of_flat = flat.view(torch.int8) if not same else flat
        bytes_of_flat[slots[kept]] = rows[kept].view(bytes_of_flat.dtype)
        sizes = (cache.transpose(1, 2) if heads_first else cache).shape
        flat = flat.view(sizes)
        outs.append(flat.transpose(1, 2) if heads_first else flat)
    return q, *outs


def slots_of(call):
    """Where the tokens of a call go: the given slots, or the rows of the positions."""
    if "slots" in call.options:
        return call.options["slots"].flatten().long()
    axes = call.options["layout"]
    batch = call.k.shape[axes.index("b")] if "b" in axes else 1
    length = call.k.shape[axes.index("s")]
    offset = call.options.get("offset", 0)
    start = offset if torch.is_tensor(offset) else torch.tensor(offset)
    positions = call.options.get("positions")
    if positions is None:
        positions = start.reshape(-1, 1) + torch.arange(length)
    positions = positions.broadcast_to(batch, length)
    rows = call.k_cache.shape[2 if call.options["cache_layout"][1] == "h" else 1]
    window = call.options.get("window")
    slots = torch.arange(batch)[:, None] * rows + (positions % window if window else positions)
    if window:
        slots[:, : max(length - window, 0)] = -1
    return slots.flatten()


def check(call):
    for actual, right in zip(call.make(), expected(call, slots_of(call)), strict=True):
        same_bits(actual, right)


def same_bits(actual, right):
    assert actual.dtype == right.dtype
    assert actual.shape == right.shape
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.itemsize]
    a, b = (t.contiguous().view(integer) for t in (actual, right))
    differ = a != b
    if actual.dtype.is_floating_point:
        differ &= ~(actual.isnan() & right.isnan())
    assert not differ.any(), f"{int(differ.sum())} of {differ.numel()} elements differ"
