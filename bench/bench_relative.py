"""The relative ops against what models do in eager torch. All allocate their results."""

from collections.abc import Iterator

import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, check_close, faster, time_in_turns

HEADS = 8
DTYPES = (torch.float32, torch.bfloat16)


def length(settings: Settings) -> int:
    return 128 if settings.quick else 2048


def label(dtype: torch.dtype, *sizes: int) -> str:
    return f"{'x'.join(map(str, sizes))} {str(dtype).removeprefix('torch.')}"


def shift(settings: Settings) -> Iterator[Row]:
    """Transformer-XL's shift of the scores, against its pad and reshape."""
    s = length(settings)
    for dtype in DTYPES:
        x = torch.randn(1, HEADS, s, s).to(dtype)

        def ours(x: Tensor = x) -> Tensor:
            return posenc_ext.rel_shift(x)

        def eager(x: Tensor = x, s: int = s) -> Tensor:
            padded = torch.nn.functional.pad(x, (1, 0)).view(1, HEADS, s + 1, s)
            return padded[:, :, 1:].view_as(x)

        seen = torch.ones(s, s, dtype=torch.bool).tril()  # of the rest, pad and reshape has others
        check_close("rel_shift", ours() * seen, eager().double() * seen, 0.0)
        times = time_in_turns({"ours": ours, "eager": eager}, settings)
        name = f"rel_shift {label(dtype, HEADS, s, s)}"
        yield faster(
            name, times["ours"], times["eager"], "pad and reshape", 1.5, bytes=2 * x.nbytes
        )


def bias(settings: Settings) -> Iterator[Row]:
    """T5's bias, against an embedding of every bucket that is permuted, as in Hugging Face."""
    s = length(settings)
    module = posenc_ext.T5RelativePositionBias(HEADS)
    weight = module.relative_attention_bias.weight
    distances = torch.arange(s) - torch.arange(s)[:, None]
    buckets = posenc_ext.t5_relative_position_bucket(distances)  # eager code is given them

    def eager() -> Tensor:
        made = torch.nn.functional.embedding(buckets, weight)
        return made.permute(2, 0, 1)[None].contiguous()

    check_close("T5RelativePositionBias", module(s).detach(), eager().detach().double(), 0.0)
    with torch.no_grad():
        times = time_in_turns({"ours": lambda: module(s), "eager": eager}, settings)
    name = f"T5RelativePositionBias {label(torch.float32, HEADS, s, s)}"
    moved = HEADS * s * s * 4
    yield faster(name, times["ours"], times["eager"], "eager, buckets kept", 4.0, bytes=moved)


def gather(settings: Settings) -> Iterator[Row]:
    """Shaw's clipped keys, forward and backward, against torch.gather and its scatter."""
    s, most = length(settings), 16
    index = posenc_ext.clipped_relative_index(s, left=most)
    for dtype in DTYPES:
        x = torch.randn(1, HEADS, s, 2 * most + 1).to(dtype).requires_grad_()
        g = torch.randn(1, HEADS, s, s).to(dtype)
        cells = (torch.arange(s) - torch.arange(s)[:, None]).clamp(-most, most) + most

        def ours(x: Tensor = x, s: int = s) -> Tensor:
            return posenc_ext.relative_gather(x, index, s)

        def eager(x: Tensor = x, s: int = s, cells: Tensor = cells) -> Tensor:
            return x.gather(-1, cells.expand(1, HEADS, s, s))

        def both(call, x: Tensor = x, g: Tensor = g) -> Tensor:
            return torch.autograd.grad(call(), x, g)[0]

        check_close("relative_gather", ours().detach(), eager().detach().double(), 0.0)
        wide = x.detach().double().requires_grad_()
        right = both(lambda wide=wide: eager(wide), wide, g.double())
        check_close("its gradient", both(ours), right, 1e-6 if dtype == torch.float32 else 2**-8)
        times = time_in_turns(
            {"ours": lambda: both(ours), "eager": lambda: both(eager)},
            settings,
        )
        name = f"relative_gather and its gradient, {label(dtype, HEADS, s, s)}"
        yield faster(name, times["ours"], times["eager"], "torch.gather", 4.0, bytes=2 * g.nbytes)
