"""Modules through a model's life: copies, checkpoints, meta device, inference; and what PyTorch's
tools see of the ops."""

import copy
import pickle

import pytest
import torch
from rope_cases import assert_bits, table, uniform
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import posenc_ext

MODULES = {
    "RotaryPositionalEmbedding": (
        lambda **where: posenc_ext.RotaryPositionalEmbedding(8), (2, 5, 4, 8), "inv_freq"),
    "SinusoidalPositionalEncoding": (
        lambda **where: posenc_ext.SinusoidalPositionalEncoding(8, scale=2.0), (2, 5, 8), "pe"),
    "LearnedPositionalEncoding": (
        lambda **where: posenc_ext.LearnedPositionalEncoding(8, 16, **where), (2, 5, 8), None),
    "ALiBiAttention": (lambda **where: posenc_ext.ALiBiAttention(8, 4, **where), (2, 5, 8), None),
    "ALiBiAttention, learned": (
        lambda **where: posenc_ext.ALiBiAttention(8, 4, learn_slopes=True, **where), (2, 5, 8),
        None),
}  # fmt: skip
every_module = pytest.mark.parametrize("name", MODULES)


def gradients(module, x):
    x = x.detach().clone().requires_grad_()
    y = module(x)
    wanted = (x, *module.parameters())
    return [y.detach(), *torch.autograd.grad(y, wanted, torch.ones_like(y))]


def assert_same(module, other, x):
    for a, b in zip(gradients(module, x), gradients(other, x), strict=True):
        assert_bits(a, b)


@every_module
def test_copies_and_pickles(name):
    make, size, _ = MODULES[name]
    module, x = make(), uniform(size)
    module(x)
    assert_same(copy.deepcopy(module), module, x)
    assert_same(pickle.loads(pickle.dumps(module)), module, x)


@every_module
def test_checkpoints(name):
    """From the meta device, and from a state dict that still holds a table."""
    make, size, old = MODULES[name]
    module, x = make(), uniform(size)
    with torch.device("meta"):
        empty = make()
    empty = empty.to_empty(device="cpu")
    state = module.state_dict()
    if old is not None:
        assert state == {}
        state = {old: torch.zeros(4)}
    empty.load_state_dict(state, strict=True)
    assert_same(empty, module, x)
    empty = make(device="meta").to_empty(device="cpu")
    empty.load_state_dict(module.state_dict())
    assert_same(empty, module, x)


@every_module
def test_inference_then_training(name):
    make, size, _ = MODULES[name]
    module, x = make(), uniform(size)
    with torch.inference_mode():
        y = module(x)
    assert_bits(gradients(module, x)[0], y.clone())


@every_module
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(name, reentrant):
    make, size, _ = MODULES[name]
    module, x = make(), uniform(size)
    wrapped = x.clone().requires_grad_()
    y = checkpoint(module, wrapped, use_reentrant=reentrant)
    y.backward(torch.ones_like(y))
    right = gradients(module, x)
    assert_bits(y.detach(), right[0])
    assert_bits(wrapped.grad, right[1])
    for parameter, grad in zip(module.parameters(), right[2:], strict=True):
        assert_bits(parameter.grad, grad)


def test_activation_checkpointing_of_a_call_in_place():
    x, (cos, sin) = uniform((2, 5, 4, 8)), table(4)

    def block(x, cos):
        return posenc_ext.rope(x * 2, cos, sin, inplace=True).exp()

    grads = []
    for call in (block, lambda *t: checkpoint(block, *t, use_reentrant=False)):
        tensors = x.clone().requires_grad_(), cos.clone().requires_grad_()
        grads.append(torch.autograd.grad(call(*tensors).sum(), tensors))
    for a, b in zip(*grads, strict=True):
        assert_bits(a, b)


def test_dynamic_ntk_compiles_twice_for_all_lengths():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 3}
    eager, rotary = (posenc_ext.RotaryPositionalEmbedding(8, scaling=scaling) for _ in range(2))
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(rotary, fullgraph=True, backend=counter)
    for length in (5, 6, 7, 9, 12):
        q = uniform((1, length, 2, 8), seed=length)
        assert_bits(compiled(q), eager(q))
    assert counter.frame_count <= 2
    torch._dynamo.reset()


def test_an_exported_graph_trains():
    """Its ops have the derivatives of the functions, of every order, and write nothing."""

    class Rotate(torch.nn.Module):
        def forward(self, q, cos, sin):
            return posenc_ext.rope(q * 2, cos, sin, inplace=True)

    tensors = uniform((1, 2, 1, 4), torch.float64), *table(2, torch.float64, 3)
    program = torch.export.export(Rotate(), tensors)
    assert "posenc_ext.rope.default" in str(program.graph)
    leaves = [t.clone().requires_grad_() for t in tensors]
    assert torch.autograd.gradgradcheck(program.module(), leaves)


@pytest.mark.parametrize("grad", [False, True])
def test_native_ops_have_gradients(grad):
    """Called through the dispatcher, as exported graphs do."""
    x, (cos, sin) = uniform((1, 2, 1, 4)).requires_grad_(grad), table(2)
    y = torch.ops.posenc_ext.rope(x, cos, sin, None, None, None, 0, "bshd", False, False, False)
    assert y.requires_grad is grad
    if grad:
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert_bits(dx, posenc_ext.rope(torch.ones_like(y), cos, sin, inverse=True))


def test_autocast_never_touches_tables():
    x, (cos, sin) = uniform((2, 5, 4, 8), torch.bfloat16), table(4)
    scores, slopes = uniform((2, 3, 4, 5)), posenc_ext.alibi_slopes(3)
    inv_freq = posenc_ext.rope_frequencies(8).inv_freq

    def results():
        return (
            posenc_ext.rope(x, cos, sin),
            *posenc_ext.apply_rope(x, x, cos, sin),
            *posenc_ext.rope_table(7, inv_freq),
            posenc_ext.sinusoidal_table(7, 8),
            posenc_ext.add_sinusoidal(x[:, :, 0]),
            posenc_ext.alibi_bias(slopes, 4),
            posenc_ext.alibi_softmax(scores, slopes),
            posenc_ext.RotaryPositionalEmbedding(8)(x),
            *posenc_ext.RotaryPositionalEmbedding(8).table(7),
        )

    right = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for a, b in zip(results(), right, strict=True):
            assert_bits(a, b)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # of some versions
def test_profilers_see_the_ops_and_their_memory():
    x, (cos, sin) = uniform((2, 64, 4, 8)), table(4)
    leaf = uniform((2, 3, 4, 5)).requires_grad_()
    slopes = posenc_ext.alibi_slopes(3)
    with torch.profiler.profile(profile_memory=True) as profile:
        posenc_ext.rope(x, cos, sin)
        posenc_ext.alibi_softmax(leaf, slopes).sum().backward()
    events = {e.key: e for e in profile.key_averages()}
    assert events["posenc_ext::rope"].cpu_memory_usage == x.numel() * 4
    assert {"posenc_ext::alibi_softmax", "posenc_ext::alibi_softmax_grad"} <= set(events)


def test_flops_are_those_of_matrix_products():
    """As torch counts: what is done element by element counts nothing."""
    attention, x = posenc_ext.ALiBiAttention(8, 4), uniform((2, 5, 8))
    with FlopCounterMode(display=False) as counter:
        attention(posenc_ext.add_sinusoidal(x))
    projections = 2 * (2 * 5) * 8 * (3 * 8 + 8)
    products = 2 * (2 * 4) * 5 * 5 * 2 * 2
    assert counter.get_total_flops() == projections + products
