"""Random bad arguments: a clear exception in the one form, or a result; never a changed input.

A call that is right is spoilt in one or two arguments. POSENC_FUZZ_EXAMPLES sets how many calls of
each function are tried; the default is the same calls in every run.
"""

import inspect
import os
import re
import warnings

import pytest
import torch
from fuzz_calls import CALLS, LEFT_TO_TORCH, MODULES, NOT_TRIED, public
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rope_cases import uniform

EXAMPLES = int(os.environ.get("POSENC_FUZZ_EXAMPLES", "60"))
many = settings(
    max_examples=EXAMPLES,
    derandomize="POSENC_FUZZ_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

PLAIN = (
    None,
    True,
    -1,
    0,
    1,
    3,
    7,
    2**62,
    2**63,
    2**70,
    -(2**63),
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    1e308,
    "",
    "bshd",
    "thd",
    "interleaved",
    "x",
    b"bshd",
    [],
    [1, 2],
    (),
    {},
    object(),
    torch.float32,
    torch.int64,
    torch.complex64,
    1j,
)


def tensors():
    """Tensors of every dtype, shape and kind of memory, right nowhere."""
    f = uniform((2, 5, 3, 16))
    yield from (f, f[0], f[0, 0], f[0, 0, 0], f[0, 0, 0, 0], f[None], f[..., :7], f[:0], f[..., :0])
    yield from (f.to(d) for d in (torch.float64, torch.bfloat16, torch.float16, torch.int64))
    yield from (f.to(d) for d in (torch.bool, torch.uint8, torch.int8, torch.complex64))
    yield f.to(torch.float8_e4m3fn)
    yield from (f.to("meta"), f.to_sparse(), f.clone().requires_grad_(), f.clone().conj())
    yield from (f[:1, :1, :1].expand(2, 5, 3, 16), f.transpose(1, 2), torch._neg_view(f.clone()))
    yield torch.nn.Parameter(f.clone())
    yield torch.complex(f, f).conj()
    yield from (torch.tensor(v) for v in ([], [0], [-1], [4], [0, 5], [0, 3, 2], [2**40], [0.5]))
    yield from (torch.arange(5), torch.arange(5, dtype=torch.int32), torch.arange(10).view(2, 5))
    yield torch.full((2, 5), 2**62)
    yield torch.empty(0, dtype=torch.int64)
    yield torch.tensor([float("nan"), float("inf")])
    yield torch.arange(6).expand(2**40, 6)


JUNK = st.sampled_from([*PLAIN, *tensors()])
ALLOWED = (TypeError, ValueError, IndexError, NotImplementedError)
# torch's own words for a size that no memory holds.
NO_MEMORY = ".*(allocate memory|Storage size calculation overflowed|Invalid size|too large)"
RETURN_NOTHING = ("RotaryPositionalEmbedding.reserve", "compat.vllm.rotary_embedding")


def test_every_public_callable_is_tried_with_every_argument():
    found = public()
    assert not set(NOT_TRIED) & set(CALLS)
    assert set(CALLS) | set(NOT_TRIED) == set(found)
    for name, (_, right) in CALLS.items():
        known = set(inspect.signature(found[name]).parameters) - {"self"} - LEFT_TO_TORCH
        assert set(right) == (known - {"dtype"} if name in MODULES else known), name


def snapshot(call):
    return [
        (t, t.detach().clone(), t._version)
        for t in call.values()
        if isinstance(t, torch.Tensor)
        and t.layout == torch.strided
        and t.device.type == "cpu"
        and t.numel() < 2**20
    ]


def bytes_of(t):
    return t.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def refusal(op, call):
    """The exception of a call, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of conj views, not ours
            result = CALLS[op][0](**call)
    except (*ALLOWED, RuntimeError) as error:
        return error
    assert result is not None or op in RETURN_NOTHING
    return None


def check_call(op, call):
    """Call it: a result or an exception in the one form; on an exception, nothing has changed."""
    before = snapshot(call)
    error = refusal(op, call)
    if error is None:
        return None
    text = str(error)
    form = r"posenc_ext\.[\w.]+: .+ (must|needs|is|are) .+"
    assert re.match(form if isinstance(error, ALLOWED) else NO_MEMORY, text), text
    assert "\n" not in text, text
    for t, values, version in before:
        assert t._version == version
        assert bytes_of(t.detach()) == bytes_of(values)
    return text


@pytest.mark.parametrize("op", CALLS)
def test_the_call_itself_is_right(op):
    assert check_call(op, dict(CALLS[op][1])) is None


@pytest.mark.parametrize("op", CALLS)
def test_spoilt_arguments(op):
    refused = 0

    @many
    @given(st.data())
    def run(data):
        nonlocal refused
        call = dict(CALLS[op][1])
        for key, value in call.items():
            if isinstance(value, torch.Tensor):
                call[key] = value.clone()
        for _ in range(data.draw(st.integers(1, 2))):
            key = data.draw(st.sampled_from(list(call)))
            junk = data.draw(JUNK)
            call[key] = junk
        refused += check_call(op, call) is not None

    run()
    assert refused > EXAMPLES // 4
