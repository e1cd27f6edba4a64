"""KeyboardInterrupt between any two bytecodes of the package, and during a long native call."""

import functools
import itertools
import random
import signal
import sys
import threading
import time
import types
from pathlib import Path

import oracle_relative
import pytest
import torch
from rope_cases import assert_bits, rotate_half, table, threads, uniform
from test_threads import run_together, with_gradients

import posenc_ext
from posenc_ext import RotaryPositionalEmbedding
from posenc_ext.compat import hf_probes, transformers
from posenc_ext.compat.transformers import patch, unpatch

PACKAGE = str(Path(posenc_ext.__file__).parent)


def interrupted(call, at, where=PACKAGE):
    """Was the call stopped before bytecode `at`, counted from 0 in the files of `where`?"""
    left = at

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(where):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            left -= 1
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # some versions of Python look for one before settrace
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def interrupt_everywhere(fresh, check, where=PACKAGE, step=1):
    """For each bytecode of the call that fresh() makes anew: stop there, then check(call)."""
    with threads(1):  # the calls are small
        for at in itertools.count(0, step):
            call = fresh()
            if not interrupted(call, at, where):
                return at
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            check(call)


def equal(actual, right):
    for mine, wanted in zip(actual, right, strict=True):
        assert_bits(mine, wanted)


