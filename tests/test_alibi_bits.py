"""The same bits for any thread count, instruction set and split into decoding steps."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from alibi_cases import LENGTHS, large, mask_of, scores_of, slopes_of
from isa_bits import check_instruction_sets, digest, each_isa, print_fingerprints
from rope_cases import DTYPES, VIEWS, assert_bits, name, threads, uniform
from test_rope_bits import SPECIAL

import posenc_ext

OPS = torch.ops.posenc_ext
both_masks = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


@both_masks
@every_dtype
def test_threads_are_bit_equal(dtype, causal):
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(large(dtype, causal, grad=True))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_bits(b, a)


@every_dtype
def test_rows_of_decoding_are_rows_of_the_full_pass(dtype):
    """For every split point: the keys so far, and the queries since."""
    length, slopes = 35, slopes_of()
    scores = scores_of((length, length), dtype)
    full = posenc_ext.alibi_softmax(scores, slopes, scale=0.4, causal=True)
    added = posenc_ext.add_alibi(scores, slopes, causal=True)
    for split in range(length + 1):
        part = scores[:, :, split:]
        y = posenc_ext.alibi_softmax(part, slopes, scale=0.4, causal=True)
        assert_bits(y, full[:, :, split:])
        if split:
            step = scores[:, :, split - 1 : split, :split]
            y = posenc_ext.alibi_softmax(step, slopes, scale=0.4)
            assert_bits(y, full[:, :, split - 1 : split, :split])
            y = posenc_ext.add_alibi(step, slopes)
            assert_bits(y, added[:, :, split - 1 : split, :split])


@every_dtype
def test_left_padding_changes_no_real_row(dtype):
    """The same rows behind a number of hidden keys: equal up to the order of their sums."""
    scores, slopes, pads = scores_of((21, 21), dtype), slopes_of(), 16
    padded = uniform((2, 3, 21 + pads, 21 + pads), dtype, 9)
    padded[:, :, pads:, pads:] = scores
    keep = torch.ones(2, 21 + pads, dtype=torch.bool)
    keep[:, :pads] = False
    y = posenc_ext.alibi_softmax(padded, slopes, causal=True, key_padding_mask=keep)
    assert not y[..., :pads].any()
    # pads is a whole number of partial sums, so that not even the order of a sum changes
    assert_bits(y[:, :, pads:, pads:], posenc_ext.alibi_softmax(scores, slopes, causal=True))


def fingerprints():
    """{case: hash} of a fixed set of calls; every instruction set must print the same."""
    found = {}
    for dtype in DTYPES:
        for causal in (False, True):
            for lengths in LENGTHS:
                scores, slopes = scores_of(lengths, dtype).requires_grad_(), slopes_of()
                slopes.requires_grad_()
                keep = mask_of(2, lengths[1])
                y = posenc_ext.alibi_softmax(
                    scores, slopes, scale=0.6, causal=causal, key_padding_mask=keep
                )
                z = posenc_ext.add_alibi(scores, slopes, causal=causal)
                bias = posenc_ext.alibi_bias(slopes, *lengths, causal=causal, dtype=dtype)
                outs = (y, z, bias)
                upstream = [uniform(t.shape, dtype, 1) for t in outs]
                grads = torch.autograd.grad(outs, (scores, slopes), upstream)
                case = f"{dtype} {causal} {lengths}"
                found[case] = digest(*(t.detach() for t in outs), *grads)
            for view in VIEWS:
                scores = VIEWS[view](scores_of((9, 37), dtype))
                found[f"{dtype} {causal} {view}"] = digest(
                    posenc_ext.alibi_softmax(scores, slopes_of(), causal=causal),
                    OPS.alibi_softmax_grad(scores, scores.contiguous(), 0.5, causal),
                )
            found[f"{dtype} {causal} large"] = digest(*large(dtype, causal, grad=True))
        special = torch.tensor(SPECIAL, dtype=dtype)
        rows = torch.stack([special.roll(i) for i in range(12)])[:, :, None].expand(12, 12, 3)
        rows = torch.cat([rows.flatten(1), torch.zeros(12, 5, dtype=dtype)], 1).view(1, 3, 4, 41)
        found[f"{dtype} special"] = digest(
            posenc_ext.alibi_softmax(rows, slopes_of()), posenc_ext.add_alibi(rows, slopes_of())
        )
    return found


@each_isa
def test_instruction_sets_are_bit_equal(capability):
    check_instruction_sets(__file__, capability, cases=100)


PEAK = """if True:
    import sys, torch, posenc_ext

    def kilobytes(what):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(what + ":"))

    op, causal, threads = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3])
    torch.set_num_threads(threads)
    slopes = posenc_ext.alibi_slopes(32)

    def call(scores, other):
        if op == "softmax":
            return posenc_ext.alibi_softmax(scores, slopes, scale=0.1, causal=causal)
        return torch.ops.posenc_ext.alibi_softmax_grad(scores, other, 0.1, causal)

    small = torch.ones(1, 32, 64, 64, dtype=torch.bfloat16)
    call(small, small)  # threads, code and stacks
    scores = torch.ones(1, 32, 4096, 4096, dtype=torch.bfloat16)
    before = kilobytes("VmRSS")
    result = call(scores, scores)
    print(kilobytes("VmHWM") - before - result.nbytes // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("op", ["softmax", "softmax_grad"])
@both_masks
def test_peak_memory_is_input_plus_output(op, causal):
    """32 heads of 4096 x 4096: less than 1 MB besides."""
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(posenc_ext.__file__).parent.parent)}
    command = [sys.executable, "-c", PEAK, op, str(causal), "2"]
    extra = int(subprocess.check_output(command, env=env, text=True))
    assert -1024 < extra < 1024


if __name__ == "__main__":
    torch.set_num_threads(1)  # a busy machine stalls more, and other tests compare thread counts
    print_fingerprints(fingerprints())
