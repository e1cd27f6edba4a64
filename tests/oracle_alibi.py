"""The right answers for ALiBi: NumPy float64 only, written from the formulas cell by cell.

One function per op, with the name and argument order of the public one; arguments that only say
where or how a result is stored (`inplace`, `dtype`, `device`) are left out.
"""

import math

import numpy as np

# {dtype: (rtol, atol)} of sums and of bias cells below 64 in magnitude.
TOLERANCE_SUM = {
    "float64": (0.0, 3e-14),  # two roundings at 2**-53 * 64
    "float32": (0.0, 8e-6),  # two roundings at 2**-24 * 64
    "float16": (2**-10.9, 8e-6),  # one rounding to 11 bits on top of float32's
    "bfloat16": (2**-7.9, 8e-6),  # one rounding to 8 bits on top of float32's
}

# {dtype: (rtol, atol)} of probabilities. An error of a logit is a relative error of its exp: below
# 32 in magnitude, three roundings of half an ulp are 3 * 2**-20 for one logit and as much for
# the largest; exp, the sum of up to 300 terms in 16 parts and the division add a few 2**-24.
TOLERANCE = {
    "float64": (2e-14, 1e-300),  # what is below 2**-1022 becomes 0
    "float32": (8e-6, 2e-38),  # what is below 2**-126 becomes 0
    "float16": (2**-10.9, 2**-24.9),  # rounded to 11 bits, subnormals to 2**-24
    "bfloat16": (2**-8, 2e-38),  # rounded to 8 bits
}

# The same for gradients: sums of such probabilities with gradients in [-2, 2], which cancel.
TOLERANCE_GRAD = {
    "float64": (1e-12, 1e-13),
    "float32": (1e-4, 2e-5),
    "float16": (2e-2, 4e-3),  # the saved probabilities are rounded to 11 bits
    "bfloat16": (1e-1, 3e-2),  # to 8 bits
}


def alibi_slopes(num_heads, *, max_bias=8.0):
    """2 ** (-max_bias k / H') for the even k, then for the odd k, of the next power of two H'."""
    size = 1
    while size < num_heads:
        size *= 2
    every = [2.0 ** (-max_bias * k / size) for k in range(1, size + 1)]
    if size == num_heads:
        return np.array(every)
    return np.array((every[1::2] + every[0::2])[:num_heads])


def alibi_bias(slopes, q_len, k_len=None, *, causal=False, key_positions=None):
    """-slope * |p - j|; query i stands at key i + K - Q."""
    k_len = q_len if k_len is None else k_len
    batch = slopes.shape[0] if slopes.ndim == 2 else 1
    batch = batch if key_positions is None else len(key_positions)
    slopes = np.broadcast_to(slopes, (batch, slopes.shape[-1]))
    out = np.empty((batch, slopes.shape[1], q_len, k_len))
    for b, h, i, j in np.ndindex(*out.shape):
        p = i + k_len - q_len
        if causal and j > p:
            out[b, h, i, j] = -math.inf
        elif key_positions is None:
            out[b, h, i, j] = -slopes[b, h] * abs(p - j)
        else:
            out[b, h, i, j] = -slopes[b, h] * abs(key_positions[b][p] - key_positions[b][j])
    return out


def alibi_row_bias(slopes, k_len):
    return alibi_bias(slopes, 1, k_len)


def add_alibi(scores, slopes, *, causal=False):
    return scores + alibi_bias(slopes, *scores.shape[-2:], causal=causal)


def alibi_softmax(scores, slopes, *, scale=1.0, causal=False, key_padding_mask=None):
    """Rows without a key that may be seen are zeros."""
    bias = alibi_bias(slopes, *scores.shape[-2:], causal=causal)
    out = np.zeros(scores.shape)
    for b, h, i in np.ndindex(*scores.shape[:3]):
        logits = scale * scores[b, h, i] + bias[b if len(bias) > 1 else 0, h, i]
        keep = logits > -math.inf
        if key_padding_mask is not None:
            keep &= key_padding_mask[b]
        if keep.any():
            e = np.where(keep, np.exp(np.where(keep, logits, 0) - logits[keep].max()), 0)
            out[b, h, i] = e / e.sum()
    return out


def alibi_softmax_grads(grad, scores, slopes, *, scale=1.0, causal=False, key_padding_mask=None):
    """The gradients of scores and slopes."""
    y = alibi_softmax(scores, slopes, scale=scale, causal=causal, key_padding_mask=key_padding_mask)
    logits = y * (grad - (y * grad).sum(-1, keepdims=True))
    return scale * logits, slope_grads(logits, slopes)


def slope_grads(grad, slopes):
    """sum(grad * -|p - j|) for every slope."""
    unit = alibi_bias(np.ones(1), *grad.shape[-2:])[0, 0]
    by_head = (grad * unit).sum((-2, -1))
    return by_head if slopes.ndim == 2 or grad.ndim == 3 else by_head.sum(0)