X, LONG = uniform((1, 4, 2, 16)), uniform((1, 40, 2, 16), seed=1)
COS, SIN = table(8)
ORIGINAL = {"original_max_position_embeddings": 8}
RULES = {
    "usual": None,
    "dynamic": ORIGINAL | {"rope_type": "dynamic", "factor": 2.0},
    "longrope": ORIGINAL
    | {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


def computed(module):
    """For short, long and stretched sequences."""
    return [module(LONG), module(X), module(X, offset=90), *module.table(17), *module.table(12)]


@pytest.mark.parametrize("rule", RULES)
def test_growth_of_a_table(rule):
    def fresh():
        module = RotaryPositionalEmbedding(16, scaling=RULES[rule])
        module(X)
        return functools.partial(module, LONG)

    right = computed(RotaryPositionalEmbedding(16, scaling=RULES[rule]))
    tried = interrupt_everywhere(fresh, lambda call: equal(computed(call.func), right))
    assert tried > 300


def test_growth_of_a_table_that_other_threads_grow_too():
    shared, done = [RotaryPositionalEmbedding(16)], threading.Event()
    right = computed(RotaryPositionalEmbedding(16))
    tried = 0

    def fresh():
        shared[0] = module = RotaryPositionalEmbedding(16)
        return functools.partial(module, LONG)

    def work(number):
        nonlocal tried
        if number > 0:
            while not done.is_set():
                equal(computed(shared[0]), right)
            return
        try:
            tried = interrupt_everywhere(
                fresh, lambda call: equal(computed(call.func), right), step=3
            )
        finally:
            done.set()

    run_together(work, 4)
    assert tried > 200  # a call is shorter when another thread has grown the table


torch.manual_seed(0)
ATTENTION = posenc_ext.ALiBiAttention(16, 2)
SCORES, SLOPES, INDEX = uniform((1, 2, 5, 7)), posenc_ext.alibi_slopes(2), torch.arange(11) % 7
ROWS = (None, None, None, 0, "bshd", False, False, False)
DIFFERENTIATED = {
    "apply_rope": (lambda x, c, s: posenc_ext.apply_rope(x, x[:, :3], c, s)[1], LONG, COS, SIN),
    "rope in place": (lambda x: posenc_ext.rope(2 * x, COS, SIN, inplace=True), LONG),
    "rope by the dispatcher": (
        lambda x, c, s: torch.ops.posenc_ext.rope(x, c, s, *ROWS), LONG, COS, SIN,
    ),
    "qk_norm_rope": (
        lambda x, c, s: posenc_ext.qk_norm_rope(x, x[:, :3], None, None, c, s)[1], LONG, COS, SIN,
    ),
    "rope_table": (lambda f: posenc_ext.rope_table(40, f)[0], torch.ones(8, dtype=torch.float64)),
    "add_sinusoidal": (posenc_ext.add_sinusoidal, LONG[:, :, 0]),
    "add_alibi": (posenc_ext.add_alibi, SCORES, SLOPES),
    "alibi_softmax": (posenc_ext.alibi_softmax, SCORES, SLOPES),
    "relative_gather": (lambda x: posenc_ext.relative_gather(x, INDEX, 7), SCORES),
    "ALiBiAttention": (ATTENTION, LONG.flatten(2)[..., :16]),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_forward_and_backward(name):
    call = functools.partial(with_gradients, *DIFFERENTIATED[name])
    right = call()
    before = [t.clone() for t in DIFFERENTIATED[name][1:]]

    def check(call):
        equal(call(), right)
        equal(DIFFERENTIATED[name][1:], before)

    assert interrupt_everywhere(lambda: call, check) > 80


def test_buckets_that_are_computed_once():
    distances, farthest = torch.arange(-200, 200, 7), itertools.count(100)

    def fresh():  # with what no call before it has computed
        return functools.partial(
            posenc_ext.t5_relative_position_bucket, distances, max_distance=next(farthest)
        )

    def check(call):
        rule = call.keywords
        assert call().tolist() == [oracle_relative.t5_bucket(d, **rule) for d in distances.tolist()]

    assert interrupt_everywhere(fresh, check) > 500


def theirs(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + rotate_half(x, False) * sin for x in (q, k))


def theirs_interleaved(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + rotate_half(x, True) * sin for x in (q, k))


@pytest.mark.parametrize("then", ["unpatch", "patch first"])
@pytest.mark.parametrize("case", ["patch", "patch again", "unpatch"])
def test_patching_never_loses_the_original(case, then, monkeypatch):
    monkeypatch.setattr(hf_probes, "recognize", functools.cache(hf_probes.recognize))
    originals = {"apply_rotary_pos_emb": theirs, "apply_rotary_emb": theirs_interleaved}
    module = types.ModuleType("modeling_interrupted")
    vars(module).update(originals)

    def fresh():
        if case == "patch":
            return functools.partial(patch, module)
        patch(module)
        if case == "unpatch":
            return functools.partial(unpatch, module)
        return functools.partial(patch, module, rounding="transformers")

    def check(call):
        if then == "patch first":
            assert len(patch(module)) == 2
            assert not any(getattr(module, name) is f for name, f in originals.items())
        unpatch(module)
        assert all(getattr(module, name) is f for name, f in originals.items())

    assert interrupt_everywhere(fresh, check, transformers.__file__) > 50


def signals_during(call, count, seed=0):
    """Real ones, at random times within repeated calls; each ends them by KeyboardInterrupt."""
    main, delay = threading.main_thread().ident, random.Random(seed)

    def repeat(begun):
        while True:
            begun.set()
            call()

    def send(begun, pause):
        begun.wait()
        time.sleep(pause)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(count):
            begun = threading.Event()
            sender = threading.Thread(target=send, args=(begun, delay.uniform(0, 5e-3)))
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                repeat(begun)
            sender.join()
            yield
    finally:
        signal.signal(signal.SIGINT, before)


with_signals = pytest.mark.skipif(sys.platform == "win32", reason="sends signals to a thread")


@with_signals
def test_a_signal_during_a_long_call_leaves_it_done_or_not_begun():
    x, minus, zero = torch.ones(1, 4096, 16, 64), -torch.ones(4096, 32), torch.zeros(4096, 32)
    seen = set()
    for _ in signals_during(lambda: posenc_ext.rope(x, minus, zero, inplace=True), 40):
        assert x.abs().eq(1).all()
        assert x.eq(x[0, 0, 0, 0]).all()
        seen.add(x[0, 0, 0, 0].item())
    assert seen == {1.0, -1.0}


@with_signals
def test_a_signal_during_forward_and_backward():
    x = uniform((2, 1024, 8, 16))
    rotary = [RotaryPositionalEmbedding(16)]

    def call():
        rotary[0] = RotaryPositionalEmbedding(16)
        rotary[0](X)  # a short table, which then grows
        return with_gradients(rotary[0], x)

    right = call()
    for _ in signals_during(call, 40):
        equal(with_gradients(rotary[0], x), right)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
