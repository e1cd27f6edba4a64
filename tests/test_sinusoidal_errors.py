"""Every check of the sinusoidal functions: its exception, its text, the same from meta tensors."""

import re

import pytest
import torch
from rope_refusals import on_meta

import posenc_ext

OPS = torch.ops.posenc_ext
X = torch.zeros(2, 5, 8)
P = torch.arange(4)
W = torch.ones(4, dtype=torch.float64)
NAN = float("nan")

# fmt: off
# (function, exception, argument at fault, what the text must contain, call)
TABLE = [
    (ValueError, "convention", ["interleaved", "diffusion", "paper"], {"convention": "paper"}),
    (ValueError, "convention", ["None"], {"convention": None}),
    (ValueError, "dim", ["-1"], {"dim": -1}),
    (TypeError, "dim", ["float"], {"dim": 8.0}),
    (TypeError, "dim", ["bool"], {"dim": True}),
    (ValueError, "base", ["0"], {"base": 0}),
    (ValueError, "base", ["inf"], {"base": float("inf")}),
    (TypeError, "base", ["str"], {"base": "10000"}),
    (ValueError, "positions", ["-3"], {"positions": -3}),
    (TypeError, "positions", ["list"], {"positions": [0, 1]}),
    (TypeError, "positions", ["int16"], {"positions": P.short()}),
    (TypeError, "positions", ["complex64"], {"positions": P.to(torch.complex64)}),
    (TypeError, "positions", ["bool"], {"positions": P.bool()}),
    (TypeError, "dtype", ["int64"], {"dtype": torch.int64}),
    (TypeError, "dtype", ["got float32"], {"dtype": "float32"}),
    (TypeError, "padding_idx", ["float"], {"padding_idx": 1.0}),
]
TIMESTEP = [
    (ValueError, "downscale_freq_shift", ["4", "4.0"], {"downscale_freq_shift": 4}),
    (ValueError, "downscale_freq_shift", ["nan"], {"downscale_freq_shift": NAN}),
    (ValueError, "max_period", ["-1.0"], {"max_period": -1}),
    (ValueError, "scale", ["nan"], {"scale": NAN}),
    (TypeError, "timesteps", ["str"], {"timesteps": "5"}),
    (ValueError, "dim", ["-2"], {"dim": -2}),
    (TypeError, "dtype", ["int8"], {"dtype": torch.int8}),
]
TABLE_2D = [
    (ValueError, "dim", ["multiple of 4", "6"], {"dim": 6}),
    (ValueError, "first", ["width", "'w'"], {"first": "w"}),
    (ValueError, "height", ["-1"], {"height": -1}),
    (ValueError, "width", ["[2, 2]"], {"width": torch.zeros(2, 2)}),
    (TypeError, "width", ["NoneType"], {"width": None}),
    (ValueError, "extra_tokens", ["-1"], {"extra_tokens": -1}),
]
ADD = [
    (TypeError, "x", ["list"], {"x": [1.0]}),
    (TypeError, "x", ["Long"], {"x": X.long()}),
    (TypeError, "x", ["ComplexFloat"], {"x": X.to(torch.complex64)}),
    (ValueError, "x", ["[8]"], {"x": X[0, 0]}),
    (ValueError, "x", ["[1, 2, 5, 8]"], {"x": X[None]}),
    (ValueError, "x", ["[]"], {"x": X[0, 0, 0]}),
    (TypeError, "offset", ["float"], {"offset": 1.0}),
    (ValueError, "offset", [str(2**63 - 1)], {"offset": 2**63 - 1}),
    (ValueError, "offset", [str(-2**70)], {"offset": -2**70}),
    (TypeError, "offset", ["Float"], {"offset": torch.zeros(2)}),
    (TypeError, "offset", ["Short"], {"offset": torch.zeros(2, dtype=torch.int16)}),
    (ValueError, "offset", ["[2]", "[3]"], {"offset": torch.zeros(3, dtype=torch.int64)}),
    (ValueError, "offset", ["[2, 1]"], {"offset": torch.zeros(2, 1, dtype=torch.int64)}),
    (ValueError, "scale", ["inf"], {"scale": float("inf")}),
    (TypeError, "scale", ["str"], {"scale": "1"}),
    (ValueError, "base", ["-5"], {"base": -5}),
    (ValueError, "convention", ["'sin'"], {"convention": "sin"}),
]
MODULE = [
    (TypeError, "d_model", ["float"], {"d_model": 8.0}),
    (ValueError, "d_model", ["-8"], {"d_model": -8}),
    (ValueError, "max_len", ["-1"], {"max_len": -1}),
    (ValueError, "dropout", ["1.5"], {"dropout": 1.5}),
    (ValueError, "convention", ["'x'"], {"convention": "x"}),
    (ValueError, "base", ["0"], {"base": 0.0}),
    (ValueError, "padding_idx", ["-1"], {"padding_idx": -1}),
]
# fmt: on
GOOD = {
    "sinusoidal_table": {"positions": P, "dim": 8},
    "timestep_embedding": {"timesteps": P, "dim": 8},
    "sinusoidal_table_2d": {"height": 2, "width": 3, "dim": 8},
    "add_sinusoidal": {"x": X},
    "SinusoidalPositionalEncoding": {"d_model": 8},
}
CASES = [
    (op, *case)
    for op, cases in zip(GOOD, (TABLE, TIMESTEP, TABLE_2D, ADD, MODULE), strict=True)
    for case in cases
]


