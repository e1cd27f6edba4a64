"""Modeling code of one's own for `patch`, as model families write it."""

import torch
from rope_cases import rotate_half, uniform


def turned(x, cos, sin, interleaved=False):
    return x * cos + rotate_half(x, interleaved) * sin


def llama(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return turned(q, cos, sin), turned(k, cos, sin)


def tail(x, cos, sin, unsqueeze_dim=1):
    """As DeepSeek-V4: the last channels, interleaved."""
    cos, sin = (t.repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for t in (cos, sin))
    rest, part = x[..., : -cos.shape[-1]], x[..., -cos.shape[-1] :]
    return torch.cat([rest, (turned(part.float(), cos, sin, True)).to(x.dtype)], -1)


def prefixed(q, k, cos, sin, **kwargs):
    """As DINOv3: the first tokens have no position."""
    sizes = (q.shape[-2] - sin.shape[-2], sin.shape[-2])
    parts = [x.split(sizes, -2) for x in (q, k)]
    return tuple(torch.cat([first, turned(rest, cos, sin)], -2) for first, rest in parts)


def optional(q, k=None, cos=None, sin=None, unsqueeze_dim=1):
    """As Qwen4-exp."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return turned(q, cos, sin) if k is None else (turned(q, cos, sin), turned(k, cos, sin))


def optional_pair(q, k, cos, sin, unsqueeze_dim=1):
    """As Mistral Large 4."""
    result = optional(q, k, cos, sin, unsqueeze_dim)
    return (result, None) if k is None else result


def complex_tables(xq, xk, freqs_cis, axis):
    as_complex = [torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) for x in (xq, xk)]
    freqs_cis = freqs_cis.unsqueeze(axis)
    return tuple(torch.view_as_real(x * freqs_cis).flatten(-2).type_as(xq) for x in as_complex)


def llama4(xq, xk, freqs_cis):
    return complex_tables(xq, xk, freqs_cis, 2)


def deepseek_v2(xq, xk, freqs_cis):
    return complex_tables(xq, xk, freqs_cis, 1)


def rows_of_image(q, k, cos, sin):
    """As SAM 3: tables line up by broadcasting."""
    return turned(q, cos, sin, True), turned(k, cos, sin, True)


def table(*shape, tied=True):
    half = uniform(shape, seed=3)
    return torch.cat([half, half if tied else uniform(shape, seed=4)], -1)


Q, K = uniform((2, 4, 5, 16)), uniform((2, 2, 5, 16), seed=1)
QT, KT = uniform((2, 5, 4, 16)), uniform((2, 5, 2, 16), seed=1)
COS, SIN = table(2, 5, 8), table(2, 5, 8).flip(1)
