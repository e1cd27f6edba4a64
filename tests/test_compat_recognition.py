"""`patch` on modeling code of one's own: what it takes, what it refuses and why."""

import functools

import pytest
import torch
from patch_cases import (
    COS,
    KT,
    QT,
    SIN,
    K,
    Q,
    deepseek_v2,
    llama,
    llama4,
    optional,
    optional_pair,
    prefixed,
    rows_of_image,
    tail,
)
from rope_cases import assert_bits, uniform

from posenc_ext.compat.transformers import patch, unpatch

HALF = uniform((2, 5, 4), seed=5), uniform((2, 5, 4), seed=6)
CIS = torch.complex(uniform((2, 5, 8), seed=5), uniform((2, 5, 8), seed=6))
KNOWN = {  # function, arguments, form
    "tail": (tail, (Q, *HALF), "interleaved pairs of the last channels, half tables"),
    "tail, other axis": (tail, (QT, *HALF, 2), "interleaved pairs of the last channels, half"),
    "prefix": (prefixed, (uniform((2, 4, 7, 16)), uniform((2, 2, 7, 16)), COS[0], SIN[0]), "half"),
    "no prefix": (prefixed, (Q, K, COS[0], SIN[0]), "half pairs"),
    "without k": (optional, (Q, None, COS, SIN), "half pairs"),
    "with k": (optional, (QT, KT, COS, SIN, 2), "half pairs"),
    "pair without k": (optional_pair, (Q, None, COS, SIN), "half pairs"),
    "complex, heads inside": (llama4, (QT, KT, CIS), "interleaved pairs, complex tables"),
    "complex, heads outside": (deepseek_v2, (Q, K, CIS), "interleaved pairs, complex tables"),
    "table of the heads' rank": (
        rows_of_image,
        (Q, K, *(t[:, None, :, :8].repeat_interleave(2, -1) for t in (COS, SIN))),
        "interleaved pairs, repeated tables",
    ),
    "default axis": (functools.partial(llama, unsqueeze_dim=2), (QT, KT, COS, SIN), "half"),
}


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", KNOWN)
def test_known(case, module, turns):
    function, args, form = KNOWN[case]
    module.apply_rotary_pos_emb = function
    (swap,) = patch(module)
    assert swap.form.startswith(form)
    ours, right = module.apply_rotary_pos_emb(*args), function(*args)
    assert type(ours) is type(right)
    for mine, wanted in zip(as_tuple(ours), as_tuple(right), strict=True):
        if wanted is None:
            assert mine is None
        elif "complex" in form:  # torch may fuse the sums of a complex product
            torch.testing.assert_close(mine, wanted, rtol=0, atol=3e-7)
        else:
            assert_bits(mine, wanted)
    assert turns


OUTSIDE = {  # calls of `llama` or `prefixed` that the original takes
    "fewer tokens in q": (llama, (Q[:, :, :1], K, COS[:, :1], SIN[:, :1]), {}),
    "a batch of one": (llama, (Q[:1], K, COS, SIN), {}),
    "one row for all": (llama, (Q, K, COS[:, :1], SIN[:, :1]), {}),
    "float64 tables": (llama, (Q, K, COS.double(), SIN.double()), {}),
    "another dtype of k": (llama, (Q, K.bfloat16(), COS, SIN), {}),
    "tables that are learned": (llama, (Q, K, COS.clone().requires_grad_(), SIN), {}),
    "another keyword": (prefixed, (Q, K, COS[0], SIN[0]), {"scale": 2.0}),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_other_calls_run_the_original(case, module, turns):
    function, args, options = OUTSIDE[case]
    module.apply_rotary_pos_emb = function
    patch(module)
    turns.clear()
    ours, right = module.apply_rotary_pos_emb(*args, **options), function(*args, **options)
    for mine, wanted in zip(ours, right, strict=True):
        assert_bits(mine, wanted)
    assert not turns
    with pytest.raises(TypeError, match="argument"):
        module.apply_rotary_pos_emb(*args, wrong=1) if function is llama else llama()


class HubModule(torch.nn.Module):
    """As the package kernels wraps a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


@functools.wraps(llama)
def logged(*args, **kwargs):
    return llama(*args, **kwargs)


WRAPPED = {
    "a module": HubModule(llama),
    "a function that names its original": logged,
    "a function that does not": lambda *args, **kwargs: llama(*args, **kwargs),
    "a partial": functools.partial(llama, unsqueeze_dim=1),
    "compiled": torch.compile(llama, backend="eager"),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_wrapped(kind, module, turns):
    original = module.apply_rotary_pos_emb = WRAPPED[kind]
    (swap,) = patch(module)
    assert swap.form == "half pairs, tiled tables"
    turns.clear()
    ours = module.apply_rotary_pos_emb(QT, KT, COS, SIN, unsqueeze_dim=2)
    for mine, wanted in zip(ours, llama(QT, KT, COS, SIN, 2), strict=True):
        assert_bits(mine, wanted)
    assert turns
    unpatch(module)
    assert module.apply_rotary_pos_emb is original


def scaled_rest(q, k, cos, sin, unsqueeze_dim=1):
    """Wrong only where there are more channels than columns."""
    n = cos.shape[-1]
    parts = llama(q[..., :n], k[..., :n], cos, sin, unsqueeze_dim)
    return tuple(torch.cat([y, 2 * x[..., n:]], -1) for x, y in zip((q, k), parts, strict=True))


def in_place(q, k, cos, sin, unsqueeze_dim=1):
    result = llama(q.clone(), k, cos, sin, unsqueeze_dim)
    q.zero_()
    return result


def second_call(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q, k, cos, sin if q.shape[-2] < 5 else -sin, unsqueeze_dim)


def not_in_half(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q, k, cos, sin, unsqueeze_dim) if q.dtype == torch.float32 else (q, k)


def without_gradient(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q.detach(), k, cos, sin, unsqueeze_dim)


def dense_only(q, k, cos, sin, unsqueeze_dim=1):
    """Wrong where channels are not next to each other."""
    return llama(q * (1 if q.stride(-1) == 1 else 2), k, cos, sin, unsqueeze_dim)


def three(q, k, v, cos, sin):
    return (*llama(q, k, cos, sin), v)


def raising(q, k, cos, sin):
    raise RuntimeError("not today")


REFUSED = {
    scaled_rest: "differs in channels 8",
    in_place: "writes into its arguments",
    second_call: "other results than half pairs, tiled tables: q differs in channels 0",
    not_in_half: "other results than half pairs, tiled tables for q in torch.bfloat16",
    without_gradient: "does not pass on the gradient",
    dense_only: "other results than half pairs, tiled tables: q differs in channels 0",
    three: r"was not called, since it has a parameter 'v' in \(q, k, v, cos, sin\)",
    raising: "was called and raised each time, first RuntimeError: not today",
    max: "was not called, since it has no signature",
}


@pytest.mark.parametrize("function", REFUSED)
def test_refused_with_the_reason(function, module):
    module.apply_rotary_pos_emb = function
    with pytest.raises(ValueError, match=rf"apply_rotary_pos_emb, which .*{REFUSED[function]}"):
        patch(module)
    assert module.apply_rotary_pos_emb is function