def refused(call, op, exception, argument, fragments):
    with pytest.raises(exception) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is exception
    assert re.match(rf"posenc_ext\.{op}: {argument} must .+, got .+", text), text
    assert "\n" not in text
    for fragment in fragments:
        assert fragment in text
    return text


@pytest.mark.parametrize(
    ("op", "exception", "argument", "fragments", "change"),
    CASES,
    ids=[f"{op}-{argument}-{i}" for i, (op, _, argument, *_) in enumerate(CASES)],
)
def test_refusals(op, exception, argument, fragments, change):
    call = GOOD[op] | change
    function = getattr(posenc_ext, op)
    text = refused(lambda: function(**call), op, exception, argument, fragments)
    meta = {key: on_meta(value) for key, value in call.items()}
    assert refused(lambda: function(**meta), op, exception, argument, []) == text


@pytest.mark.parametrize("value", [2**62 + 1, -(2**62) - 1])
def test_values_of_offsets(value):
    offset = torch.tensor([0, value])
    call = lambda: posenc_ext.add_sinusoidal(X, offset=offset)  # noqa: E731
    refused(call, "add_sinusoidal", ValueError, "offset", [str(value)])
    for end in (2**62, -(2**62)):
        assert posenc_ext.add_sinusoidal(X, offset=end).isnan().any()  # beyond 2^53 radians


# The ops, called as from an exported graph.
RAW = [
    ("sinusoidal_table", TypeError, "frequencies", (P, W.float(), 8, True, False, torch.float32)),
    ("sinusoidal_table", ValueError, "frequencies", (P, W, 10, True, False, torch.float32)),
    ("sinusoidal_table", ValueError, "frequencies", (P, W[None], 8, True, False, torch.float32)),
    ("sinusoidal_table", ValueError, "dim", (P, W, -1, True, False, torch.float32)),
    ("sinusoidal_table", TypeError, "positions", (P.bool(), W, 8, True, False, torch.float32)),
    ("sinusoidal_table", TypeError, "dtype", (P, W, 8, True, False, torch.int32)),
    ("add_sinusoidal", TypeError, "frequencies", (X, W.half(), None, 0, 1.0, True, False)),
    ("add_sinusoidal", ValueError, "frequencies", (X, W[:3], None, 0, 1.0, True, False)),
    ("add_sinusoidal", ValueError, "scale", (X, W, None, 0, NAN, True, False)),
    ("add_sinusoidal", ValueError, "offset", (X, W, None, 2**63 - 1, 1.0, True, False)),
    ("sinusoidal_frequencies", ValueError, "count", (X, -1, 10.0, 1.0)),
    ("sinusoidal_frequencies", ValueError, "base", (X, 1, 0.0, 1.0)),
    ("sinusoidal_frequencies", ValueError, "denominator", (X, 1, 10.0, NAN)),
]


@pytest.mark.parametrize(("op", "exception", "argument", "args"), RAW)
def test_ops_check_their_arguments_themselves(op, exception, argument, args):
    function = getattr(OPS, op)
    text = refused(lambda: function(*args), op, exception, argument, [])
    meta = [on_meta(a) for a in args]
    assert refused(lambda: function(*meta), op, exception, argument, []) == text


def test_devices_must_agree():
    meta = W.to("meta")
    for op, call in {
        "sinusoidal_table": lambda: OPS.sinusoidal_table(P, meta, 8, True, False, torch.float32),
        "add_sinusoidal": lambda: OPS.add_sinusoidal(X, meta, None, 0, 1.0, True, False),
    }.items():
        refused(call, op, ValueError, "frequencies", ["cpu", "meta"])
    offset = torch.zeros(2, dtype=torch.int64, device="meta")
    refused(
        lambda: posenc_ext.add_sinusoidal(X, offset=offset),
        "add_sinusoidal", ValueError, "offset", ["cpu", "meta"],
    )  # fmt: skip


