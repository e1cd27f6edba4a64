"""Rules that stretch rotary position embedding (RoPE) beyond the length it was trained for.

Each rule maps (dim, base) to frequencies and an attention factor. It is an object, or a Hugging
Face ``rope_parameters`` / ``rope_scaling`` dict whose ``rope_type`` (or ``type``) names it and
whose other keys are its fields; both give the same result.

    rope_type         rule          source
    "default"         (none)        Su et al., https://arxiv.org/abs/2104.09864
    "linear"          Linear        position interpolation, https://arxiv.org/abs/2306.15595
    "ntk_aware"       NTK           NTK-aware scaling (bloc97): a larger base
    "ntk_mixed"       NTKMixed      https://kexue.fm/archives/9706; what vLLM calls "ntk"
    "dynamic"         DynamicNTK    the same, growing with the sequence (emozilla)
    "ntk_by_parts"    NTKByParts    https://arxiv.org/abs/2309.00071, section 3.2
    "part_ntk"        PartNTK       its predecessor in jquesnelle/yarn
    "yarn"            YaRN          the same article, as its code and every released model do it
    "longrope", "su"  LongRoPE      https://arxiv.org/abs/2402.13753
    "llama3"          Llama3        Llama 3.1
    "proportional"    Proportional  Gemma 4

"mrope" is "default", and "ntk" is "ntk_aware" (vLLM means another rule by it; in a config it is
refused). "dynamic" with a key ``alpha`` is "ntk_aware" by that factor, whatever the length, as in
Hunyuan's models. Any dict may have ``rope_theta`` (the base) and ``partial_rotary_factor``; a
missing ``original_max_position_embeddings`` is ``max_position_embeddings``, if that is there.

>>> from posenc_ext import rope_frequencies
>>> from posenc_ext.scaling import Linear
>>> rope_frequencies(8, scaling=Linear(factor=2.0)).inv_freq.tolist()
[0.5, 0.05, 0.005, 0.0005]
>>> rope_frequencies(8, scaling={"rope_type": "linear", "factor": 2.0}).inv_freq.tolist()
[0.5, 0.05, 0.005, 0.0005]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .frequencies import Request, RopeFrequencies, Rule, value_error


@dataclass(frozen=True)
class Linear(Rule):
    """Position interpolation: every frequency divided by `factor`."""

    factor: float

    def __call__(self, at: Request) -> RopeFrequencies:
        return RopeFrequencies(at.unscaled() / self.factor, 1.0)


@dataclass(frozen=True)
class NTK(Rule):
    """NTK-aware scaling: a larger base, such that the lowest frequency is divided by `factor`."""

    factor: float

    def __call__(self, at: Request) -> RopeFrequencies:
        return RopeFrequencies(at.unscaled(at.ntk_base(self.factor)), 1.0)


@dataclass(frozen=True)
class NTKMixed(Rule):
    """A base times `factor`, and all frequencies divided by ``factor^(2/R)``, which divides the
    lowest by `factor`. With `mixed_b` frequency i is divided by ``factor^((2(i + 1)/R)^mixed_b)``
    instead: the more, the lower it is."""

    factor: float
    mixed_b: float | None = None

    def __call__(self, at: Request) -> RopeFrequencies:
        if self.mixed_b is None:
            theta = at.unscaled(at.base * self.factor)
            return RopeFrequencies(theta / self.factor ** (2 / at.dim), 1.0)
        i = torch.arange(1, at.dim // 2 + 1, dtype=at.dtype, device="cpu")
        growth = math.log(self.factor) / (at.dim / 2) ** self.mixed_b * i**self.mixed_b
        return RopeFrequencies(at.unscaled() / growth.exp(), 1.0)


@dataclass(frozen=True)
class DynamicNTK(Rule):
    """NTK-aware scaling by the length of the sequence; nothing changes up to the original length.

    A function of `seq_len` alone: a short sequence after a long one gets the unscaled frequencies.
    """

    factor: float
    original_max_position_embeddings: float

    def __call__(self, at: Request) -> RopeFrequencies:
        original = self.original_max_position_embeddings
        length = max(at.seq_len or original, original)
        growth = (self.factor * length / original) - (self.factor - 1)
        return RopeFrequencies(at.unscaled(at.ntk_base(growth)), 1.0)


@dataclass(frozen=True)
class NTKByParts(Rule):
    """Frequencies that turn less than `alpha` times in the original length are divided by `factor`,
    those that turn more than `beta` times are kept, linear in the number of turns between."""

    factor: float
    original_max_position_embeddings: float
    alpha: float = 1.0
    beta: float = 32.0

    def __call__(self, at: Request) -> RopeFrequencies:
        if self.beta <= self.alpha:
            raise value_error(f"beta must be more than alpha = {self.alpha}, got {self.beta}")
        theta = at.unscaled()
        turns = self.original_max_position_embeddings * theta / (2 * math.pi)
        keep = torch.clamp((turns - self.alpha) / (self.beta - self.alpha), 0, 1)
        return RopeFrequencies((1 - keep) * theta / self.factor + keep * theta, 1.0)


@dataclass(frozen=True)
class PartNTK(Rule):
    """Blends interpolation into NTK-aware scaling between beta_0 and beta_1 turns, and the result
    into the unscaled frequencies between gamma_0 and gamma_1 turns, linear in the index."""

    factor: float
    original_max_position_embeddings: float
    beta_0: float = 1.25
    beta_1: float = 0.75
    gamma_0: float = 16.0
    gamma_1: float = 2.0

    def __call__(self, at: Request) -> RopeFrequencies:
        length, theta = self.original_max_position_embeddings, at.unscaled()
        slow = at.index_ramp(length, self.beta_0, self.beta_1)
        scaled = theta / self.factor * slow + at.unscaled(at.ntk_base(self.factor)) * (1 - slow)
        slow = at.index_ramp(length, self.gamma_0, self.gamma_1)
        return RopeFrequencies(scaled * slow + theta * (1 - slow), 1.0)


@dataclass(frozen=True)
class YaRN(Rule):
    """Frequencies that turn more than `beta_fast` times in the original length are kept, those that
    turn less than `beta_slow` times are divided by `factor`, linear in the index between.

    This is the form of the authors' code and of every released model; the formula in the article is
    linear in the number of turns instead (:class:`NTKByParts`). Some tutorials print a "YaRN" that
    compares 1/frequency with a count of dimensions: it has no original length, interpolates the
    high frequencies and keeps the low ones. That is the wrong way round, and not what is done here.

    The attention factor is `attention_factor` if given, else the ratio of the temperatures for
    `mscale` and `mscale_all_dim` if both are given (and not 0), else ``0.1 * ln(factor) + 1``.

    >>> from posenc_ext import rope_frequencies
    >>> qwen = YaRN(factor=4.0, original_max_position_embeddings=32768)
    >>> round(rope_frequencies(128, 1e6, qwen).attention_factor, 6)
    1.138629
    """

    factor: float
    original_max_position_embeddings: float
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def temperature(self, mscale: float = 1.0) -> float:
        """sqrt(1/t) of the article. DeepSeek multiplies the softmax scale by its square."""
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0

    def __call__(self, at: Request) -> RopeFrequencies:
        if self.beta_fast < self.beta_slow:
            raise value_error(
                f"beta_fast must be at least beta_slow = {self.beta_slow}, got {self.beta_fast}"
            )
        powers = at.powers(at.base)
        kept, divided = 1.0 / powers, 1.0 / (self.factor * powers)
        length = self.original_max_position_embeddings
        keep = 1 - at.index_ramp(length, self.beta_fast, self.beta_slow, self.truncate)
        scale = self.attention_factor
        if scale is None and self.mscale and self.mscale_all_dim:
            scale = self.temperature(self.mscale) / self.temperature(self.mscale_all_dim)
        elif scale is None:
            scale = self.temperature()
        return RopeFrequencies(divided * (1 - keep) + kept * keep, float(scale))


@dataclass(frozen=True)
class LongRoPE(Rule):
    """Each frequency divided by its own factor: `short_factor` [R/2] for sequences up to the
    original length, `long_factor` [R/2] for longer ones.

    Cached keys keep the frequencies they were rotated with, so a switch in the middle of a sequence
    is wrong for them: `pin` "short" or "long" holds one list whatever the length. The attention
    factor is `attention_factor`, or `short_mscale` / `long_mscale` (as the lists), or ``sqrt(1 +
    ln(factor) / ln(original length))``.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: float
    factor: float | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    pin: str | None = None

    def __call__(self, at: Request) -> RopeFrequencies:
        original = self.original_max_position_embeddings
        if self.pin not in (None, "short", "long"):
            raise value_error(f"pin must be None, 'short' or 'long', got {self.pin!r}")
        long = (at.seq_len or 0) > original if self.pin is None else self.pin == "long"
        name = "long_factor" if long else "short_factor"
        factors = self.long_factor if long else self.short_factor
        if len(factors) != at.dim // 2:
            raise value_error(f"{name} must have R/2 = {at.dim // 2} entries, got {len(factors)}")
        scale = self.attention_factor
        if scale is None:
            scale = self.long_mscale if long else self.short_mscale
        if scale is None and self.factor is None:
            raise value_error(
                "factor must be given (or attention_factor, or max_position_embeddings), got none"
            )
        if scale is None and original <= 1:
            raise value_error(
                "original_max_position_embeddings must be more than 1 (or attention_factor given), "
                f"got {original}"
            )
        if scale is None:
            stretch = max(self.factor or 1.0, 1.0)
            scale = math.sqrt(1 + math.log(stretch) / math.log(original))
        divisors = torch.tensor(factors, dtype=at.dtype, device="cpu")
        return RopeFrequencies(1.0 / (divisors * at.powers(at.base)), float(scale))


