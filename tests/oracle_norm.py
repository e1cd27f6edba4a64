"""The right answers for norm_rope: NumPy float64 only, row by row, from the formulas.

Names and argument order are those of the public functions; arguments that only say where or how a
result is stored (`inplace`, `out`, `rounding`) are left out.
"""

import numpy as np
import oracle

# {dtype: (rtol, atol)} of results below 4 in magnitude, of a unit row times a weight below 2.
TOLERANCE = {
    "float64": (0.0, 1e-14),  # a mean of squares of up to 300 terms in 16 parts, and ten roundings
    "float32": (0.0, 6e-6),  # the same at 2**-24
    "float16": (2**-10.9, 6e-6),  # one rounding to 11 bits on top of float32's
    "bfloat16": (2**-7.9, 6e-6),  # one rounding to 8 bits on top of float32's
}

# The same for gradients, of results times gradients in [-2, 2], where rows are not small.
TOLERANCE_GRAD = {
    "float64": (1e-12, 1e-13),
    "float32": (1e-4, 3e-5),
    "float16": (2**-10, 2e-3),
    "bfloat16": (2**-7, 1e-2),
}


def groups(x, weight, layout, norm_dims):
    """The channels that share a statistic: (index into x, index into the weight) of each group."""
    heads = layout.find("h") if norm_dims == "all" else -1
    d = x.shape[-1]
    if d == 0:
        return
    for index in np.ndindex(*[1 if i == heads else n for i, n in enumerate(x.shape[:-1])]):
        if heads < 0:
            yield [(index, slice(0, d))]
        else:
            each = range(x.shape[heads])
            if not each:
                return
            yield [
                ((*index[:heads], h, *index[heads + 1 :]), slice(h * d, h * d + d)) for h in each
            ]


def statistic(rows, eps, norm):
    """The mean to take off and what to multiply by."""
    every = np.concatenate(rows)
    mean = every.mean() if norm == "layer" else 0.0
    squares = (every - mean) ** 2
    return mean, (squares.sum() / (1 if norm == "l2" else len(every)) + eps) ** -0.5


def normalised(x, weight, bias, layout, eps, norm, weight_offset, norm_dims):
    y = np.array(x)
    for group in groups(x, weight, layout, norm_dims):
        mean, scale = statistic([x[at] for at, _ in group], eps, norm)
        for at, of_weight in group:
            w = 1.0 if weight is None else weight[of_weight] + weight_offset
            y[at] = (x[at] - mean) * scale * w + (0.0 if bias is None else bias[of_weight])
    return y


def norm_rope(
    x,
    weight,
    cos,
    sin=None,
    *,
    eps=1e-6,
    norm="rms",
    weight_offset=0.0,
    bias=None,
    norm_dims="head",
    order="norm_first",
    layout="bshd",
    **rope,
):
    rule = weight, bias, layout, eps, norm, weight_offset, norm_dims
    if order == "rope_first":
        return normalised(oracle.rope(x, cos, sin, layout=layout, **rope), *rule)
    return oracle.rope(normalised(x, *rule), cos, sin, layout=layout, **rope)


def qk_norm_rope(q, k, q_weight, k_weight, cos, sin=None, *, q_bias=None, k_bias=None, **options):
    return (
        norm_rope(q, q_weight, cos, sin, bias=q_bias, **options),
        norm_rope(k, k_weight, cos, sin, bias=k_bias, **options),
    )


def norm_rope_grad(
    grad,
    x,
    weight,
    cos,
    sin,
    *,
    eps=1e-6,
    norm="rms",
    weight_offset=0.0,
    bias=None,
    norm_dims="head",
    order="norm_first",
    layout="bshd",
    inverse=False,
    **rope,
):
    """The gradients of x, weight and bias: each row's Jacobian, written out."""
    back = {"layout": layout, "inverse": not inverse, **rope}
    first = order == "rope_first"
    g = grad if first else oracle.rope(grad, cos, sin, **back)
    x = oracle.rope(x, cos, sin, **back | {"inverse": inverse}) if first else x
    dx, size = np.zeros(x.shape), x.shape[-1]
    size *= x.shape[layout.find("h")] if norm_dims == "all" and "h" in layout else 1
    dweight, dbias = np.zeros(size), np.zeros(size)
    for group in groups(x, weight, layout, norm_dims):
        rows = [x[at] for at, _ in group]
        mean, scale = statistic(rows, eps, norm)
        n = sum(map(len, rows))
        unit = (np.concatenate(rows) - mean) * scale
        jacobian = np.eye(n) - np.outer(unit, unit) / (1 if norm == "l2" else n)
        if norm == "layer":
            jacobian = jacobian - 1 / n
        w = np.concatenate([1 + 0 * x[at] if weight is None else weight[o] + weight_offset
                            for at, o in group])  # fmt: skip
        wide = np.concatenate([g[at] for at, _ in group])
        moved = np.split(scale * jacobian.T @ (w * wide), len(group))
        for (at, of_weight), row, u in zip(group, moved, np.split(unit, len(group)), strict=True):
            dx[at] = row
            dweight[of_weight] += g[at] * u
            dbias[of_weight] += g[at]
    return oracle.rope(dx, cos, sin, **back) if first else dx, dweight, dbias
