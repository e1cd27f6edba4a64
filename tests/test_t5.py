"""T5RelativePositionBias: the formula, gradients, bits, memory, and transformers."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import oracle_relative
import pytest
import torch
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from rope_cases import DTYPES, assert_bits, name, threads, uniform

import posenc_ext

F64 = torch.float64
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
RULES = [{}, {"bidirectional": False}, {"num_buckets": 9, "max_distance": 20}]


def module(heads=3, dtype=torch.float32, seed=0, **rule):
    found = posenc_ext.T5RelativePositionBias(heads, dtype=dtype, **rule)
    weight = found.relative_attention_bias.weight
    weight.data = uniform(weight.shape, dtype, seed)
    return found


@every_dtype
@pytest.mark.parametrize("rule", RULES, ids=["encoder", "decoder", "other"])
def test_formula(dtype, rule):
    bias = module(dtype=dtype, **rule)
    weight = bias.relative_attention_bias.weight.detach().double().numpy()
    for q_len, k_len in [(5, None), (1, 200), (150, 150), (4, 9), (9, 4)]:
        right = oracle_relative.t5_bias(weight, q_len, k_len or q_len, **rule)
        out = bias(q_len, k_len)
        assert out.is_contiguous()
        assert_bits(out.detach(), torch.from_numpy(right).to(dtype))


def test_rows_of_decoding_are_rows_of_the_full_bias():
    bias = module(bidirectional=False)
    full = bias(70)
    for k_len in (1, 2, 17, 64, 70):
        assert_bits(bias(1, k_len)[0, :, 0].detach(), full[0, :, k_len - 1, :k_len].detach())


@pytest.mark.parametrize("rule", RULES, ids=["encoder", "decoder", "other"])
def test_gradient(rule):
    """dtable[b, h] is the sum of the upstream over the pairs in bucket b."""
    bias = module(dtype=F64, **rule)
    weight = bias.relative_attention_bias.weight
    upstream = uniform((1, 3, 40, 55), F64, 1)
    bias(40, 55).backward(upstream)
    buckets = oracle_relative.positions(
        40, 55, lambda i, j: oracle_relative.t5_bucket(j - i, **rule)
    )
    right = np.zeros(weight.shape)
    np.add.at(right, buckets, upstream[0].permute(1, 2, 0).numpy())
    np.testing.assert_allclose(weight.grad.numpy(), right, rtol=1e-12, atol=1e-12)


def test_gradcheck():
    bias = module(2, F64, num_buckets=8, max_distance=9)

    def call(weight):
        parameters = {"relative_attention_bias.weight": weight}
        return torch.func.functional_call(bias, parameters, (3, 7)) ** 2

    weight = uniform((8, 2), F64).requires_grad_()
    assert torch.autograd.gradcheck(call, (weight,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (weight,))


def weight_grad(dtype, lengths):
    bias = module(dtype=dtype)
    bias(*lengths).backward(uniform((1, 3, *lengths), dtype, 2))
    return bias.relative_attention_bias.weight.grad


@every_dtype
def test_gradient_is_bit_equal_for_any_threads(dtype):
    grads = []
    for count in (1, 2, 3):
        with threads(count):
            grads.append(weight_grad(dtype, (300, 250)))
    for other in grads[1:]:
        assert_bits(other, grads[0])


def fingerprints():
    lengths = [(300, 250), (1, 77), (9, 4), (513, 33)]
    return {f"{d} {n}": digest(weight_grad(d, n)) for d in DTYPES for n in lengths}


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=16)


def test_compile_with_any_lengths():
    torch._dynamo.reset()
    bias = module(bidirectional=False)
    compiled = torch.compile(bias, fullgraph=True, backend="aot_eager", dynamic=True)
    for q_len, k_len in [(5, 9), (7, 7), (12, 30)]:
        assert_bits(compiled(q_len, k_len).detach(), bias(q_len, k_len).detach())


def test_state_dict_and_meta_device():
    bias = module()
    assert list(bias.state_dict()) == ["relative_attention_bias.weight"]
    assert bias.relative_attention_bias.weight.shape == (32, 3)
    with torch.device("meta"):
        other = posenc_ext.T5RelativePositionBias(3)
    assert other(4, 5).shape == (1, 3, 4, 5)
    other.load_state_dict(bias.state_dict(), assign=True)
    assert_bits(other(4, 5).detach(), bias(4, 5).detach())
    assert "num_buckets=32" in repr(bias)


def test_empty():
    bias = module()
    for lengths in [(0, 0), (0, 4), (4, 0)]:
        out = bias(*lengths)
        assert out.shape == (1, 3, *lengths)
        out.sum().backward()
    assert not bias.relative_attention_bias.weight.grad.any()


def test_refusals():
    bias, make = module(), posenc_ext.T5RelativePositionBias
    calls = [
        (ValueError, "num_heads", lambda: make(0)),
        (TypeError, "num_heads", lambda: make(2.0)),
        (ValueError, "num_buckets", lambda: make(2, 3)),
        (ValueError, "max_distance", lambda: make(2, 32, 8)),
        (TypeError, "bidirectional", lambda: make(2, bidirectional="no")),
        (ValueError, "q_len", lambda: bias(-1)),
        (TypeError, "k_len", lambda: bias(1, 2.5)),
    ]
    for exception, argument, call in calls:
        with pytest.raises(exception, match=rf"posenc_ext\.\w+: {argument} must .+, got"):
            call()


PEAK = """if True:
    import torch, posenc_ext

    def kilobytes(what):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(what + ":"))

    torch.set_num_threads(2)
    bias = posenc_ext.T5RelativePositionBias(8)
    bias(64).backward(torch.ones(1, 8, 64, 64))  # threads, code and stacks
    length = 2048
    grad = torch.ones(1, 8, length, length)
    before = kilobytes("VmRSS")
    bias(length).backward(grad)
    print(kilobytes("VmHWM") - before - grad.nbytes // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_the_result_and_what_backward_sums():
    """8 heads of 2048 x 2048: 128 MB of result, and 2 MB for [H, Q, buckets]."""
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(posenc_ext.__file__).parent.parent)}
    extra = int(subprocess.check_output([sys.executable, "-c", PEAK], env=env, text=True))
    assert -4096 < extra < 8192


def test_transformers():
    modeling = pytest.importorskip(
        "transformers.models.t5.modeling_t5", reason="transformers is not installed"
    )
    for decoder in (False, True):
        config = modeling.T5Config(num_heads=3, is_decoder=decoder)
        attention = modeling.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
        bias = posenc_ext.T5RelativePositionBias(3, bidirectional=not decoder)
        bias.load_state_dict(
            {k: v for k, v in attention.state_dict().items() if "relative_attention_bias" in k}
        )
        for q_len, k_len in [(40, 40), (1, 300), (7, 160)]:
            right = attention.compute_bias(q_len, k_len, past_seen_tokens=k_len - q_len)
            assert_bits(bias(q_len, k_len).detach(), right.detach())


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_fingerprints(fingerprints())
