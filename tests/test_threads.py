"""Many Python threads on the same objects, and calls that let other threads go on."""

import functools
import itertools
import os
import random
import subprocess
import sys
import threading
import time

import pytest
import torch
from rope_cases import DTYPES, assert_bits, table, threads, uniform

import posenc_ext
from posenc_ext import RotaryPositionalEmbedding

THREADS = 8
INV_FREQ = posenc_ext.rope_frequencies(32).inv_freq
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
COS, SIN = table(16, length=512)


def with_gradients(call, *inputs):
    """The result of a call and the gradients of its inputs."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    y = call(*inputs)
    weights = uniform(y.shape, y.dtype, 7)
    return [y.detach(), *torch.autograd.grad(y, inputs, weights)]


def rotary_jobs(rotary):
    for length, dtype in itertools.product((3, 70, 500, 1100), DTYPES):
        x = uniform((1, length, 2, 32), dtype, length)
        yield functools.partial(with_gradients, rotary, x)
        yield lambda x=x: [rotary(x, offset=x.shape[1])]
        yield lambda x=x: list(rotary(x, x[:, :, :1], positions=torch.arange(x.shape[1])))
        yield lambda n=length: list(rotary.table(n))


def attention_jobs(attention):
    x = uniform((2, 40, 32), seed=1)
    parameters = list(attention.parameters())

    def run():
        y = attention(x)
        return [y.detach(), *torch.autograd.grad(y, parameters, torch.ones_like(y))]

    return [run, functools.partial(with_gradients, attention, x)]


def function_jobs():
    for dtype in DTYPES:
        x = uniform((2, 300, 4, 32), dtype)
        scores, slopes = x.transpose(1, 2), posenc_ext.alibi_slopes(4, dtype=torch.float64)
        slopes = slopes if dtype == torch.float64 else slopes.float()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        cos, sin = COS.to(wide), SIN.to(wide)
        index = torch.arange(300 + 59) % 32
        yield functools.partial(
            with_gradients, lambda x, c, s: posenc_ext.apply_rope(x, x, c, s)[1], x, cos, sin
        )
        yield lambda x=x, c=cos, s=sin: list(posenc_ext.apply_rope(x, x[:, :5], c, s))
        yield functools.partial(
            with_gradients,
            lambda x, w: posenc_ext.norm_rope(x, w, COS, SIN),
            x,
            torch.linspace(0.5, 2, 32, dtype=dtype),
        )
        yield functools.partial(with_gradients, posenc_ext.add_sinusoidal, x[:, :, 0])
        yield functools.partial(with_gradients, posenc_ext.alibi_softmax, scores, slopes)
        yield functools.partial(
            with_gradients, lambda x, i=index: posenc_ext.relative_gather(x, i, 60), scores
        )
        yield lambda dtype=dtype: list(posenc_ext.rope_table(900, INV_FREQ, dtype=dtype))


def all_jobs():
    """The same work for the same seeds, on new modules."""
    torch.manual_seed(0)
    attention = posenc_ext.ALiBiAttention(32, 4)
    return [
        *rotary_jobs(RotaryPositionalEmbedding(32)),
        *rotary_jobs(RotaryPositionalEmbedding(32, scaling=DYNAMIC)),
        *attention_jobs(attention),
        *function_jobs(),
    ]


def finish(workers, interval):
    """Start these threads and wait for them; Python switches between them every `interval` s."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)


def run_together(work, count=THREADS):
    """work(0) .. work(count - 1) at once, switching as often as Python can."""
    failures, barrier = [], threading.Barrier(count)

    def run(number):
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    finish([threading.Thread(target=run, args=(number,)) for number in range(count)], 1e-6)
    if failures:
        raise failures[0]


@pytest.mark.parametrize("seed", range(3))
def test_threads_share_modules_and_functions(seed):
    right = [job() for job in all_jobs()]
    jobs = all_jobs()
    done = []

    def work(number):
        order = list(range(len(jobs)))
        random.Random(THREADS * seed + number).shuffle(order)
        for i in order:
            for actual, wanted in zip(jobs[i](), right[i], strict=True):
                assert_bits(actual, wanted)
            done.append(i)

    run_together(work)
    assert len(done) == THREADS * len(jobs) > 1000


X, TABLE = torch.ones(2, 2048, 32, 64), torch.ones(2048, 32)
POSITIONS, FREQUENCIES = torch.arange(2**16), torch.ones(32, dtype=torch.float64)
SLOPES, SCORES, DISTANCES = torch.ones(8), torch.ones(4, 8, 512, 512), torch.arange(1023) % 512
SHORT = (TABLE, TABLE, "bshd", None, 0, None, False, False)  # up to `inplace`
LONG = (TABLE, TABLE, None, None, None, 0, "bshd", False, False, False)
ops, _C = torch.ops.posenc_ext, posenc_ext._C
# By the short path, and by the dispatcher. Nothing else in them takes or gives up the GIL.
LONG_CALLS = {
    "short rope": lambda: _C.rope(X, *SHORT, False, None, None),
    "short rope in place": lambda: _C.rope(X, *SHORT, True, None, None),
    "short apply_rope": lambda: _C.apply_rope(X, X, *SHORT, False, None),
    "short apply_rope in place": lambda: _C.apply_rope(X, SCORES.view(X.shape), *SHORT, True, None),
    "rope": lambda: ops.rope(X, *LONG),
    "rope_": lambda: ops.rope_(X, *LONG),
    "rope_table_grad": lambda: ops.rope_table_grad(X, X, *LONG),
    "rope_table": lambda: ops.rope_table(POSITIONS, FREQUENCIES, 1.0, torch.float32),
    "sinusoidal_table": lambda: ops.sinusoidal_table(
        POSITIONS, FREQUENCIES, 64, True, False, torch.float32
    ),
    "alibi_softmax": lambda: ops.alibi_softmax(SCORES, SLOPES, 1.0, True, None),
    "relative_scatter": lambda: ops.relative_scatter(SCORES, DISTANCES, 512),
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_other_threads_go_on_during_a_long_call(name):
    """A thread that holds the GIL gives it up here only by what the call itself does: the switch
    interval is longer than the test. Dispatching alone can let the count move by one or two."""
    call, counted, finished = LONG_CALLS[name], [0], threading.Event()
    most = [0]

    def count():
        while not finished.is_set():
            counted[0] += 1
            time.sleep(1e-5)

    def work():
        try:
            for _ in range(200):  # the other thread may not get a core at once
                before = counted[0]
                result = call()
                after = counted[0]
                del result
                most[0] = max(most[0], after - before)
                if most[0] >= 5:
                    return
        finally:
            finished.set()

    with threads(1):
        finish([threading.Thread(target=count), threading.Thread(target=work)], 1000)
    assert most[0] >= 5


@pytest.mark.skipif(sys.platform == "win32", reason="runs the code below as a file's content")
def test_workers_that_are_spawned_compute_the_same():
    """They import the package anew; a module is sent to them without its table."""
    code = """if True:
    import functools, torch, posenc_ext
    rotary = posenc_ext.RotaryPositionalEmbedding(64)
    samples = [torch.full((1, 2048, 8, 64), float(i)) for i in range(1, 5)]
    cos, sin = rotary.table(2048)
    rotate = functools.partial(posenc_ext.rope, cos=cos, sin=sin)
    if __name__ == "__main__":
        for function in (rotary, rotate):
            right = [function(sample) for sample in samples]
            loader = torch.utils.data.DataLoader(
                samples, batch_size=None, collate_fn=function, num_workers=2,
                multiprocessing_context="spawn",
            )
            print(all(map(torch.equal, loader, right)))
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
