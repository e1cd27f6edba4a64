"""The right answers for the sinusoidal ops: NumPy float64 only, with explicit indices.

One function per op, with the name and argument order of the public one. The frequencies are written
as powers here; `exponential` gives the other usual form.
"""

import numpy as np

# name: (first of a pair, columns side by side, frequencies less this, odd widths end in a zero)
CONVENTIONS = {
    "interleaved": ("sin", True, 0, False),
    "concatenated": ("sin", False, 0, False),
    "tensor2tensor": ("sin", False, 1, True),
    "fairseq": ("sin", False, 1, True),
    "musicgen": ("cos", False, 1, True),
    "diffusion": ("cos", False, 0, True),
}


def frequencies(dim, base=10000.0, convention="interleaved", exponential=False):
    _, _, shift, pad = CONVENTIONS[convention]
    n = dim // 2 if pad else (dim + 1) // 2
    denominator = (dim // 2 if pad else dim / 2) - shift
    if n == 1:
        denominator = 1.0
    if exponential:
        return np.array([np.exp(-i * np.log(base) / denominator) for i in range(n)])
    return np.array([float(base) ** (-i / denominator) for i in range(n)])


def sinusoidal_table(positions, dim, *, base=10000.0, convention="interleaved", padding_idx=None):
    positions = np.arange(positions) if np.ndim(positions) == 0 else np.asarray(positions)
    first, interleaved, _, _ = CONVENTIONS[convention]
    omega = frequencies(dim, base, convention)
    table = np.zeros((*positions.shape, dim))
    for i in range(len(omega)):
        angle = positions.astype(np.float64) * omega[i]
        waves = (np.sin(angle), np.cos(angle)) if first == "sin" else (np.cos(angle), np.sin(angle))
        columns = (2 * i, 2 * i + 1) if interleaved else (i, len(omega) + i)
        for column, wave in zip(columns, waves, strict=True):
            if column < dim:
                table[..., column] = wave
    if padding_idx is not None:
        table[positions == padding_idx] = 0
    return table


def add_sinusoidal(x, *, offset=0, scale=1.0, base=10000.0, convention="interleaved"):
    offset = np.asarray(offset)
    y = np.empty(x.shape)
    for index in np.ndindex(*x.shape[:-1]):
        start = int(offset if offset.ndim == 0 else offset[index[0]])
        row = sinusoidal_table(
            np.array([start + index[-1]]), x.shape[-1], base=base, convention=convention
        )
        y[index] = scale * x[index] + row[0]
    return y


def sinusoidal_table_2d(height, width, dim, *, first="width", base=10000.0):
    table = np.empty((height * width, dim))
    half = dim // 2
    for row in range(height):
        for column in range(width):
            one, other = (column, row) if first == "width" else (row, column)
            for start, at in ((0, one), (half, other)):
                table[row * width + column, start : start + half] = sinusoidal_table(
                    np.array([at]), half, base=base, convention="concatenated"
                )[0]
    return table
