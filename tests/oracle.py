"""The right answers: NumPy float64 only, written from the formulas with explicit indices.

One function per op, with the name and argument order of the public one; arguments that only say
where a result is stored (`inplace`, `out`, `dtype`, `device`) are left out. Callers cast inputs to
the tested dtype first and then up to float64, so that only the error of the kernel is measured.
"""

import numpy as np

# {dtype: (rtol, atol)} for inputs in [-2, 2] and tables in [-1, 1]: products stay below 2, results
# below 2.83.
TOLERANCE = {
    "float64": (
        0.0,
        7e-16,
    ),  # two products and one sum: 2**-53 * (2.83 + 2.83), the oracle rounds alike
    "float32": (0.0, 4e-7),  # the same count of roundings at 2**-24
    "float16": (
        2**-11,
        5e-7,
    ),  # one rounding to 11 bits on top of float32's (and subnormals at 2**-25)
    "bfloat16": (2**-8, 5e-7),  # one rounding to 8 bits on top of float32's
}

# The same for sums of up to 64 such products (gradients of tables).
TOLERANCE_SUM = {
    "float64": (1e-14, 1e-14),  # 64 roundings at 2**-53
    "float32": (1e-5, 1e-5),  # 64 roundings at 2**-24, with room for any order of the sum
    "float16": (2**-10, 2e-5),  # one rounding to 11 bits on top of float32's
    "bfloat16": (2**-7, 2e-5),  # one rounding to 8 bits on top of float32's
}


def table_row(b, s, cos, positions=None, offset=0, cu_seqlens=None):
    """The index into cos and sin of the row that rotates token s of batch entry b."""
    if cos.ndim == 3:
        return (0 if cos.shape[0] == 1 else b, s)
    if positions is not None:
        positions = np.asarray(positions)
        if positions.ndim == 1:
            return int(positions[s])
        return int(positions[0 if positions.shape[0] == 1 else b, s])
    start, owner = 0, b
    if cu_seqlens is not None:
        owner = max(j for j in range(len(cu_seqlens) - 1) if cu_seqlens[j] <= s)
        start = int(cu_seqlens[owner])
    offset = np.asarray(offset)
    return s - start + int(offset if offset.ndim == 0 else offset[owner])


def pair_channels(n, interleaved):
    """Channels of the first and of the second partner of each of the n pairs."""
    i = np.arange(n)
    return (2 * i, 2 * i + 1) if interleaved else (i, n + i)


def rope(
    x,
    cos,
    sin=None,
    *,
    layout="bshd",
    positions=None,
    offset=0,
    cu_seqlens=None,
    interleaved=False,
    interleaved_out=None,
    inverse=False,
):
    """u' = u c - v s, v' = v c + u s for every pair; channels beyond the pairs stay."""
    if sin is None:
        cos, sin, interleaved = cos.real, cos.imag, True
    y = np.array(x)
    u, v = pair_channels(cos.shape[-1], interleaved)
    out = interleaved if interleaved_out is None else interleaved_out
    u_out, v_out = pair_channels(cos.shape[-1], out)
    for index in np.ndindex(*x.shape[:-1]):
        where = dict(zip(layout[:-1], index, strict=True))
        token = where["t"] if "t" in where else where["s"]
        row = table_row(where.get("b", 0), token, cos, positions, offset, cu_seqlens)
        c, s = cos[row], -sin[row] if inverse else sin[row]
        y[(*index, u_out)] = x[(*index, u)] * c - x[(*index, v)] * s
        y[(*index, v_out)] = x[(*index, v)] * c + x[(*index, u)] * s
    return y


def apply_rope(q, k, cos, sin=None, **options):
    return rope(q, cos, sin, **options), None if k is None else rope(k, cos, sin, **options)


def rope_table_grad(
    grad,
    x,
    cos,
    sin=None,
    *,
    layout="bshd",
    positions=None,
    offset=0,
    cu_seqlens=None,
    interleaved=False,
    interleaved_out=None,
    inverse=False,
):
    """dc = sum(g_u u + g_v v), ds = sum(g_v u - g_u v) over everything that read the row."""
    if sin is None:
        cos, sin, interleaved = cos.real, cos.imag, True
    dcos, dsin = np.zeros(cos.shape), np.zeros(sin.shape)
    u, v = pair_channels(cos.shape[-1], interleaved)
    out = interleaved if interleaved_out is None else interleaved_out
    u_out, v_out = pair_channels(cos.shape[-1], out)
    for index in np.ndindex(*x.shape[:-1]):
        where = dict(zip(layout[:-1], index, strict=True))
        token = where["t"] if "t" in where else where["s"]
        row = table_row(where.get("b", 0), token, cos, positions, offset, cu_seqlens)
        gu, gv, xu, xv = (
            grad[(*index, u_out)],
            grad[(*index, v_out)],
            x[(*index, u)],
            x[(*index, v)],
        )
        dcos[row] += gu * xu + gv * xv
        dsin[row] += (gv * xu - gu * xv) * (-1 if inverse else 1)
    return dcos, dsin


def rope_frequencies(dim, base=10000.0):
    """inv_freq[i] = base ** (-2 i / dim), the default rule, whose attention factor is 1."""
    return np.array([float(base) ** (-2.0 * i / dim) for i in range(dim // 2)]), 1.0


def rope_table(positions, inv_freq, *, attention_factor=1.0):
    """cos and sin of position times frequency. The angle is a rounded double: error p * 2**-53."""
    positions = np.arange(positions) if np.ndim(positions) == 0 else np.asarray(positions)
    angle = positions[..., None].astype(np.float64) * np.asarray(inv_freq, dtype=np.float64)
    return attention_factor * np.cos(angle), attention_factor * np.sin(angle)