@dataclass(frozen=True)
class Llama3(Rule):
    """Frequencies that turn more than `high_freq_factor` times in the original length are kept,
    those that turn less than `low_freq_factor` times are divided by `factor`, linear between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: float

    def __call__(self, at: Request) -> RopeFrequencies:
        low, high = self.low_freq_factor, self.high_freq_factor
        if high < low:
            raise value_error(f"high_freq_factor must be at least {low} (low), got {high}")
        original, theta = self.original_max_position_embeddings, at.unscaled()
        wavelength = 2 * math.pi / theta
        scaled = torch.where(wavelength > original / low, theta / self.factor, theta)
        if high == low:  # nothing is between
            return RopeFrequencies(scaled, 1.0)
        smooth = (original / wavelength - low) / (high - low)
        blended = (1 - smooth) * theta / self.factor + smooth * theta
        between = (wavelength >= original / high) & (wavelength <= original / low)
        return RopeFrequencies(torch.where(between, blended, scaled), 1.0)


@dataclass(frozen=True)
class Proportional(Rule):
    """`dim` is the head dimension: the first ``partial_rotary_factor * dim / 2`` frequencies of a
    head that rotates as a whole, divided by `factor`, then zeros, which leave their channels
    alone."""

    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    def __call__(self, at: Request) -> RopeFrequencies:
        if self.partial_rotary_factor > 1:
            raise value_error(
                f"partial_rotary_factor must be at most 1, got {self.partial_rotary_factor}"
            )
        rotated = int(self.partial_rotary_factor * at.dim // 2)
        theta = at.unscaled() / self.factor
        theta[rotated:] = 0.0
        return RopeFrequencies(theta, 1.0)
