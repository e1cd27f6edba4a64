"""apply_rope_cache: what it refuses, its ops in the dispatcher, meta tensors, torch.compile."""

import re

import pytest
import torch
from cache_cases import CACHE_LAYOUTS, call_of, same_bits
from rope_cases import uniform
from rope_refusals import on_meta
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, vmap

import posenc_ext

OPS = torch.ops.posenc_ext


def arguments(of="blhd", stored=None, **changes):
    call = call_of(of, stored=stored)
    named = dict(zip(call._fields[:5], call[:5], strict=True))
    return {**named, "cos": call.tables[0], "sin": call.tables[1], **call.options, **changes}


def paged(**changes):
    return arguments("nphd", **changes)


def eight(**changes):
    return arguments("blhd", torch.int8, **({"k_scale": 1.0, "v_scale": 1.0} | changes))


def ints(*values):
    return torch.tensor(values)


def overlapping(name, other):
    """The cache `name` lies over the argument `other`."""
    call = arguments()
    memory = torch.zeros(call[name].numel())
    call[name] = memory.view(call[name].shape)
    given = call[other]
    call[other] = memory[: given.numel()].view(given.shape).copy_(given)
    return call


K5 = uniform((2, 5, 2, 20))
# ruff: noqa: E501
# fmt: off
# case: (exception, argument at fault, what the text must contain, the call).
BAD = {
    "q_type": (TypeError, "q", ["list"], arguments(q=[1.0])),
    "v_type": (TypeError, "v", ["float"], arguments(v=1.0)),
    "v_shape": (ValueError, "v", ["[2, 5, 2, 20]", "[2, 4, 2, 12]"], arguments(v=uniform((2, 4, 2, 12)))),
    "v_rank": (ValueError, "v", [], arguments(v=uniform((5, 2, 12)))),
    "v_dtype": (TypeError, "v", ["BFloat16"], arguments(v=uniform((2, 5, 2, 12)).bfloat16())),
    "v_device": (ValueError, "v", ["meta"], arguments(v=uniform((2, 5, 2, 12)).to("meta"))),
    "k_dtype": (TypeError, "k", ["Double"], arguments(k=K5.double())),
    "cache_type": (TypeError, "k_cache", ["NoneType"], arguments(k_cache=None)),
    "cache_rank": (ValueError, "k_cache", ["4 axes"], arguments(k_cache=uniform((32, 2, 20)))),
    "cache_heads": (ValueError, "k_cache", ["heads 2"], arguments(k_cache=uniform((2, 32, 3, 20)))),
    "cache_dim": (ValueError, "v_cache", ["D = 12"], arguments(v_cache=uniform((2, 32, 2, 13)))),
    "cache_rows": (ValueError, "v_cache", [], arguments(v_cache=uniform((2, 31, 2, 12)))),
    "cache_batch": (ValueError, "k_cache", ["batch size of k, 2"],
        arguments(k_cache=uniform((3, 32, 2, 20)), v_cache=uniform((3, 32, 2, 12)))),
    "cache_dtype": (TypeError, "k_cache", ["float8_e4m3fn"], arguments(k_cache=uniform((2, 32, 2, 20)).half())),
    "caches_of_two_dtypes": (TypeError, "v_cache", ["Float8_e5m2"],
        eight(v_cache=torch.zeros(2, 32, 2, 12, dtype=torch.float8_e5m2))),
    "double_in_eight_bits": (TypeError, "k_cache", ["float64"],
        {**call_of("blhd", torch.float64)._asdict(), "k_cache": torch.zeros(2, 32, 2, 20, dtype=torch.int8)}),
    "cache_device": (ValueError, "k_cache", ["meta"], arguments(k_cache=torch.zeros(2, 32, 2, 20, device="meta"))),
    "cache_sparse": (TypeError, "k_cache", ["dense"], arguments(k_cache=torch.zeros(2, 32, 2, 20).to_sparse())),
    "cache_expanded": (ValueError, "k_cache", ["overlap"], arguments(k_cache=torch.zeros(2, 1, 2, 20).expand(2, 32, 2, 20))),
    "cache_over_k": (ValueError, "k_cache", ["k"], overlapping("k_cache", "k")),
    "cache_over_v": (ValueError, "v_cache", ["v"], overlapping("v_cache", "v")),
    "cache_over_q": (ValueError, "k_cache", ["q"], overlapping("k_cache", "q")),
    "cache_over_cos": (ValueError, "v_cache", ["cos"], overlapping("v_cache", "cos")),
    "layout_unknown": (ValueError, "cache_layout", ["blhd, bhld, nphd, nhpd", "bshd"], arguments(cache_layout="bshd")),
    "layout_type": (TypeError, "cache_layout", ["int"], arguments(cache_layout=3)),
    "slots_missing": (ValueError, "slots", ["nphd", "None"], paged(slots=None)),
    "slots_not_wanted": (ValueError, "slots", ["blhd"], arguments(slots=torch.arange(10))),
    "slots_dtype": (TypeError, "slots", ["Float"], paged(slots=torch.arange(10.0))),
    "slots_shape": (ValueError, "slots", ["2 * 5", "[9]"], paged(slots=torch.arange(9))),
    "slots_transposed": (ValueError, "slots", ["[5, 2]"], paged(slots=torch.arange(10).view(5, 2))),
    "slot_low": (IndexError, "slots", ["36", "-2"], paged(slots=ints(0, 1, 2, 3, 4, 5, 6, 7, 8, -2))),
    "slot_high": (IndexError, "slots", ["36"], paged(slots=ints(0, 1, 2, 3, 4, 5, 6, 7, 8, 36))),
    "slot_huge": (IndexError, "slots", [], paged(slots=ints(0, 1, 2, 3, 4, 5, 6, 7, 8, 2**62))),
    "slot_twice": (ValueError, "slots", ["slot 7"], paged(slots=ints(0, 1, 7, 3, 4, 5, -1, -1, 8, 7))),
    "row_twice": (ValueError, "positions", [], arguments(positions=ints(1, 2, 3, 2, 4))),
    "row_twice_in_a_ring": (ValueError, "positions", [], arguments(positions=ints(1, 2, 3, 4, 8), window=7)),
    "no_row": (IndexError, "k_cache", ["position 32", "L = 32"], arguments(offset=28)),
    "no_row_of_the_table": (IndexError, "cos", ["L = 64"], arguments(offset=60)),
    "window_zero": (ValueError, "window", ["0"], arguments(window=0)),
    "window_large": (ValueError, "window", ["32", "33"], arguments(window=33)),
    "window_type": (TypeError, "window", ["float"], arguments(window=4.0)),
    "window_with_slots": (ValueError, "window", ["slots"], paged(window=4)),
    "per_token_without_slots": (ValueError, "slots", ["cu_seqlens"],
        arguments(cos=uniform((2, 5, 8)), sin=uniform((2, 5, 8)))),
    "scale_of_the_same_dtype": (ValueError, "k_scale", ["8 bits"], arguments(k_scale=1.0)),
    "scale_missing": (ValueError, "v_scale", ["int8"], eight(v_scale=None)),
    "scale_type": (TypeError, "k_scale", ["str"], eight(k_scale="1")),
    "scale_dtype": (TypeError, "k_scale", ["float32"], eight(k_scale=torch.ones((), dtype=torch.float64))),
    "scale_shape": (ValueError, "v_scale", ["[H] = [2]"], eight(v_scale=torch.ones(4))),
    "scale_device": (ValueError, "v_scale", ["meta"], eight(v_scale=torch.ones(2, device="meta"))),
    "scale_infinite": (ValueError, "k_scale", ["finite"], eight(k_scale=float("inf"))),
    "q_grad": (ValueError, "q", ["no_grad"], arguments(q=uniform((2, 5, 4, 20)).requires_grad_())),
    "cos_grad": (ValueError, "cos", ["gradient"], arguments(cos=call_of("blhd").tables[0].requires_grad_())),
    "cache_grad": (ValueError, "v_cache", ["gradient"], arguments(v_cache=torch.zeros(2, 32, 2, 12, requires_grad=True))),
}
# fmt: on
META_CANNOT_TELL = {
    "slot_low",
    "slot_high",
    "slot_huge",
    "slot_twice",
    "row_twice",
    "no_row",
    "row_twice_in_a_ring",
}  # fmt: skip


