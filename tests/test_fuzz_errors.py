"""Random bad arguments: a clear exception in the one form, or a result; never a changed input.

A call that is right is spoilt in one or two arguments. POSENC_FUZZ_EXAMPLES sets how many calls of
each function are tried; the default is the same calls in every run.
"""

import os
import re
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rope_cases import table, uniform

import posenc_ext

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
COS, SIN = table(8)
Q, K = uniform((2, 5, 3, 16)), uniform((2, 5, 1, 16), seed=1)
SCORES = uniform((2, 4, 5, 7))
ROPE = {
    "cos": COS,
    "sin": SIN,
    "layout": "bshd",
    "positions": None,
    "offset": 0,
    "cu_seqlens": None,
    "interleaved": False,
    "inverse": False,
    "inplace": False,
}
SLOPES = posenc_ext.alibi_slopes(4)
INV_FREQ = posenc_ext.rope_frequencies(16).inv_freq
RULE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CALLS = {
    "rope": {"x": Q, **ROPE, "out": None},
    "apply_rope": {"q": Q, "k": K, **ROPE},
    "rope_frequencies": {
        "dim": 16, "base": 10000.0, "scaling": RULE, "seq_len": 64, "precision": "exact",
    },
    "rope_table": {
        "positions": torch.arange(5), "inv_freq": INV_FREQ, "attention_factor": 1.0,
        "sections": None, "dtype": torch.float32, "precision": "exact",
    },
    "mrope_axes": {"sections": [2, 3, 3], "order": "chunked"},
    "mrope_position_ids": {"segments": [2, (1, 4, 4)], "spatial_merge_size": 2},
    "axial_rope_table": {
        "height": 2, "width": 3, "dim": 8, "variant": "pixtral", "base": None, "merge_size": 1,
        "before": 0, "after": 0, "dtype": torch.float32, "precision": "exact",
    },
    "xpos_table": {"positions": torch.arange(5), "inv_freq": INV_FREQ, "centre": 2},
    "interleaved_to_half": {"w": Q, "rotary_dim": 8},
    "half_to_interleaved": {"w": Q, "rotary_dim": 8},
    "sinusoidal_table": {
        "positions": 5, "dim": 8, "base": 10000.0, "convention": "interleaved",
        "dtype": torch.float32,
    },
    "sinusoidal_table_2d": {"height": 2, "width": 3, "dim": 8},
    "timestep_embedding": {"timesteps": torch.arange(3.0), "dim": 8},
    "add_sinusoidal": {
        "x": uniform((2, 5, 8)), "offset": 0, "scale": 1.0, "base": 10000.0,
        "convention": "interleaved",
    },
    "alibi_slopes": {"num_heads": 4, "max_bias": 8.0, "dtype": torch.float32},
    "alibi_bias": {
        "slopes": SLOPES, "q_len": 5, "k_len": 7, "causal": False, "dtype": torch.float32,
    },
    "alibi_row_bias": {"slopes": SLOPES, "k_len": 5},
    "add_alibi": {"scores": SCORES, "slopes": SLOPES, "causal": False, "inplace": False},
    "alibi_softmax": {"scores": SCORES, "slopes": SLOPES, "scale": 1.0, "causal": True},
}  # fmt: skip
ALLOWED = (TypeError, ValueError, IndexError, NotImplementedError)
# torch's own words for a size that no memory holds.
NO_MEMORY = ".*(allocate memory|Storage size calculation overflowed|Invalid size|too large)"


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
            assert getattr(posenc_ext, op)(**call) is not None
    except (*ALLOWED, RuntimeError) as error:
        return error
    return None


def check_call(op, call):
    """Call it: a result or an exception in the one form; on an exception, nothing has changed."""
    before = snapshot(call)
    error = refusal(op, call)
    if error is None:
        return None
    text = str(error)
    form = r"posenc_ext\.\w+: .+ (must|needs|is|are) .+"
    assert re.match(form if isinstance(error, ALLOWED) else NO_MEMORY, text), text
    assert "\n" not in text, text
    for t, values, version in before:
        assert t._version == version
        assert bytes_of(t.detach()) == bytes_of(values)
    return text


@pytest.mark.parametrize("op", CALLS)
def test_the_call_itself_is_right(op):
    assert check_call(op, dict(CALLS[op])) is None


@pytest.mark.parametrize("op", CALLS)
def test_spoilt_arguments(op):
    refused = 0

    @many
    @given(st.data())
    def run(data):
        nonlocal refused
        call = dict(CALLS[op])
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
