"""ALiBi against writing, scaling and softmax of the same bytes."""

from collections.abc import Iterator

import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, at_most, check_close, time_in_turns

HEADS = 32
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
CHECKED = 2  # heads compared with float64


def length(settings: Settings) -> int:
    return 256 if settings.quick else 2048


def label(dtype: torch.dtype, s: int) -> str:
    return f"{HEADS}x{s}x{s} {str(dtype).removeprefix('torch.')}"


def exact_bias(s: int, causal: bool = False) -> Tensor:
    """[CHECKED, S, S] in float64, by torch alone."""
    slopes = posenc_ext.alibi_slopes(HEADS, dtype=torch.float64)[:CHECKED, None, None]
    i = torch.arange(s)
    bias = -slopes * (i[:, None] - i).abs()
    return bias.masked_fill(i[:, None] < i, -float("inf")) if causal else bias


def bias(settings: Settings) -> Iterator[Row]:
    """The bias as a tensor; both contestants allocate."""
    s, slopes = length(settings), posenc_ext.alibi_slopes(HEADS)
    check_close("alibi_bias", posenc_ext.alibi_bias(slopes, s)[:CHECKED], exact_bias(s), 2**-23)

    def fill() -> Tensor:
        return torch.empty(HEADS, s, s).fill_(1.0)

    times = time_in_turns(
        {"ours": lambda: posenc_ext.alibi_bias(slopes, s), "fill_": fill}, settings
    )
    name = f"alibi_bias {label(torch.float32, s)}"
    yield at_most(name, times["ours"], times["fill_"], "fill_", 1.15, bytes=HEADS * s * s * 4)


def added(settings: Settings) -> Iterator[Row]:
    """In place: no new pages, one read and one write."""
    s, slopes = length(settings), posenc_ext.alibi_slopes(HEADS)
    for dtype in DTYPES:
        scores = torch.randn(1, HEADS, s, s).to(dtype)
        right = scores[:, :CHECKED].double() + exact_bias(s)
        ours = posenc_ext.add_alibi(scores.clone(), slopes, inplace=True)
        check_close("add_alibi", ours[:, :CHECKED], right, TOLERANCE[dtype])
        times = time_in_turns(
            {
                # On and on: bias upon bias stays finite for more rounds than there will be.
                "ours": lambda: posenc_ext.add_alibi(scores, slopes, inplace=True),  # noqa: B023
                "mul_": lambda: scores.mul_(1.0),  # noqa: B023
            },
            settings,
        )
        name = f"add_alibi in place, {label(dtype, s)}"
        yield at_most(name, times["ours"], times["mul_"], "mul_", 1.15, bytes=2 * scores.nbytes)


def softmax(settings: Settings) -> Iterator[Row]:
    """Scale, bias and softmax against softmax alone; both allocate their result."""
    s, slopes = length(settings), posenc_ext.alibi_slopes(HEADS)
    for dtype in DTYPES:
        scores = torch.randn(1, HEADS, s, s).to(dtype)
        for causal in (False, True):
            yield against_softmax(scores, slopes, causal, settings)


def against_softmax(scores: Tensor, slopes: Tensor, causal: bool, settings: Settings) -> Row:
    s = scores.shape[-1]
    logits = scores[:, :CHECKED].double() * 0.5 + exact_bias(s, causal)
    ours = posenc_ext.alibi_softmax(scores, slopes, scale=0.5, causal=causal)
    right = torch.softmax(logits, -1)
    check_close("alibi_softmax", ours[:, :CHECKED], right, TOLERANCE[scores.dtype])
    del ours, logits, right
    times = time_in_turns(
        {
            "ours": lambda: posenc_ext.alibi_softmax(scores, slopes, scale=0.5, causal=causal),
            "softmax": lambda: torch.softmax(scores, -1),
        },
        settings,
    )
    name = f"alibi_softmax{' causal' if causal else ''}, {label(scores.dtype, s)}"
    limit = times["softmax"]
    return at_most(name, times["ours"], limit, "torch.softmax", 1.25, bytes=2 * scores.nbytes)