NOT_DENSE = {
    "sparse": lambda: X.to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(X, 1.0, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([X[0], X[1]]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch on both
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_tensors_that_are_not_dense_are_refused(kind):
    t = NOT_DENSE[kind]()
    for op, argument, call in (
        ("add_sinusoidal", "x", lambda: posenc_ext.add_sinusoidal(t)),
        ("add_sinusoidal", "offset", lambda: posenc_ext.add_sinusoidal(X, offset=t)),
        ("sinusoidal_table", "positions", lambda: posenc_ext.sinusoidal_table(t, 8)),
        ("timestep_embedding", "timesteps", lambda: posenc_ext.timestep_embedding(t, 8)),
        ("rope_table", "positions", lambda: posenc_ext.rope_table(t, W)),
        ("rope_table", "inv_freq", lambda: posenc_ext.rope_table(3, t)),
    ):
        refused(call, op, TypeError, argument, ["dense"])


def freed(t):
    t = t.clone()
    t.untyped_storage().resize_(t.element_size())  # what is left would be read beyond its end
    return t


def test_storage_must_hold_the_tensor():
    table = (8, True, False, torch.float32)
    for op, argument, call in (
        ("add_sinusoidal", "x", lambda: posenc_ext.add_sinusoidal(freed(X))),
        ("add_sinusoidal", "offset", lambda: posenc_ext.add_sinusoidal(X, offset=freed(P[:2]))),
        ("add_sinusoidal", "frequencies",
         lambda: OPS.add_sinusoidal(X, freed(W), None, 0, 1.0, True, False)),
        ("sinusoidal_table", "positions", lambda: posenc_ext.sinusoidal_table(freed(P), 8)),
        ("sinusoidal_table", "frequencies", lambda: OPS.sinusoidal_table(P, freed(W), *table)),
        ("rope_table", "positions", lambda: posenc_ext.rope_table(freed(P), W)),
        ("rope_table", "inv_freq", lambda: posenc_ext.rope_table(3, freed(W))),
    ):  # fmt: skip
        refused(call, op, ValueError, argument, ["storage of at least"])


def test_a_width_beyond_reason_fails_at_once():
    # Not after the frequencies of all its columns have been computed.
    with pytest.raises(ValueError, match=r"dim must not exceed 1048576, got 7205"):
        posenc_ext.sinusoidal_table(1, 2**56)
    with pytest.raises(RuntimeError, match="allocate"):
        posenc_ext.add_sinusoidal(torch.ones(1, 1).expand(1, 2**56))


def test_many_frequencies():
    n = 70000  # more than are kept between calls
    for count in (n, 3, n):
        got = OPS.sinusoidal_frequencies(X, count, 10.0, float(n))
        right = torch.tensor([10.0 ** (-i / n) for i in range(count)], dtype=torch.float64)
        torch.testing.assert_close(got, right, rtol=1e-15, atol=0)


TOKENS = torch.ones(2, 5, dtype=torch.int64)
# fmt: off
FORWARD = [
    (TypeError, "x", [], {}, {"x": [1.0]}),
    (ValueError, "x", ["8", "[2, 5, 6]"], {}, {"x": X[..., :6]}),
    (ValueError, "x", ["[1, 2, 5, 8]"], {}, {"x": X[None]}),
    (ValueError, "tokens", ["padding_idx", "int64"], {}, {"tokens": torch.ones(2, 5).long()}),
    (ValueError, "tokens", ["NoneType"], {"padding_idx": 1}, {}),
    (TypeError, "tokens", ["float32"], {"padding_idx": 1}, {"tokens": torch.ones(2, 5)}),
    (ValueError, "tokens", ["[2, 4]"], {"padding_idx": 1}, {"tokens": torch.ones(2, 4).long()}),
    (TypeError, "offset", ["float"], {"max_len": 9}, {"offset": 1.0}),
    (TypeError, "x", ["int64"], {"padding_idx": 1}, {"x": X.long(), "tokens": TOKENS}),
    (TypeError, "offset", ["str"], {"padding_idx": 1}, {"tokens": TOKENS, "offset": "1"}),
    (TypeError, "offset", ["float"], {"padding_idx": 1}, {"tokens": TOKENS, "offset": 1.5}),
    (TypeError, "offset", ["float32"], {"padding_idx": 1},
     {"tokens": TOKENS, "offset": torch.ones(2)}),
    (ValueError, "offset", ["[2]", "[5]"], {"padding_idx": 1},
     {"tokens": TOKENS, "offset": torch.arange(5)}),
    # Would broadcast to a batch of 3.
    (ValueError, "offset", ["[1]", "[3]"], {"padding_idx": 1},
     {"x": X[:1], "tokens": TOKENS[:1], "offset": torch.arange(3)}),
]


# fmt: on


def test_offset_of_one_sequence_with_padding():
    module = posenc_ext.SinusoidalPositionalEncoding(8, padding_idx=0)
    y = module(X[0], tokens=TOKENS[0], offset=torch.tensor([3]))
    assert torch.equal(y, module(X[0], tokens=TOKENS[0], offset=3))


@pytest.mark.parametrize(("exception", "argument", "fragments", "options", "change"), FORWARD)
def test_forward_refusals(exception, argument, fragments, options, change):
    module = posenc_ext.SinusoidalPositionalEncoding(8, **options)
    call = lambda: module(**({"x": X} | change))  # noqa: E731
    refused(call, "SinusoidalPositionalEncoding", exception, argument, fragments)