def fields(call):
    if "tables" in call:
        call = dict(call)
        call["cos"], call["sin"] = call.pop("tables")
        call |= call.pop("options")
    return call


def bits(t):
    return t.detach().contiguous().flatten().view(torch.uint8)


@pytest.mark.parametrize("case", BAD)
def test_refusals(case):
    exception, argument, fragments, call = BAD[case]
    call = fields(call)
    plain = [v for v in call.values() if isinstance(v, torch.Tensor) and v.layout == torch.strided]
    written = [t for t in plain if t.device.type == "cpu"]
    before = [(t, bits(t).clone(), t._version) for t in written]
    texts = []
    for where in ("cpu", "meta"):
        if where == "meta":
            if case in META_CANNOT_TELL or "device" in case or "_over_" in case:
                continue
            call = {n: on_meta(v) if any(v is p for p in plain) else v for n, v in call.items()}
        with pytest.raises(exception) as caught:
            posenc_ext.apply_rope_cache(**call)
        assert type(caught.value) is exception
        text = str(caught.value)
        assert re.match(rf"posenc_ext\.apply_rope_cache: {argument} must .+, got .+", text), text
        assert "\n" not in text
        for fragment in fragments:
            assert fragment in text
        texts.append(text)
    assert len({t.replace("meta", "cpu") for t in texts}) == 1
    for t, values, version in before:
        assert t._version == version
        assert torch.equal(bits(t), values)


def test_transforms_are_refused():
    call = arguments()
    v = call.pop("v")
    with pytest.raises(NotImplementedError, match="q must not be under a transform"):
        vmap(lambda v: posenc_ext.apply_rope_cache(v=v, **call))(torch.stack([v, v]))
    with pytest.raises(NotImplementedError, match="q must not be under a transform"):
        grad(lambda v: posenc_ext.apply_rope_cache(v=v, **call).sum())(v)


