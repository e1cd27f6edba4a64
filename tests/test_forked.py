"""Tables made in a forked child of a process with threads, where torch's own loops never end."""

import os
import signal
import sys

import pytest
import torch

import posenc_ext

N = 70_000
AT = torch.arange(N)
AS_INT32, BY_COLUMNS = AT.int(), AT.view(2, -1).T
X = torch.zeros(N, 3)
INV_FREQ = posenc_ext.rope_frequencies(4).inv_freq
CALLS = {
    "rope_table, n": lambda: posenc_ext.rope_table(N, INV_FREQ)[1],
    "rope_table, int32": lambda: posenc_ext.rope_table(AS_INT32, INV_FREQ)[1],
    "rope_table, strides": lambda: posenc_ext.rope_table(BY_COLUMNS, INV_FREQ)[1],
    "sinusoidal_table, n": lambda: posenc_ext.sinusoidal_table(N, 3),
    "sinusoidal_table, odd": lambda: posenc_ext.sinusoidal_table(N, 3, convention="fairseq"),
    "module": lambda: posenc_ext.RotaryPositionalEmbedding(4).table(N)[0],
    "add_sinusoidal": lambda: posenc_ext.add_sinusoidal(X),
}


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_table_in_a_forked_child(name):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wanted = CALLS[name]().numpy().tobytes()
        torch.zeros(10**6).add_(1)  # torch's own threads have started
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends the child where it waits
            try:
                os._exit(0 if CALLS[name]().numpy().tobytes() == wanted else 3)
            finally:
                os._exit(4)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        torch.set_num_threads(before)
