"""The right answers for relative terms: NumPy float64 only, cell by cell from the formulas.

One function per op, with the name and argument order of the public one.
"""

import numpy as np

# {dtype: (rtol, atol)} for sums of up to 80 values in [-2, 2]: partial sums stay below 160, and at
# most 5 + 4 of them (80 terms in 16 parts, then a tree) are rounded on the way of one value.
TOLERANCE_SUM = {
    "float64": (0.0, 1e-13),  # 9 * 2**-54 * 160
    "float32": (0.0, 5e-5),  # 9 * 2**-25 * 160
    "float16": (2**-11, 5e-5),  # one rounding to 11 bits on top of float32's
    "bfloat16": (2**-8, 5e-5),  # one rounding to 8 bits on top of float32's
}


def relative_gather(x, index, k_len=None):
    """x[i, index[j - i + Q - 1]], 0 where the index is -1."""
    q_len = x.shape[-2]
    k_len = len(index) + 1 - q_len if k_len is None else k_len
    out = np.zeros((*x.shape[:-1], k_len))
    for i, j in np.ndindex(q_len, k_len):
        t = index[j - i + q_len - 1]
        if t >= 0:
            out[..., i, j] = x[..., i, t]
    return out


def relative_scatter(y, index, size):
    """The sum of y[i, j] over the j with index[j - i + Q - 1] == t."""
    q_len, k_len = y.shape[-2:]
    out = np.zeros((*y.shape[:-1], size))
    for i, j in np.ndindex(q_len, k_len):
        t = index[j - i + q_len - 1]
        if t >= 0:
            out[..., i, t] += y[..., i, j]
    return out


def rel_shift(x, k_len=None, *, start=None):
    """x[i, start + j - i], 0 outside."""
    q_len, size = x.shape[-2:]
    k_len = size if k_len is None else k_len
    start = q_len - 1 if start is None else start
    out = np.zeros((*x.shape[:-1], k_len))
    for i, j in np.ndindex(q_len, k_len):
        if 0 <= start + j - i < size:
            out[..., i, j] = x[..., i, start + j - i]
    return out
