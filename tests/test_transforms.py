"""torch.func.grad, jvp, vjp, jacrev, jacfwd and hessian of every op, against torch.autograd."""

import pytest
import torch
from alibi_cases import slopes_of
from rope_cases import assert_bits, table, uniform
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from transform_cases import V, assert_vmap, per_sample

import posenc_ext

A, F64 = torch.tensor, torch.float64


def rope_in_place(x, cos, sin):
    return posenc_ext.rope(x.clone(), cos, sin, inplace=True)


def apply_in_place(x, cos, sin):
    return torch.cat(posenc_ext.apply_rope(x.clone(), x.clone(), cos, sin, inplace=True), 2)


def tables_of(x, p, f):
    return torch.cat(posenc_ext.rope_table(p, f, attention_factor=1.5, dtype=F64)) * x


rope_tensors = (uniform((1, 2, 1, 4), F64), *(uniform((3, 2), F64, i) for i in (1, 2)))
alibi_tensors = (uniform((1, 2, 2, 3), F64), slopes_of(2, F64))
table_tensors = (uniform((1,), F64), uniform((2,), F64) * 9, uniform((2,), F64))

# Functions of one to three tensors, every op among them.
DERIVATIVES = {
    "rope": (lambda x, c, s: posenc_ext.rope(x, c, s, interleaved=True), rope_tensors),
    "rope_positions": (
        lambda x, c, s: posenc_ext.rope(x, c, s, positions=A([2, 2]), inverse=True), rope_tensors),
    "apply_rope": (lambda x, c, s: torch.cat(posenc_ext.apply_rope(x, x * 2, c, s)), rope_tensors),
    "rope_in_place": (rope_in_place, rope_tensors),
    "apply_rope_in_place": (apply_in_place, rope_tensors),
    "norm_rope": (
        lambda x, c, s: posenc_ext.norm_rope(x, c[0, :1].expand(4), c, s, bias=s[1].repeat(2)),
        rope_tensors),
    "qk_norm_rope": (
        lambda x, c, s: torch.cat(
            posenc_ext.qk_norm_rope(x, x * 2, None, s[0].repeat(2), c, s, order="rope_first")),
        rope_tensors),
    "rope_table": (tables_of, table_tensors),
    "sinusoidal_table": (
        lambda x, p: x * posenc_ext.sinusoidal_table(p, 3, dtype=F64), table_tensors[:2]),
    "add_sinusoidal": (
        lambda x: posenc_ext.add_sinusoidal(x, scale=3.0) ** 2, (uniform((2, 4), F64),)),
    "alibi_bias": (
        lambda s, m: (s * posenc_ext.alibi_bias(m, 2, 3, dtype=F64)), alibi_tensors),
    "add_alibi": (lambda s, m: posenc_ext.add_alibi(s, m, causal=True).exp(), alibi_tensors),
    "add_alibi_in_place": (
        lambda s, m: posenc_ext.add_alibi(s.clone(), m, inplace=True) ** 2, alibi_tensors),
    "alibi_softmax": (
        lambda s, m: posenc_ext.alibi_softmax(s, m, scale=0.5, causal=True), alibi_tensors),
    "interleaved_to_half": (
        lambda w: posenc_ext.interleaved_to_half(w, 4) ** 3, (uniform((2, 4), F64),)),
}  # fmt: skip
every_derivative = pytest.mark.parametrize("call", DERIVATIVES)


def close(actual, right):
    torch.testing.assert_close(actual, right, rtol=1e-9, atol=1e-11)


def by_autograd(function, tensors):
    """Jacobians, without torch.func."""
    return torch.autograd.functional.jacobian(function, tensors)


@every_derivative
def test_first_derivatives(call):
    function, tensors = DERIVATIVES[call]
    each = tuple(range(len(tensors)))
    right = by_autograd(function, tensors)
    close(jacrev(function, each)(*tensors), right)
    close(jacfwd(function, each)(*tensors), right)

    y = function(*tensors)
    weights = uniform(y.shape, F64, 9)
    pulled = vjp(function, *tensors)[1](weights)
    close(grad(lambda *t: (function(*t) * weights).sum(), each)(*tensors), pulled)
    close(
        pulled,
        tuple(
            (weights.reshape(-1) @ j.reshape(y.numel(), -1)).view(t.shape)
            for j, t in zip(right, tensors, strict=True)
        ),
    )

    tangents = tuple(uniform(t.shape, F64, 5 + i) for i, t in enumerate(tensors))
    pushed = sum(
        (j.reshape(y.numel(), -1) @ d.reshape(-1)).view(y.shape)
        for j, d in zip(right, tangents, strict=True)
    )
    close(jvp(function, tensors, tangents), (y, pushed))


