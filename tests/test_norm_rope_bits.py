"""Bit equality of norm_rope and its gradients across thread counts and instruction sets."""

import pytest
import torch
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from norm_cases import RULES, parameter, rule
from rope_cases import DTYPES, assert_bits, name, shape, table, threads, uniform

import posenc_ext


def results(dtype, kind, d=40, tokens=7, heads=3, **options):
    """Outputs and gradients of a call with every argument."""
    x = uniform(shape("bshd", s=tokens, h=heads, d=d), dtype).requires_grad_()
    size = d * (heads if kind[1] == "all" else 1)
    weight, bias = (parameter(size, dtype, i).requires_grad_() for i in (1, 2))
    cos, sin = table(d // 2 - 2, length=tokens)
    options = {"bias": bias, "weight_offset": 0.5, **rule(*kind), **options}
    y = posenc_ext.norm_rope(x, weight, cos, sin, **options)
    grads = torch.autograd.grad(y, (x, weight, bias), uniform(y.shape, dtype, 3))
    plain = posenc_ext.norm_rope(x.detach(), None, cos, sin, **rule(*kind), rounding="norm")
    return y.detach(), *grads, plain


@pytest.mark.parametrize("kind", RULES, ids="-".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
def test_threads_are_bit_equal(dtype, kind):
    every = []
    for count in (1, 2, 3):
        with threads(count):
            every.append(results(dtype, kind, d=64, tokens=300, heads=8))
    for other in every[1:]:
        for a, b in zip(every[0], other, strict=True):
            assert_bits(b, a)


def fingerprints():
    """{case: hash} of a fixed set of calls; every instruction set must print the same."""
    found = {}
    for dtype in DTYPES:
        for kind in RULES:
            for d in (6, 32, 46, 64, 70, 128, 132):
                for interleaved in (False, True):
                    key = f"{dtype} {kind} {d} {interleaved}"
                    found[key] = digest(*results(dtype, kind, d, interleaved=interleaved))
        special = [0.0, -0.0, 1e-40, 3e38, float("inf"), float("nan"), 1.0, -2.0, 1e-20]
        x = torch.tensor(special, dtype=dtype).repeat(160).view(1, 8, 4, 45)
        found[f"{dtype} special"] = digest(posenc_ext.norm_rope(x, None, *table(18)))
    return found


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=500)


if __name__ == "__main__":
    print_fingerprints(fingerprints())