def test_without_grad_mode_parameters_may_be_given():
    call = arguments()
    call["k"] = call["k"].clone().requires_grad_()
    with torch.no_grad():
        y = posenc_ext.apply_rope_cache(**call)
    assert not y.requires_grad


NO_NORM = (*(None,) * 4, 0.0, 0.0, None, "head", "norm_first", "once")


def op_arguments(call, stored):
    offset = call.options.get("offset", 0)
    scale = None if stored is None else torch.tensor(0.3)
    slots = call.options.get("slots")
    return (
        *(t.clone() for t in call[:5]), *call.tables, None, None, None, offset,
        call.options["layout"], False, False, True, slots, call.options["cache_layout"], 0, scale,
        scale, *NO_NORM,
    )  # fmt: skip


SAMPLES = [(layout, None) for layout in CACHE_LAYOUTS] + [("nphd", torch.float8_e4m3fn)]
each_sample = pytest.mark.parametrize(("cache_layout", "stored"), SAMPLES, ids=str)


@each_sample
def test_both_doors_are_one(cache_layout, stored):
    call = call_of(cache_layout, stored=stored, offset=3, interleaved_out=True)
    if stored is not None:
        call.options.update(k_scale=0.3, v_scale=0.3)
    right = call.make()
    new, inplace = op_arguments(call, stored), op_arguments(call, stored)
    for actual, r in zip((OPS.apply_rope_cache(*new), *new[3:5]), right, strict=True):
        same_bits(actual, r)
    assert OPS.apply_rope_cache_(*inplace) is None
    for actual, r in zip((inplace[0], *inplace[3:5]), right, strict=True):
        same_bits(actual, r)


@each_sample
def test_opcheck(cache_layout, stored):
    if stored is not None:
        stored = torch.int8  # opcheck compares with operators that float8 lacks
    call = call_of(cache_layout, stored=stored, offset=3)
    torch.library.opcheck(OPS.apply_rope_cache.default, op_arguments(call, stored))
    torch.library.opcheck(OPS.apply_rope_cache_.default, op_arguments(call, stored))


def test_ops_check_their_arguments_themselves():
    good = op_arguments(call_of("nphd"), None)
    bad = {
        3: (ValueError, uniform((9, 4, 2, 21))),
        2: (ValueError, uniform((2, 4, 2, 12))),
        15: (IndexError, torch.arange(10) + 30),
        16: (ValueError, "nhpd"),
    }
    for op in (OPS.apply_rope_cache, OPS.apply_rope_cache_):
        for index, (exception, value) in bad.items():
            wrong = list(good)
            wrong[index] = value
            with pytest.raises(exception, match=r"posenc_ext.apply_rope_cache: \w+ must .+, got"):
                op(*wrong)


@pytest.mark.parametrize("cache_layout", CACHE_LAYOUTS)
def test_meta_and_fake_tensors(cache_layout):
    call = call_of(cache_layout, torch.bfloat16)
    real = call.make()[0]
    options = {n: on_meta(v) for n, v in call.options.items()}
    meta = call._replace(
        **{n: on_meta(getattr(call, n)) for n in call._fields[:5]},
        tables=tuple(map(on_meta, call.tables)), options=options,
    )  # fmt: skip
    q = meta.make()[0]
    assert (q.shape, q.stride(), q.dtype) == (real.shape, real.stride(), real.dtype)
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = call.make()[0]
        assert (q.shape, q.stride(), q.dtype) == (real.shape, real.stride(), real.dtype)


def test_compile_over_decode_steps():
    torch._dynamo.reset()

    def step(q, k, v, k_cache, v_cache, cos, sin, offset):
        return posenc_ext.apply_rope_cache(q, k, v, k_cache, v_cache, cos, sin, offset=offset)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    call = call_of("blhd", length=1)
    caches = [(call.k_cache.clone(), call.v_cache.clone()) for _ in range(2)]
    for offset in range(3, 9):
        q, k, v = (uniform(t.shape, seed=offset + i) for i, t in enumerate(call[:3]))
        results = [
            f(q, k, v, *each, *call.tables, offset)
            for f, each in zip((compiled, step), caches, strict=True)
        ]
        same_bits(*results)
    for a, b in zip(*caches, strict=True):
        same_bits(a, b)
    torch._dynamo.reset()


def test_export():
    class Step(torch.nn.Module):
        def forward(self, q, k, v, k_cache, v_cache, cos, sin, slots):
            return posenc_ext.apply_rope_cache(q, k, v, k_cache, v_cache, cos, sin, slots=slots)

    call = call_of("nphd")
    right = call.make()
    inputs = [t.clone() for t in (*call[:5], *call.tables, call.options["slots"])]
    program = torch.export.export(Step(), tuple(t.clone() for t in inputs))
    q = program.module()(*inputs)
    for actual, r in zip((q, *inputs[3:5]), right, strict=True):
        same_bits(actual, r)