@every_derivative
def test_hessian(call):
    """Forward over reverse, and the other way round, against twice reverse without torch.func."""
    function, tensors = DERIVATIVES[call]
    each = tuple(range(len(tensors)))

    def scalar(*tensors):
        return (function(*tensors) ** 2).sum()

    right = torch.autograd.functional.hessian(scalar, tensors)
    close(hessian(scalar, each)(*tensors), right)
    close(jacrev(jacfwd(scalar, each), each)(*tensors), right)


@every_derivative
def test_per_sample_gradients(call):
    function, tensors = DERIVATIVES[call]
    each = tuple(range(len(tensors)))
    gradient = grad(lambda *t: (function(*t) ** 2).sum(), each)
    many = [torch.stack([t, t * 2, -t]) for t in tensors]
    close(list(vmap(gradient)(*many)), per_sample(gradient, (0,) * len(tensors), many))


def test_in_place_writes_into_the_tensor_of_a_transform():
    x, (cos, sin) = uniform((V, 2, 4, 2, 8)), table(4)

    def write(x):
        x = x * 1.0
        posenc_ext.rope(x, cos, sin, inplace=True)
        return x

    assert_bits(vmap(write)(x), torch.stack([posenc_ext.rope(t, cos, sin) for t in x]))
    weights = uniform(x.shape, seed=4)
    assert_bits(
        grad(lambda x: (write(x) * weights[0]).sum())(x[0]),
        posenc_ext.rope(weights[0], cos, sin, inverse=True),
    )


def test_jvp_is_the_op_on_the_tangent():
    x, d, (cos, sin) = uniform((2, 4, 2, 8)), uniform((2, 4, 2, 8), seed=1), table(4)
    value, tangent = jvp(lambda x: posenc_ext.rope(x, cos, sin), (x,), (d,))
    assert_bits(value, posenc_ext.rope(x, cos, sin))
    assert_bits(tangent, posenc_ext.rope(d, cos, sin))


def test_a_tensor_that_outlives_its_transform():
    """The pull-back may be used after vjp, and differentiated."""
    x, (cos, sin) = uniform((1, 2, 1, 4), F64), table(2, F64)
    weights = uniform(x.shape, F64, 3).requires_grad_()
    pulled = vjp(lambda c: posenc_ext.rope(x, c, sin), cos)[1](weights)[0]
    right = torch.autograd.grad(
        posenc_ext.rope(x, (c := cos.clone().requires_grad_()), sin), c, weights, create_graph=True
    )[0]
    assert_bits(pulled, right)
    close(
        torch.autograd.grad(pulled.pow(2).sum(), weights)[0],
        torch.autograd.grad(right.pow(2).sum(), weights)[0],
    )


@pytest.mark.parametrize(
    "rotary",
    [
        posenc_ext.RotaryPositionalEmbedding(8),
        posenc_ext.RotaryPositionalEmbedding(
            8,
            scaling={"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 3},
        ),
    ],
    ids=["default", "dynamic"],
)
def test_modules(rotary):
    x = uniform((V, 2, 4, 2, 8), F64)
    assert_vmap(rotary, (x,), (0,))
    close(jacrev(rotary)(x[0]), by_autograd(rotary, x[0]))
    encoding = posenc_ext.SinusoidalPositionalEncoding(8)
    assert_vmap(encoding, (x[:, :, :, 0],), (0,))
    attention = posenc_ext.ALiBiAttention(8, 2, learn_slopes=True, dtype=F64)
    parameters = {n: p.detach() for n, p in attention.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(attention, parameters, (x,)).pow(2).sum()

    samples = vmap(grad(loss), (None, 0))(parameters, x[:, :, :, 0])
    for i in range(V):
        right = grad(loss)(parameters, x[i, :, :, 0])
        for name, value in right.items():
            close(samples[name][i], value)


@pytest.mark.parametrize("name", ["offset", "positions", "tokens"])
def test_vmap_over_learned_positions(name):
    padding = 1 if name == "tokens" else None
    encoding = posenc_ext.LearnedPositionalEncoding(4, 12, padding_idx=padding)
    ids = torch.tensor([[[0, 5, 3], [4, 1, 1]], [[2, 2, 7], [6, 0, 1]]])
    ids = ids[..., 0] if name == "offset" else ids
    x = uniform((2, 2, 3, 4))
    many = vmap(lambda x, ids: encoding(x, **{name: ids}))(x, ids)
    assert_bits(many, torch.stack([encoding(x[i], **{name: ids[i]}) for i in range(2)]))
    if name != "tokens":
        with pytest.raises(IndexError, match=r"positions must be from 0 to max_len - 1 = 11, got"):
            vmap(lambda ids: encoding(x[0], **{name: ids}))(ids + 9)
