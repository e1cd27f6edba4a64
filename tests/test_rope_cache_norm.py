"""apply_rope_cache with a norm against norm_rope and index_put, bit for bit."""

import re

import pytest
import torch
from cache_cases import CACHE_LAYOUTS, EIGHT_BITS, call_of, check, same_bits, with_norm
from norm_cases import RULES
from rope_cases import DTYPES, VIEWS, name, threads, uniform
from test_formulas_rows import through_formulas
from test_rope_cache_ops import OPS, arguments, eight

import posenc_ext

each_cache = pytest.mark.parametrize("cache_layout", CACHE_LAYOUTS)
every_rule = pytest.mark.parametrize("kind", RULES, ids="-".join)
PLAIN = ("rms", "head", "norm_first")


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_rules(dtype, kind):
    for cache_layout, layout in (("blhd", "bshd"), ("nhpd", "bhsd"), ("bhld", "sbhd")):
        check(with_norm(call_of(cache_layout, dtype, layout=layout), kind))
    check(with_norm(call_of("nphd", dtype, interleaved=True, inverse=True, dim=40), kind))
    check(with_norm(call_of("blhd", dtype, pairs=0), kind, rounding="norm"))
    check(with_norm(call_of("blhd", dtype, window=4, length=9), kind, rounding="transformers"))


@every_rule
@pytest.mark.parametrize("stored", EIGHT_BITS, ids=name)
def test_eight_bits(stored, kind):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        scales = {"k_scale": torch.tensor([0.02, 0.01]), "v_scale": 0.3}
        check(with_norm(call_of("nphd", dtype, stored, **scales), kind))
        check(with_norm(call_of("bhld", dtype, stored, layout="bhsd", **scales), kind))


@each_cache
@pytest.mark.parametrize("view", [v for v in VIEWS if v != "expanded"])
def test_strides_threads_and_in_place(view, cache_layout):
    for kind in (PLAIN, ("layer", "all", "rope_first")):
        call = with_norm(call_of(cache_layout, torch.bfloat16, length=4), kind)
        right = call.make()
        for count in (1, 3):
            views = [VIEWS[view](t.clone()) for t in call[:5]]
            with threads(count):
                q = posenc_ext.apply_rope_cache(*views, *call.tables, inplace=True, **call.options)
            assert q is views[0]
            for actual, r in zip((q, *views[3:]), right, strict=True):
                same_bits(actual, r)


@each_cache
@pytest.mark.parametrize("stored", [None, torch.float8_e4m3fn], ids=str)
def test_the_op_and_its_formula(cache_layout, stored):
    """Formulas add up in another order, so that a value may be rounded otherwise."""
    call = with_norm(call_of(cache_layout, stored=stored), ("layer", "all", "norm_first"))
    right = call.make()
    for actual, r in zip(call.make(through_formulas_of_norm), right, strict=True):
        torch.testing.assert_close(
            actual.float(), r.float(), rtol=2e-6 if stored is None else 0.13, atol=2e-6
        )
    if stored is None:
        o = call.options
        given = (
            *(t.clone() for t in call[:5]), *call.tables, None, None, None, 0, o["layout"], False,
            False, False, o.get("slots"), o["cache_layout"], 0, None, None, o["q_weight"],
            o["k_weight"], o["q_bias"], o["k_bias"], 1e-3, 1.0, "layer", "all", "norm_first",
            "once",
        )  # fmt: skip
        same_bits(OPS.apply_rope_cache(*given), right[0])
        torch.library.opcheck(OPS.apply_rope_cache.default, given)
        torch.library.opcheck(OPS.apply_rope_cache_.default, given)


def through_formulas_of_norm(*given, **options):
    return through_formulas(*given, inplace=False, **options)


def test_compiled():
    call = with_norm(call_of("blhd"), PLAIN)
    compiled = torch.compile(posenc_ext.apply_rope_cache, backend="eager", fullgraph=True)
    for actual, right in zip(call.make(compiled), call.make(), strict=True):
        same_bits(actual, right)


W = uniform((20,))
BAD = {
    "weight_alone": (ValueError, "norm", ["None"], arguments(k_weight=W)),
    "norm_word": (ValueError, "norm", ["'rms', 'layer', 'l2'", "''"], arguments(norm="")),
    "norm_type": (TypeError, "norm", ["int"], arguments(norm=1)),
    "weight_shape": (ValueError, "q_weight", ["[D] = [20]"], arguments(norm="rms", q_weight=W[:9])),
    "weight_of_all": (
        ValueError, "k_bias", ["[H * D] = [40]"],
        arguments(norm="rms", norm_dims="all", k_bias=uniform((80,))),
    ),
    "weight_type": (TypeError, "q_bias", ["float"], arguments(norm="rms", q_bias=1.0)),
    "weight_grad": (
        ValueError, "k_weight", ["no_grad"],
        arguments(norm="rms", k_weight=W.clone().requires_grad_()),
    ),
    "order_of_pairs": (
        ValueError, "interleaved_out", ["equal interleaved"],
        arguments(norm="rms", interleaved_out=True),
    ),
    "rounding_in_eight_bits": (
        ValueError, "rounding", ["'once'", "8 bits"], eight(norm="rms", rounding="norm"),
    ),
    "eps": (ValueError, "eps", ["at least 0"], arguments(norm="rms", eps=-1.0)),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refusals(case):
    exception, argument, fragments, call = BAD[case]
    before = call["k_cache"].clone()
    with pytest.raises(exception) as caught:
        posenc_ext.apply_rope_cache(**call)
    text = str(caught.value)
    assert re.match(rf"posenc_ext\.apply_rope_cache: {argument} must .+, got .+", text), text
    for fragment in fragments:
        assert fragment in text
    same_bits(call["k_cache"], before)


def test_a_cache_over_the_weights():
    call = arguments(norm="rms")
    call["q_weight"] = call["k_cache"].flatten()[:20]
    with pytest.raises(ValueError, match=r"k_cache must .* q_weight"):
        posenc_ext.apply_rope_cache(**call)
