"""The formulas in plain PyTorch of the norm with the rotation, and of the write into a cache."""

import pytest
import torch
from cache_cases import CACHE_LAYOUTS, EIGHT_BITS, call_of, same_bits
from norm_cases import RULES, channels, parameter, rule
from rope_cases import shape, table, uniform
from test_formulas import FORMULAS, Compared, compared

import posenc_ext
from posenc_ext.formulas import rope_cache
from posenc_ext.ops.rope_options import RopeOptions

ROUNDINGS = ("once", "norm", "transformers")


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("how", RULES, ids="-".join)
def test_norm_rope(how, rounding):
    for layout, dtype in (("bshd", torch.float32), ("hsd", torch.float64), ("sbhd", torch.float16)):
        x, (cos, sin) = uniform(shape(layout), dtype), table(8)
        weight, bias = (parameter(channels(x, layout, how[1]), seed=s) for s in (3, 4))
        options = {"layout": layout, "rounding": rounding, "weight_offset": 0.5, **rule(*how)}
        if dtype == torch.float64:
            cos, sin = cos.double(), sin.double()

        def call(x, weight, bias, options=options, cos=cos, sin=sin):
            return posenc_ext.norm_rope(x, weight, cos, sin, bias=bias, offset=1, **options)

        seen = compared(call, x, weight, bias)
        assert seen == {"posenc_ext::norm_rope", "posenc_ext::norm_rope_grad"}


def test_norm_rope_in_place_out_and_pairs():
    q, k, (cos, sin) = uniform(shape("bshd")), uniform(shape("bshd", h=1)), table(8)
    weight = parameter(q.shape[-1])
    with Compared() as mode:
        posenc_ext.norm_rope(q, weight, cos, sin, inplace=True)
        posenc_ext.norm_rope(q, None, cos, sin, out=torch.empty_like(q))
        posenc_ext.qk_norm_rope(q, k, weight, None, cos, sin, interleaved=True)
        posenc_ext.qk_norm_rope(q, k, None, weight, cos, sin, inplace=True)
    names = ["norm_rope_", "norm_rope_out", "qk_norm_rope", "qk_norm_rope_"]
    assert mode.seen == {f"posenc_ext::{name}" for name in names}


def through_formulas(*arguments, inplace, **options):
    """apply_rope_cache by its formula."""

    class Formulas(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            return FORMULAS.get(op, op)(*args, **(kwargs or {}))

    with torch.no_grad(), Formulas():
        return posenc_ext.apply_rope_cache(*arguments, inplace=inplace, **options)


@pytest.mark.parametrize("stored", [None, *EIGHT_BITS], ids=str)
@pytest.mark.parametrize("cache_layout", CACHE_LAYOUTS)
def test_apply_rope_cache(cache_layout, stored):
    for layout in ("bshd", "bhsd", "thd", "sd"):
        batch = 2 if layout[0] == "b" else 1
        more = {} if stored is None else {"k_scale": 0.01, "v_scale": torch.tensor(0.02)}
        paged = cache_layout[0] == "n"
        if not paged:
            more |= {"window": 4} if stored is None else {"offset": 3}
        call = call_of(cache_layout, stored=stored, layout=layout, batch=batch, **more)
        for inplace in (False, True):
            call.options["inplace"] = inplace
            for actual, right in zip(call.make(through_formulas), call.make(), strict=True):
                same_bits(actual, right)


def test_a_ring_leaves_out_what_it_would_overwrite():
    rope = RopeOptions(*table(4), None, None, None, 0, "bshd", False, False, False)
    slots = rope_cache._slots(torch.zeros(2, 5, 1, 8), 6, rope, 4)
    assert slots.tolist() == [[-1, 1, 2, 3, 0], [-1, 7, 8, 9, 6]]
