"""The right answers for learned positions: NumPy only, token by token from the rules."""

import numpy as np

# {dtype: (rtol, atol)} of x + row, with values in [-2, 2]: one rounding.
TOLERANCE = {
    "float64": (0.0, 2.0**-51),
    "float32": (0.0, 2.0**-22),
    "float16": (2**-11, 2.0**-22),
    "bfloat16": (2**-8, 2.0**-22),
}


def padding_aware_positions(input_ids, padding_idx, *, past=0):
    """The n-th real token of a row has padding_idx + past + n, counted from 1; padding its id."""
    out = np.full(input_ids.shape, padding_idx, np.int64)
    for b, row in enumerate(input_ids):
        count = int(np.broadcast_to(past, len(input_ids))[b])
        for s, token in enumerate(row):
            if token != padding_idx:
                count += 1
                out[b, s] = padding_idx + count
    return out


def attention_mask_positions(attention_mask, *, first=0, fill=1, past=0):
    """The n-th real token of a row has first + n, counted from 0."""
    out = np.empty(attention_mask.shape, np.int64)
    for b, row in enumerate(attention_mask):
        position = first - 1
        for s, real in enumerate(row):
            position += bool(real)
            out[b, s] = position if real or fill is None else fill
    return out[:, past:]


def learned(x, weight, positions):
    """x + weight[positions], with positions [B, S]."""
    out = np.empty(x.shape)
    for b, s in np.ndindex(*x.shape[:2]):
        out[b, s] = x[b, s] + weight[positions[b, s]]
    return out
