"""Pictures of position encodings. They need matplotlib: ``pip install 'posenc_ext[plot]'``.

Each function returns a new matplotlib ``Figure`` that pyplot does not know, so nothing is shown,
kept or configured globally, and no display is needed: ``figure.savefig("picture.png")``. What it
draws comes from the functions above it, without matplotlib. ``python -m posenc_ext plot`` does the
same from a shell.

>>> import posenc_ext.plot
>>> figure = posenc_ext.plot.alibi(8, 64)
>>> [axes.get_xlabel() for axes in figure.axes]
['key', 'distance', '']
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .arguments import error, integer
from .frequencies import RopeFrequencies, Rule
from .ops.alibi import alibi_bias, alibi_slopes
from .ops.rope_frequencies import rope_frequencies
from .ops.rope_table import rope_table
from .ops.sinusoidal import sinusoidal_table
from .scaling import NTK, Linear, Llama3, NTKByParts, PartNTK, YaRN
from .types import SinusoidConvention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, RopeFrequencies]


def bases(
    dim: int = 128, values: tuple[float, ...] = (1e4, 5e5, 1e6)
) -> dict[str, RopeFrequencies]:
    """Frequencies without a rule, by the name of the base.

    >>> list(bases(64, (10000.0,)))
    ['base 10000']
    """
    return {f"base {base:g}": rope_frequencies(dim, base) for base in values}


def rules(
    dim: int = 128, base: float = 10000.0, factor: float = 8.0, length: float = 4096.0
) -> dict[str, RopeFrequencies]:
    """Frequencies of the rules of :mod:`posenc_ext.scaling` that `factor` and the original `length`
    define, by name, after the unscaled ones.

    >>> list(rules())
    ['unscaled', 'linear', 'ntk', 'ntk_by_parts', 'part_ntk', 'yarn', 'llama3']
    """
    chosen: dict[str, Rule | None] = {
        "unscaled": None,
        "linear": Linear(factor),
        "ntk": NTK(factor),
        "ntk_by_parts": NTKByParts(factor, length),
        "part_ntk": PartNTK(factor, length),
        "yarn": YaRN(factor, length),
        "llama3": Llama3(factor, 1.0, 4.0, length),
    }
    return {name: rope_frequencies(dim, base, rule) for name, rule in chosen.items()}


def decay_curves(distances: Tensor, frequencies: RopeFrequencies) -> tuple[Tensor, Tensor]:
    """How a rotary score falls with distance, in two forms, float64 like `distances` ``[N]``.

    The first is the score of a query and a key that are all ones, divided by R: the mean of
    ``cos(distance * inv_freq)``. The second bounds any score up to a factor of the contents:
    ``1/n sum_j |S_j|``, S_j the sum of the first j of ``exp(1j * distance * inv_freq)``, n = R/2
    (Su et al., https://arxiv.org/abs/2104.09864, section 3.4.3). Both carry the square of the
    attention factor, as the score does.

    >>> mean, bound = decay_curves(torch.tensor([0, 1]), rope_frequencies(128))
    >>> mean.tolist()  # doctest: +ELLIPSIS
    [1.0, 0.9702...]
    >>> bound[0].item()
    32.5
    """
    cos, sin = rope_table(distances, frequencies.inv_freq, dtype=torch.float64)
    weight = frequencies.attention_factor**2
    sums = torch.hypot(cos.cumsum(-1), sin.cumsum(-1))
    return weight * cos.mean(-1), weight * sums.mean(-1)


def frequency_ratios(frequencies: RopeFrequencies, base: float = 10000.0) -> Tensor:
    """Each frequency divided by the unscaled one, float64 ``[R/2]``.

    >>> frequency_ratios(rope_frequencies(4, scaling=Linear(8.0))).tolist()
    [0.125, 0.125]
    """
    inv_freq = frequencies.inv_freq.double()
    return inv_freq / rope_frequencies(2 * len(inv_freq), base).inv_freq


def spaced_distances(longest: int, count: int = 600) -> Tensor:
    """0 and the whole numbers to `longest`, evenly spaced in the logarithm, int64.

    >>> spaced_distances(4).tolist()
    [0, 1, 2, 3, 4]
    """
    longest = _positive("decay", "longest", longest)
    grid = torch.logspace(0, math.log10(longest), count, dtype=torch.float64)
    ends = torch.tensor([0, longest])
    return torch.cat([ends, grid[:-1].round().long()]).unique()


def sinusoidal(
    positions: int = 128,
    dim: int = 128,
    *,
    base: float = 10000.0,
    convention: SinusoidConvention = "interleaved",
) -> Figure:
    """A heat map of :func:`posenc_ext.sinusoidal_table`: a row for each position."""
    size = _positive("sinusoidal", "positions", positions)
    table = sinusoidal_table(
        size, _positive("sinusoidal", "dim", dim), base=base, convention=convention
    )
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    image = axes.imshow(
        table.tolist(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    axes.set(xlabel="channel", ylabel="position", title=f"sinusoidal, {convention}, base {base:g}")
    figure.colorbar(image)
    return figure


def decay(curves: Curves | None = None, *, longest: int = 32768) -> Figure:
    """Two panels: the curves of :func:`decay_curves` for each of `curves` (default: :func:`bases`),
    up to the distance `longest`."""
    distances = spaced_distances(longest)
    figure = _figure(9.6, 3.8)
    score, bound = figure.subplots(1, 2)
    for name, frequencies in (bases() if curves is None else curves).items():
        mean, upper = decay_curves(distances, frequencies)
        score.plot(distances.tolist(), mean.tolist(), label=name, linewidth=1)
        bound.plot(distances.tolist(), upper.tolist(), linewidth=1)
    score.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    for axes in (score, bound):
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlabel="distance", xlim=(0, max(longest, 1)))
    score.set_title("score of a query and a key of ones, / R")
    bound.set_title("bound of the article, mean of |S_j|")
    score.legend(fontsize="small", loc="upper right")
    return figure


def frequencies(curves: Curves | None = None, *, base: float = 10000.0) -> Figure:
    """What rules make of each frequency: :func:`frequency_ratios` for each of `curves` (default:
    :func:`rules`), and the wavelengths."""
    figure = _figure(9.6, 3.8)
    ratio, wave = figure.subplots(1, 2)
    for i, (name, one) in enumerate((rules(base=base) if curves is None else curves).items()):
        style = ("-", "--", ":")[i % 3]
        ratio.plot(frequency_ratios(one, base).tolist(), style, label=name)
        wave.plot((2 * torch.pi / one.inv_freq).tolist(), style)
    ratio.set(xlabel="frequency i", title="scaled / unscaled")
    wave.set(xlabel="frequency i", title="wavelength in positions", yscale="log")
    ratio.legend(fontsize="small")
    return figure


def alibi(num_heads: int = 8, length: int = 64) -> Figure:
    """Two panels: :func:`posenc_ext.alibi_bias` of the first head as a heat map (white is masked),
    and the bias of the last query by distance, a line for each head."""
    heads = _positive("alibi", "num_heads", num_heads)
    size = _positive("alibi", "length", length)
    slopes = alibi_slopes(heads)
    bias = alibi_bias(slopes, size, causal=True)
    figure = _figure(9.6, 3.8)
    cells, lines = figure.subplots(1, 2)
    image = cells.imshow(bias[0].tolist(), cmap="viridis", interpolation="nearest")
    cells.set(xlabel="key", ylabel="query", title=f"bias of head 0, slope {slopes[0].item():g}")
    figure.colorbar(image, ax=cells)
    for head in range(heads):
        label = f"head {head}, {slopes[head].item():.4g}" if heads <= 12 else None
        lines.plot(bias[head, -1].flip(0).tolist(), label=label, color=f"C{head % 10}")
    lines.set(xlabel="distance", title="bias by distance, slopes of the heads")
    if heads <= 12:
        lines.legend(fontsize="small")
    return figure


def _positive(op: str, name: str, value: int) -> int:
    value = integer(f"plot.{op}", name, value)
    if value < 1:
        raise error(ValueError, f"plot.{op}", f"{name} must be at least 1, got {value}")
    return value


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "posenc_ext.plot: matplotlib must be installed (pip install 'posenc_ext[plot]'), "
            f"got {missing}"
        ) from missing
    return Figure(figsize=(width, height), layout="constrained")
