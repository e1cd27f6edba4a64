"""`patch` and the function `apply_rotary_pos_emb` by themselves, without transformers."""

import subprocess
import sys
import types

import pytest
import torch
from rope_cases import assert_bits, uniform

from posenc_ext.compat.transformers import apply_rotary_pos_emb, patch, unpatch


def rotate_half(x):
    return torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


def theirs(q, k, cos, sin, unsqueeze_dim=1):
    """What transformers does."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    part, rest = q[..., : cos.shape[-1]], q[..., cos.shape[-1] :]
    q = torch.cat([part * cos + rotate_half(part) * sin, rest], -1)
    part, rest = k[..., : cos.shape[-1]], k[..., cos.shape[-1] :]
    return q, torch.cat([part * cos + rotate_half(part) * sin, rest], -1)


def tables(*shape, dtype=torch.float32):
    angle = uniform(shape, seed=3)
    return [t.repeat(*[1] * (len(shape) - 1), 2).to(dtype) for t in (angle.cos(), angle.sin())]


SHAPES = {  # q, k, half of a table, unsqueeze_dim
    "bhsd": ((2, 4, 5, 16), (2, 2, 5, 16), (2, 5, 8), 1),
    "bhsd, one table": ((2, 4, 5, 16), (2, 2, 5, 16), (1, 5, 8), 1),
    "bshd": ((2, 5, 4, 16), (2, 5, 2, 16), (2, 5, 8), 2),
    "bshd, from the end": ((2, 5, 4, 16), (2, 5, 2, 16), (2, 5, 8), -2),
    "partial": ((2, 4, 5, 16), (2, 2, 5, 16), (2, 5, 3), 1),
    "flat table": ((2, 4, 5, 16), (2, 2, 5, 16), (5, 8), 0),
    "hsd": ((4, 5, 16), (2, 5, 16), (5, 8), 0),
    "shd": ((5, 4, 16), (5, 2, 16), (5, 8), 1),
    "one token": ((2, 4, 1, 16), (2, 2, 1, 16), (2, 1, 8), 1),
    "as many heads as tokens": ((2, 4, 4, 16), (2, 4, 4, 16), (2, 4, 8), 1),
    "empty": ((2, 4, 0, 16), (2, 2, 0, 16), (2, 0, 8), 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", SHAPES)
def test_bits_of_transformers(case, dtype):
    q_shape, k_shape, half, axis = SHAPES[case]
    q, k, cos, sin = (
        uniform(q_shape, dtype),
        uniform(k_shape, dtype, 1),
        *tables(*half, dtype=dtype),
    )
    right = theirs(q, k, cos, sin, axis)
    for mine, wanted in zip(
        apply_rotary_pos_emb(q, k, cos, sin, axis, rounding="transformers"), right, strict=True
    ):
        assert_bits(mine, wanted)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exact = theirs(*(t.to(wide) for t in (q, k, cos, sin)), axis)
    for mine, wanted in zip(apply_rotary_pos_emb(q, k, cos, sin, axis), exact, strict=True):
        assert_bits(mine, wanted.to(dtype))


@pytest.mark.parametrize("rounding", ["once", "transformers"])
def test_gradients(rounding):
    results = []
    for function in (theirs, apply_rotary_pos_emb):
        q = uniform((2, 4, 5, 16)).requires_grad_()
        k = uniform((2, 2, 5, 16), seed=1).requires_grad_()
        options = {} if function is theirs else {"rounding": rounding}
        outs = function(q, k, *tables(2, 5, 8), **options)
        torch.autograd.backward(outs, [uniform(o.shape, seed=2) for o in outs])
        results.append((q.grad, k.grad))
    for mine, right in zip(results[1], results[0], strict=True):
        assert_bits(mine, right)


@pytest.mark.parametrize("rounding", ["once", "transformers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_ids(dtype, rounding):
    q, k = uniform((2, 4, 5, 16), dtype), uniform((2, 2, 5, 16), dtype, 1)
    cos, sin = tables(40, 8, dtype=dtype)
    ids = torch.tensor([[0, 1, 2, 3, 4], [39, 7, 7, 0, 20]])
    ours = apply_rotary_pos_emb(q, k, cos, sin, position_ids=ids, rounding=rounding)
    right = apply_rotary_pos_emb(q, k, cos[ids], sin[ids], rounding=rounding)
    for mine, wanted in zip(ours, right, strict=True):
        assert_bits(mine, wanted)


Q, TABLE = uniform((2, 4, 5, 16)), tables(2, 5, 8)


@pytest.mark.parametrize(
    ("kind", "text", "args", "options"),
    [
        (ValueError, "rounding must be 'once' or 'transformers', got 'twice'",
         (Q, Q, *TABLE), {"rounding": "twice"}),
        (TypeError, "unsqueeze_dim must be an int", (Q, Q, *TABLE, torch.arange(5)), {}),
        (ValueError, "unsqueeze_dim must put", (Q, Q, *TABLE, 0), {}),
        (ValueError, "unsqueeze_dim must put", (Q, Q, *TABLE, 3), {}),
        (ValueError, "position_ids must be None unless", (Q, Q, *TABLE),
         {"position_ids": torch.zeros(2, 5, dtype=torch.int64)}),
        (ValueError, "cos must have an even number of columns, at most D = 16, got [2, 5, 15]",
         (Q, Q, *(t[..., 1:] for t in TABLE)), {}),
        (ValueError, "cos must", (Q, Q, *(t[:, :4] for t in TABLE)), {}),
        (ValueError, "cos must", (Q, Q, *(t[0, :4] for t in TABLE), 0), {}),
        (TypeError, "cos must", (Q.bfloat16(), Q.bfloat16(), *(t.half() for t in TABLE)), {}),
    ],
)  # fmt: skip
def test_errors(kind, text, args, options):
    with pytest.raises(kind, match=r"^posenc_ext\.apply_") as raised:
        apply_rotary_pos_emb(*args, **options)
    assert text in str(raised.value)


def module_with(**functions):
    module = types.ModuleType("modeling_mine")
    vars(module).update(functions)
    return module


def test_a_module_of_ones_own():
    module = module_with(apply_rotary_pos_emb=theirs)
    (swap,) = patch(module)
    assert str(swap) == (
        "modeling_mine.apply_rotary_pos_emb: half pairs, tiled tables, rounding once"
    )
    assert module.apply_rotary_pos_emb is not theirs
    args = (uniform((2, 4, 5, 16)), uniform((2, 2, 5, 16)), *TABLE)
    assert_bits(module.apply_rotary_pos_emb(*args)[0], theirs(*args)[0])
    assert_bits(module.apply_rotary_pos_emb(q=args[0], k=args[1], cos=args[2], sin=args[3])[0],
                theirs(*args)[0])  # fmt: skip
    assert unpatch(module) == ["modeling_mine.apply_rotary_pos_emb"]
    assert module.apply_rotary_pos_emb is theirs


def wrong_sign(q, k, cos, sin, unsqueeze_dim=1):
    return theirs(q, k, cos, 0.5 * sin, unsqueeze_dim)


def wrong_key(q, k, cos, sin, unsqueeze_dim=1):
    return theirs(q, k, cos, sin, unsqueeze_dim)[0], k


@pytest.mark.parametrize("function", [wrong_sign, wrong_key, max])
def test_a_function_that_does_something_else_is_refused_and_nothing_swapped(function):
    module = module_with(apply_rotary_pos_emb=theirs, apply_rotary_pos_emb_vision=function)
    with pytest.raises(
        ValueError,
        match=r"^posenc_ext\.patch: model_or_module must use rotations known here, "
        r"got modeling_mine\.apply_rotary_pos_emb_vision",
    ):
        patch(module)
    assert module.apply_rotary_pos_emb is theirs


def test_what_was_put_over_ours_is_not_lost():
    module = module_with(apply_rotary_pos_emb=theirs)
    patch(module)
    ours = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = other = lambda *args: theirs(*args)
    with pytest.raises(ValueError, match=r"^posenc_ext\.unpatch: .* must be what patch put there"):
        unpatch(module)
    assert module.apply_rotary_pos_emb is other
    module.apply_rotary_pos_emb = ours
    unpatch(module)


def test_changing_the_rounding_keeps_the_original():
    module = module_with(apply_rotary_pos_emb=theirs)
    patch(module)
    (swap,) = patch(module, rounding="transformers")
    assert swap.rounding == "transformers"
    assert module.apply_rotary_pos_emb.__wrapped__ is theirs
    unpatch(module)
    assert module.apply_rotary_pos_emb is theirs


@pytest.mark.parametrize("function", [patch, unpatch])
def test_neither_model_nor_module(function):
    with pytest.raises(
        TypeError, match=r"model_or_module must be a model, its class or .* got str"
    ):
        function("llama")


def test_no_host_library_is_imported():
    code = (
        "import sys, posenc_ext.compat.transformers, posenc_ext.compat.flash_attn, "
        "posenc_ext.compat.llama, posenc_ext.compat.vllm; "
        "print({'transformers', 'flash_attn', 'llama', 'vllm'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "set()\n", result.stderr
