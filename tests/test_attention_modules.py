"""What every attention module does: its formula, masks, gradients, dtypes, compilation."""

import sys

import pytest
import torch
from attention_cases import BATCH, CASES, D_MODEL, HEADS, LENGTH, module_of, same, seen
from rope_cases import uniform
from torch.func import functional_call

import posenc_ext

F64 = torch.float64
every = pytest.mark.parametrize("name", CASES)
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
# One of each class and way through it.
FEW = (
    "shaw",
    "shaw keys, asymmetric",
    "bert key query",
    "transformer-xl clamped",
    "conformer",
    "deberta buckets",
    "deberta shared",
    "rotary values",
)
few = pytest.mark.parametrize("name", FEW)


def inputs(length=LENGTH, dtype=F64, seed=0):
    return uniform((BATCH, length, D_MODEL), dtype, seed)


def padding():
    """Real tokens: from the third on, and all but the last."""
    columns = torch.arange(LENGTH)
    return torch.stack([columns >= 2, columns < LENGTH - 1])


@both_masks
@every
def test_formula(name, causal):
    module, x = module_of(name, causal=causal), inputs()
    right = CASES[name][1]
    same(module(x), right(module, x.numpy(), seen(causal)))
    one = inputs(1)
    same(module(one), right(module, one.numpy(), seen(causal, length=1)))


@both_masks
@every
def test_masks(name, causal):
    module, x, real = module_of(name, causal=causal), inputs(), padding()
    right = CASES[name][1](module, x.numpy(), seen(causal, real=real))
    same(module(x, key_padding_mask=real), right)
    as_mask = real[:, None, None, :]
    same(module(x, attn_mask=as_mask), right)
    same(module(x, attn_mask=torch.zeros(as_mask.shape).masked_fill(~as_mask, -torch.inf)), right)
    window = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(-2)
    both = seen(causal, real=real) & window.numpy()
    y = module(x, attn_mask=window, key_padding_mask=real)
    same(y, CASES[name][1](module, x.numpy(), both))


@every
def test_weights(name):
    module, x = module_of(name, causal=True), inputs()
    y, weights = module(x, need_weights=True)
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    same(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH, dtype=F64))
    assert not weights.triu(1).any()
    same(y, module(x))


@few
def test_an_added_mask_is_added_after_scaling(name):
    module, x = module_of(name), inputs()
    bias = uniform((HEADS, LENGTH, LENGTH), F64, 5)
    _, plain = module(x, need_weights=True)
    y, weights = module(x, attn_mask=bias, need_weights=True)
    same(weights, torch.softmax(plain.log() + bias, -1))
    same(module(x, attn_mask=bias), y)


@both_masks
@few
def test_blind_queries_give_zero_and_finite_gradients(name, causal):
    module = module_of(name, causal=causal)
    x = inputs().requires_grad_()
    real = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    real[1, 4] = True
    only_bias = module(torch.zeros_like(x), attn_mask=torch.zeros(1, 1).bool())
    for masks in (
        {"key_padding_mask": real},
        {"attn_mask": real[:, None, None]},
        {
            "attn_mask": torch.zeros(BATCH, 1, 1, LENGTH).masked_fill(
                ~real[:, None, None], -torch.inf
            )
        },
    ):
        y = module(x, **masks)
        same(y[0], only_bias[0])  # the bias of the output projection, if any
        assert causal == torch.equal(y[1, :4], only_bias[1, :4])
        assert not torch.equal(y[1, 4:], only_bias[1, 4:])
        grads = torch.autograd.grad(y.sum(), (x, *module.parameters()), allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in grads)
        assert not grads[0][0].any()


