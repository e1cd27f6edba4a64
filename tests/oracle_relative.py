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


def positions(q_len, k_len, of):
    """of(i, j) for query i and key j, queries being the last of the keys, as a matrix [Q, K]."""
    out = np.empty((q_len, k_len), np.int64)
    for i, j in np.ndindex(q_len, k_len):
        out[i, j] = of(i + k_len - q_len, j)
    return out


def t5_bucket(relative, bidirectional=True, num_buckets=32, max_distance=128):
    """The bucket of one distance, key minus query, from the logarithm; exact at whole results."""
    offset, k = 0, max(-relative, 0)
    if bidirectional:
        num_buckets //= 2
        offset, k = num_buckets * (relative > 0), abs(relative)
    exact = num_buckets // 2
    if k < exact:
        return k + offset
    steps = np.log(k / exact) / np.log(max_distance / exact) * (num_buckets - exact)
    return int(min(exact + np.floor(steps + 1e-9), num_buckets - 1)) + offset


def deberta_bucket(delta, bucket_size, max_position):
    """The log bucket of one distance, query minus key."""
    mid = bucket_size // 2
    if abs(delta) <= mid:
        return delta
    steps = np.log(abs(delta) / mid) / np.log((max_position - 1) / mid) * (mid - 1)
    return int(np.sign(delta) * (np.ceil(steps - 1e-9) + mid))


def t5_bias(weight, q_len, k_len, **rule):
    """[1, H, Q, K] from weight [buckets, H]."""
    buckets = positions(q_len, k_len, lambda i, j: t5_bucket(j - i, **rule))
    return weight[buckets].transpose(2, 0, 1)[None]
