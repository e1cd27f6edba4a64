"""RoPE against what people use today: eager torch, torch.compile and onnxruntime."""

import os
import shutil
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import posenc_ext

from . import onnxruntime_peer
from .common import Row, Settings, Skipped, faster, time_in_turns
from .rope_case import DTYPES, EVERY_STEP, ONCE, RopeCase, rotate_eagerly


def against(
    case: RopeCase,
    settings: Settings,
    name: str,
    peer: Callable[[], tuple[Tensor, Tensor]],
    out_of_place: float,
    in_place: float,
) -> Iterator[Row]:
    """Rows of `apply_rope`, out of place and in place, against a peer that rotates q and k."""
    q, k = case.q.clone(), case.k.clone()
    case.check_pair(name, peer, EVERY_STEP)
    case.check_pair("apply_rope", lambda: case.ours(case.q, case.k))
    case.check_pair("apply_rope inplace", lambda: case.ours(q, k, inplace=True))
    times = time_in_turns(
        {
            "ours": lambda: case.ours(case.q, case.k),
            name: peer,
            "ours in place": lambda: case.ours(q, k, inplace=True),
        },
        settings,
    )
    moved = 2 * (q.nbytes + k.nbytes)
    yield faster(
        f"apply_rope out of place, {case.label}",
        times["ours"],
        times[name],
        name,
        out_of_place,
        bytes=moved,
    )
    yield faster(
        f"apply_rope in place, {case.label}",
        times["ours in place"],
        times[name],
        name,
        in_place,
        bytes=moved,
    )


def eager(settings: Settings) -> Iterator[Row]:
    """Hugging Face's expression in eager torch, in both common layouts."""
    for layout in ("bshd", "bhsd"):
        for dtype in DTYPES:
            case = RopeCase(settings.shape, dtype, layout)
            yield from against(case, settings, "eager", case.eager, 4, 4)


def compiled(settings: Settings) -> Iterator[Row]:
    """torch.compile of the same expression."""
    compilers = (os.environ.get("CXX"), "g++", "clang++")
    if not any(name and shutil.which(name) for name in compilers):
        raise Skipped("torch.compile needs a C++ compiler on PATH")
    rotate = torch.compile(rotate_eagerly, fullgraph=True)
    for dtype in DTYPES:
        case = RopeCase(settings.shape, dtype)
        with torch.no_grad():
            yield from against(
                case,
                settings,
                "torch.compile",
                lambda case=case: rotate(case.q, case.k, case.wide_cos, case.wide_sin),
                1.5,
                4,
            )


def onnxruntime(settings: Settings) -> Iterator[Row]:
    """onnxruntime's RotaryEmbedding on q, float32, into a prepared output; ours does not allocate
    either, in place or with `out=`."""
    case = RopeCase(settings.shape, torch.float32)
    out, q = torch.zeros_like(case.q), case.q.clone()
    case.check("rope out=", case.q, posenc_ext.rope(case.q, case.cos, case.sin, out=out))
    with onnxruntime_peer.Process(settings) as peer:
        times = time_in_turns(
            {
                "in place": lambda: posenc_ext.rope(q, case.cos, case.sin, inplace=True),
                "out=": lambda: posenc_ext.rope(case.q, case.cos, case.sin, out=out),
            },
            settings,
            calls=3,
            elsewhere={"onnxruntime": peer.seconds},
        )
    for form in ("in place", "out="):
        yield faster(
            f"rope {form}, {case.label}",
            times[form],
            times["onnxruntime"],
            "onnxruntime",
            1.2,
            bytes=2 * out.nbytes,
        )


def backward(settings: Settings) -> Iterator[Row]:
    """Forward and backward of q and k against eager autograd."""
    for dtype in DTYPES:
        yield against_autograd(RopeCase(settings.shape, dtype), settings)


def against_autograd(case: RopeCase, settings: Settings) -> Row:
    q, k = case.q.requires_grad_(), case.k.requires_grad_()
    grads = (torch.randn_like(q), torch.randn_like(k))
    contestants: dict[str, Callable[[], tuple[Tensor, ...]]] = {
        "ours": lambda: torch.autograd.grad(case.ours(q, k), (q, k), grads),
        "eager autograd": lambda: torch.autograd.grad(case.eager(), (q, k), grads),
    }
    for name, contestant in contestants.items():
        # The gradient is the incoming one, turned the other way.
        tolerances = ONCE if name == "ours" else EVERY_STEP
        for grad, back in zip(grads, contestant(), strict=True):
            case.check(f"gradient, {name}", grad, back, tolerances, inverse=True)
    times = time_in_turns(contestants, settings)
    name, moved = f"apply_rope forward and backward, {case.label}", 4 * (q.nbytes + k.nbytes)
    theirs = times["eager autograd"]
    return faster(name, times["ours"], theirs, "eager autograd", 4, bytes=moved)
