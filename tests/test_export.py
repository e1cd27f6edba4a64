"""torch.export with a symbol for the length, which must not become a constant.

As torch.export traces by default, Python code gets a torch.SymInt, which is no int.
"""

import pytest
import torch
from attention_cases import CASES, D_MODEL, HEADS, module_of
from rope_cases import uniform

import posenc_ext

LENGTHS = (9, 4, 12, 1)  # BERT has a vector for 12
SLOPES = posenc_ext.alibi_slopes(HEADS)
FREQUENCIES = posenc_ext.rope_frequencies(8).inv_freq
TABLE = posenc_ext.rope_table(32, FREQUENCIES)
T5 = posenc_ext.T5RelativePositionBias(HEADS)
LEARNED = posenc_ext.LearnedPositionalEncoding(D_MODEL, 32)
SINUSOIDAL = posenc_ext.SinusoidalPositionalEncoding(D_MODEL)

# What takes a length or an offset as an int; x is [B, S, d_model].
FUNCTIONS = {
    "rope offset": lambda x, n: posenc_ext.rope(x, *TABLE, layout="bsd", offset=n),
    "rope_table": lambda x, n: posenc_ext.rope_table(n, FREQUENCIES)[0],
    "axial_rope_table": lambda x, n: posenc_ext.axial_rope_table(n, 3, 8)[0],
    "sinusoidal_table": lambda x, n: posenc_ext.sinusoidal_table(n, 8),
    "add_sinusoidal": lambda x, n: posenc_ext.add_sinusoidal(x, offset=n),
    "SinusoidalPositionalEncoding": lambda x, n: SINUSOIDAL(x, offset=n),
    "LearnedPositionalEncoding": lambda x, n: LEARNED(x, offset=n),
    "sequential_positions": lambda x, n: posenc_ext.sequential_positions(n, past=n),
    "context_parallel_positions": lambda x, n: posenc_ext.context_parallel_positions(2 * n, 1, 2),
    "alibi_bias": lambda x, n: posenc_ext.alibi_bias(SLOPES, n, 2 * n),
    "alibi_row_bias": lambda x, n: posenc_ext.alibi_row_bias(SLOPES, n),
    "rel_shift": lambda x, n: posenc_ext.rel_shift(x, n, start=n),
    "relative_scatter": lambda x, n: posenc_ext.relative_scatter(
        x, torch.zeros(n + D_MODEL - 1, dtype=torch.int64), n
    ),
    "T5RelativePositionBias": lambda x, n: T5(n, 2 * n),
    "deberta_relative_index": lambda x, n: posenc_ext.deberta_relative_index(
        n, max_relative_positions=40, position_buckets=16
    ),
}


class Of(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.function = FUNCTIONS[name]

    def forward(self, x):
        return self.function(x, x.shape[1])


def inputs(length, dtype):
    return uniform((2, length, D_MODEL), dtype)


def holds_at_every_length(module, dtype):
    any_length = {"x": {1: torch.export.Dim.DYNAMIC}}
    given = (inputs(6, dtype),)
    module(*given)  # what a module keeps of this length must not bind the graph
    program = torch.export.export(module, given, dynamic_shapes=any_length).module()
    for length in LENGTHS:
        x = inputs(length, dtype)
        torch.testing.assert_close(program(x), module(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    holds_at_every_length(Of(name), torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    holds_at_every_length(module_of(name), torch.float64)