@few
def test_gradients(name):
    """Of x and every parameter, to the second order."""
    module = module_of(name, causal=True)
    p = {k: v.detach().requires_grad_() for k, v in module.named_parameters()}
    x, real = inputs(4).requires_grad_(), torch.ones(BATCH, 4, dtype=torch.bool)
    real[0, 0] = False

    def call(x, *given):
        masks = {"key_padding_mask": real, "need_weights": True}
        return functional_call(module, dict(zip(p, given, strict=True)), (x,), masks)[0]

    check = {"fast_mode": True, "check_forward_ad": True}
    assert torch.autograd.gradcheck(call, (x, *p.values()), **check)
    assert torch.autograd.gradgradcheck(call, (x, *p.values()), fast_mode=True)
    plain = module(x, key_padding_mask=real)
    wanted = torch.autograd.grad(call(x, *p.values()).pow(2).sum(), (x, *p.values()))
    grads = torch.autograd.grad(plain.pow(2).sum(), (x, *module.parameters()))
    for a, b in zip(grads, wanted, strict=True):
        same(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every
def test_dtypes(name, dtype):
    module = module_of(name, causal=True, dtype=dtype)
    x = inputs(dtype=dtype)
    y = module(x)
    assert y.dtype == dtype
    right = CASES[name][1](module, x.double().numpy(), seen(True))
    limit = {torch.float32: 2e-6, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    assert (y.double() - torch.from_numpy(right)).abs().max() < limit
    y.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@few
def test_autocast(name):
    module = module_of(name, causal=True, dtype=torch.float32)
    x = inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for masks in ({}, {"key_padding_mask": padding(), "attn_mask": torch.zeros(1, 1)}):
            y, weights = module(x, need_weights=True, **masks)
            assert y.dtype == weights.dtype == torch.bfloat16
            torch.testing.assert_close(module(x, **masks), y, rtol=0, atol=0.02)
    right = CASES[name][1](module, x.double().numpy(), seen(True, real=padding()))
    assert (y.double() - torch.from_numpy(right)).abs().max() < 8e-2
    y.float().sum().backward()


@few
def test_dropout_only_in_training(name):
    module, x = module_of(name, dropout=0.5, causal=False), inputs()
    assert not torch.equal(module(x), module(x))
    _, weights = module(x, need_weights=True)
    assert (weights == 0).any()
    module.eval()
    right = CASES[name][1](module, x.numpy(), seen(False))
    same(module(x), right)


@few
def test_compile(name):
    torch._dynamo.reset()
    module = module_of(name, causal=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for length, masks in (
        (LENGTH, {}),
        (LENGTH - 2, {}),
        (LENGTH, {"key_padding_mask": padding()}),
    ):
        x = inputs(length).requires_grad_()
        y, right = compiled(x, **masks), module(x, **masks)
        same(y, right)
        upstream = uniform(y.shape, F64, 7)
        same(*(torch.autograd.grad(out, x, upstream)[0] for out in (y, right)))
    torch._dynamo.reset()


@every
def test_empty_inputs(name):
    module = module_of(name)
    for size in ((BATCH, 0, D_MODEL), (0, LENGTH, D_MODEL)):
        assert module(torch.zeros(size, dtype=F64)).shape == size


@every
def test_made_on_meta_then_loaded(name):
    right, x = module_of(name), inputs()
    module = CASES[name][0](device="meta", dtype=F64).to_empty(device="cpu")
    module.load_state_dict(right.state_dict())
    same(module(x), right(x))


@few
def test_repr_tells_the_options(name):
    text = repr(module_of(name, causal=True, dropout=0.25))
    for part in (str(D_MODEL), str(HEADS), "causal=True", "dropout=0.25"):
        assert part in text


@pytest.mark.parametrize("name", ["alibi", *FEW])
def test_float16_scores_are_scaled_before_they_overflow(name, monkeypatch):
    """Where products of q and k leave float16, and their scores do not."""
    if name == "alibi":
        torch.manual_seed(3)
        module = posenc_ext.ALiBiAttention(D_MODEL, HEADS)
    else:
        module = module_of(name)
    module = module.half()
    options = {"need_weights": True} if "rotary" in name else {}

    def finite(factor):
        y = module(inputs(dtype=torch.float16) * factor, **options)
        return all(t.isfinite().all() for t in (y if isinstance(y, tuple) else (y,)))

    factor = 1.0
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[type(module).__module__], "split_scale", lambda s: (1.0, s))
        while finite(factor):
            factor *= 1.25
    assert factor < 4000
    assert finite(factor)
