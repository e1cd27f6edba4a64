"""Norm and rotation in one pass, against memory, eager torch, torch.compile and a call of rope."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, at_most, check_close, faster, time_in_turns
from .rope_case import DTYPES, ONCE, RopeCase, rotate_eagerly

EPS = 1e-6


class NormCase(RopeCase):
    """RopeCase, with the weight of an RMS norm [D] for q and k each."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.weights = tuple(torch.rand(shape[-1]).add(0.5).to(dtype) for _ in range(2))

    def normed(self, q: Tensor, k: Tensor, inplace: bool = False) -> tuple[Tensor, Tensor]:
        given = (q, k, *self.weights, self.cos, self.sin)
        result: tuple[Tensor, Tensor] = posenc_ext.qk_norm_rope(*given, inplace=inplace)
        return result

    def stored(self, cache: list[Tensor]) -> Tensor:
        """With keys, and as values the keys as they came, written into a cache."""
        given = (self.q, self.k, self.k, *cache, self.cos, self.sin)
        weights = dict(zip(("q_weight", "k_weight"), self.weights, strict=True))
        return posenc_ext.apply_rope_cache(*given, norm="rms", **weights)

    def normed_eagerly(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """As Qwen3 does in Hugging Face."""
        pair = (_rms(x, weight) for x, weight in zip((q, k), self.weights, strict=True))
        return rotate_eagerly(*pair, self.wide_cos, self.wide_sin)

    def verify(self) -> None:
        rights = (
            _rms(x.double(), w.double())
            for x, w in zip((self.q, self.k), self.weights, strict=True)
        )
        cos, sin = (t.double()[:, None] for t in (self.cos, self.sin))
        for got, right in zip(self.normed(self.q, self.k), rights, strict=True):
            u, v = right.chunk(2, -1)
            reference = torch.cat((u * cos - v * sin, v * cos + u * sin), -1)
            check_close(f"qk_norm_rope {self.label}", got, reference, 4 * ONCE[self.dtype])


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * (wide * scale).to(x.dtype)


def prepared(settings: Settings) -> Iterator[Row]:
    """In place against `copy_` of the same bytes."""
    target = 1.25 if posenc_ext._C.cpu_capability() == "avx512" else 1.35
    for dtype in DTYPES:
        case = NormCase(settings.shape, dtype)
        case.verify()
        q, k = case.q.clone(), case.k.clone()
        to_q, to_k = torch.zeros_like(q), torch.zeros_like(k)

        def ours(case: NormCase = case, q: Tensor = q, k: Tensor = k) -> None:
            case.normed(q, k, inplace=True)

        def copy(case: NormCase = case, q: Tensor = to_q, k: Tensor = to_k) -> None:
            q.copy_(case.q)
            k.copy_(case.k)

        times = time_in_turns({"ours": ours, "copy_": copy}, settings)
        name, moved = f"qk_norm_rope in place, {case.label}", 2 * (q.nbytes + k.nbytes)
        yield at_most(name, times["ours"], times["copy_"], "copy_", target, bytes=moved)


def peers(settings: Settings) -> Iterator[Row]:
    """New tensors against eager torch and torch.compile of it; forward and backward too."""
    for dtype in DTYPES:
        case = NormCase(settings.shape, dtype)
        compiled: Callable[..., tuple[Tensor, Tensor]] = torch.compile(case.normed_eagerly)
        compiled(case.q, case.k)
        times = time_in_turns(
            {
                "ours": lambda case=case: case.normed(case.q, case.k),
                "eager": lambda case=case: case.normed_eagerly(case.q, case.k),
                "compile": lambda case=case, call=compiled: call(case.q, case.k),
            },
            settings,
        )
        name = f"qk_norm_rope, {case.label}"
        yield faster(name, times["ours"], times["eager"], "eager", 10)
        yield faster(name, times["ours"], times["compile"], "torch.compile", 3)
        yield backward(case, settings)


def backward(case: NormCase, settings: Settings) -> Row:
    leaves = [t.clone().requires_grad_() for t in (case.q, case.k, *case.weights)]
    case.weights = tuple(leaves[2:])
    grads = [torch.ones_like(t) for t in leaves[:2]]

    def both(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(*leaves[:2]), leaves, grads)

    times = time_in_turns({"ours": both(case.normed), "eager": both(case.normed_eagerly)}, settings)
    name = f"qk_norm_rope forward and backward, {case.label}"
    return faster(name, times["ours"], times["eager"], "eager", 6)


def decode(settings: Settings) -> Iterator[Row]:
    """One token, against apply_rope alone."""
    for dtype in DTYPES:
        case = NormCase((1, 1, 32, 128), dtype)
        case.verify()
        calls = 20 if settings.quick else 500
        cache = [torch.zeros(1, 64, *case.k.shape[2:], dtype=dtype) for _ in "kv"]
        times = time_in_turns(
            {
                "ours": lambda case=case: case.normed(case.q, case.k),
                "into a cache": lambda case=case, cache=cache: case.stored(cache),
                "apply_rope": lambda case=case: case.ours(case.q, case.k),
            },
            settings,
            calls=calls,
        )
        name = f"decode, qk_norm_rope of one token, {case.label}"
        for kind in ("ours", "into a cache"):
            label = name if kind == "ours" else f"{name}, {kind}"
            yield at_most(label, times[kind], times["apply_rope"], "apply_rope", 1.6)
