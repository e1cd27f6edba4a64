"""rope_frequencies: every rule against golden numbers and, where installed, transformers."""

import math

import numpy as np
import pytest
import torch
from rope_cases import assert_bits

from posenc_ext import rope_frequencies
from posenc_ext.scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    NTKByParts,
    NTKMixed,
    PartNTK,
    Proportional,
    YaRN,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 4.0, 8.0, 16.0],
    "original_max_position_embeddings": 4096,
    "max_position_embeddings": 131072,
}
LISTS = (tuple(LONG["short_factor"]), tuple(LONG["long_factor"]))
PARTS = {"factor": 8.0, "original_max_position_embeddings": 4096}


# Golden numbers.


def golden_cases(golden, prefix):
    return [(key, case) for key, case in golden.items() if key.startswith(prefix)]


def assert_golden(actual, right):
    np.testing.assert_allclose(actual.inv_freq.numpy(), right, rtol=1e-13, atol=0)


def test_golden_frequencies(golden):
    cases = golden_cases(golden, "inv_freq/")
    assert len(cases) > 20
    for key, case in cases:
        keys = dict(case["inputs"])
        name = key.split("/")[1]
        dim = keys.pop("dim", None) or keys.pop("head_dim")
        seq_len = keys.pop("seq_len", None)
        scaling = {"rope_type": "ntk" if name == "ntk_static" else name, **keys}
        right = case["expected"]
        if name == "longrope":
            for length, which in ((None, "short"), (4096, "short"), (4097, "long")):
                found = rope_frequencies(dim, scaling=scaling, seq_len=length)
                assert_golden(found, right[which])
                assert found.attention_factor == pytest.approx(right["attention_factor"], rel=1e-15)
            continue
        found = rope_frequencies(dim, scaling=scaling, seq_len=seq_len)
        assert_golden(found, right if isinstance(right, list) else right["inv_freq"])
        factor = right.get("attention_factor", 1.0) if isinstance(right, dict) else 1.0
        assert found.attention_factor == pytest.approx(factor, rel=1e-15)


def test_golden_yarn_is_the_form_of_the_code(golden):
    case = golden["yarn/code_vs_paper_vs_seed"]
    plain = rope_frequencies(128).inv_freq
    for name, right in (("yarn", "ratio_code"), ("ntk_by_parts", "ratio_paper")):
        found = rope_frequencies(128, scaling={"rope_type": name, **PARTS}).inv_freq
        np.testing.assert_allclose(found / plain, case["expected"][right], rtol=1e-13)


def test_golden_softmax_scale(golden):
    cases = golden_cases(golden, "yarn/softmax_scale/")
    assert len(cases) == 2
    for _, case in cases:
        keys = case["inputs"]
        temperature = YaRN(keys["factor"], 4096).temperature(keys["mscale_all_dim"])
        scale = keys["qk_head_dim"] ** -0.5 * temperature**2
        assert scale == pytest.approx(case["expected"], rel=1e-14)


# Rules.

PAIRS = [
    ({"rope_type": "linear", "factor": 4}, Linear(4)),
    ({"type": "linear", "factor": 4.0}, Linear(4)),
    ({"rope_type": "ntk", "factor": 4.0}, NTK(4.0)),
    ({"rope_type": "ntk_mixed", "factor": 4.0, "mixed_b": 0.6}, NTKMixed(4.0, 0.6)),
    ({"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}, DynamicNTK(2.0, 64)),
    ({"rope_type": "ntk_by_parts", **PARTS, "beta": 16.0}, NTKByParts(8.0, 4096, beta=16.0)),
    ({"rope_type": "part_ntk", **PARTS, "gamma_1": 3.0}, PartNTK(8.0, 4096, gamma_1=3.0)),
    (YARN, YaRN(4.0, 32768)),
    (YARN | {"beta_fast": None, "truncate": False}, YaRN(4.0, 32768, truncate=False)),
    (YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, YaRN(4, 32768, mscale=1, mscale_all_dim=0.7)),
    (LONG, LongRoPE(*LISTS, 4096, factor=32)),
    (LONG | {"rope_type": "su"}, LongRoPE(*LISTS, 4096, factor=32)),
    (LONG | {"pin": "long"}, LongRoPE(*LISTS, 4096, factor=32, pin="long")),
    (LLAMA3, Llama3(8.0, 1.0, 4.0, 8192)),
    ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, Proportional(0.5)),
    ({"rope_type": "default"}, None),
    ({"type": "mrope", "mrope_section": [2, 1, 1]}, None),
    ({"rope_type": "default", "type": "mrope"}, None),
    ({}, None),
]


@pytest.mark.parametrize("precision", ["exact", "float32"])
@pytest.mark.parametrize(("keys", "rule"), PAIRS)
def test_dict_and_rule_agree(keys, rule, precision):
    for seq_len in (None, 100, 5000):
        a, b = (
            rope_frequencies(8, 500.0, scaling, seq_len=seq_len, precision=precision)
            for scaling in (keys, rule)
        )
        assert_bits(a.inv_freq, b.inv_freq)
        assert a.attention_factor == b.attention_factor
        assert a.inv_freq.dtype == (torch.float64 if precision == "exact" else torch.float32)


def test_abf_is_a_base(golden):
    right = golden["inv_freq/default/d128_b5e5"]["expected"]
    assert_golden(rope_frequencies(128, 500000.0), right)
    assert_golden(rope_frequencies(128, scaling={"rope_theta": 500000}), right)
    assert_golden(rope_frequencies(128, 500000, {"rope_theta": 500000}), right)


def test_nested_dict():
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default"},
        "nope": None,
        "rope_theta": 1e4,
    }
    full = rope_frequencies(64, scaling=nested, layer_type="full_attention").inv_freq
    assert_bits(full, rope_frequencies(64, 1e6, Linear(8.0)).inv_freq)
    sliding = rope_frequencies(64, scaling=nested, layer_type="sliding_attention").inv_freq
    assert_bits(sliding, rope_frequencies(64).inv_freq)
    for layer in (None, "nope", "other"):
        with pytest.raises(ValueError, match="layer_type must be"):
            rope_frequencies(64, scaling=nested, layer_type=layer)


def test_partial_rotary_factor_takes_part_of_the_head():
    found = rope_frequencies(256, 1e7, {"partial_rotary_factor": 0.25}).inv_freq
    assert found[1].item() == pytest.approx(1e7 ** (-2 / 64), rel=1e-14)
    assert found.shape == (32,)


def test_dynamic_ntk_forgets_a_long_sequence():
    keys = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048}
    first, long, third = (rope_frequencies(64, scaling=keys, seq_len=n)[0] for n in (1024, 4096, 1))
    assert_bits(first, third)
    assert_bits(first, rope_frequencies(64).inv_freq)
    assert long[1].item() == pytest.approx(0.72378402, rel=1e-7)


@pytest.mark.parametrize(
    ("factor", "right"), [(4, 1.13862944), (16, 1.27725887), (64, 1.41588831), (1, 1.0), (0.5, 1.0)]
)
def test_yarn_attention_factor(factor, right):
    def of(**keys):
        return rope_frequencies(64, 1e4, YARN | {"factor": factor, **keys}).attention_factor

    assert of() == pytest.approx(right, abs=1e-8)
    assert of(attention_factor=1.2079) == 1.2079  # given: final
    assert of(mscale=0.707, mscale_all_dim=0.707) == 1.0
    assert of(mscale=0.707) == of(mscale_all_dim=0.707) == of(mscale=1.0, mscale_all_dim=0) == of()


def test_yarn_with_few_dimensions_is_finite():
    for dim, original in ((2, 4096), (4, 4), (4, 10**9), (64, 1)):
        found = rope_frequencies(dim, 1e4, YaRN(4.0, original)).inv_freq
        assert found.isfinite().all()


def test_longrope_pins_and_scales():
    for pin, length, index in (
        ("short", 9000, 0),
        ("long", 5, 1),
        (None, 4096, 0),
        (None, 4097, 1),
    ):
        found = rope_frequencies(8, scaling=LONG | {"pin": pin}, seq_len=length)
        plain = rope_frequencies(8).inv_freq / torch.tensor(LISTS[index], dtype=torch.float64)
        torch.testing.assert_close(found.inv_freq, plain, rtol=1e-15, atol=0)
        assert found.attention_factor == math.sqrt(1 + math.log(32) / math.log(4096))
    scales = {"short_mscale": 1.1, "long_mscale": 1.3}
    for length, scale in ((5, 1.1), (5000, 1.3)):
        assert rope_frequencies(8, scaling=LONG | scales, seq_len=length).attention_factor == scale


def test_given_factor_wins_and_a_mismatch_is_said():
    keys = YARN | {"max_position_embeddings": 40960}
    with pytest.warns(UserWarning, match=r"factor is 4.0, but .* is 1.25"):
        found = rope_frequencies(64, scaling=keys)
    assert_bits(found.inv_freq, rope_frequencies(64, scaling=YARN).inv_freq)


def test_frequencies_are_on_the_cpu_whatever_the_default_device():
    with torch.device("meta"):
        for scaling in (None, YARN, LLAMA3):
            assert rope_frequencies(8, scaling=scaling).inv_freq.device.type == "cpu"


REFUSED = [
    (TypeError, "dim", {"dim": 8.0}),
    (TypeError, "dim", {"dim": True}),
    (ValueError, "dim", {"dim": 7}),
    (ValueError, "dim", {"dim": 0}),
    (ValueError, "dim", {"dim": -2}),
    (ValueError, "dim", {"dim": 2, "scaling": NTK(2.0)}),
    (ValueError, "base", {"base": 0.0}),
    (ValueError, "base", {"base": -1e4}),
    (ValueError, "base", {"base": math.inf}),
    (ValueError, "base", {"base": 1.0, "scaling": YARN}),
    (TypeError, "base", {"base": "1e4"}),
    (TypeError, "seq_len", {"seq_len": 5.5}),
    (ValueError, "seq_len", {"seq_len": -1}),
    (ValueError, "precision", {"precision": "half"}),
    (TypeError, "scaling", {"scaling": "linear"}),
    (ValueError, "original_max", {"scaling": LongRoPE(*LISTS, 1, factor=2.0)}),
    (ValueError, "original_max", {"scaling": LongRoPE(*LISTS, 0.5, factor=9.0)}),
    (ValueError, "original_max", {"scaling": YARN | {"beta_fast": 1e308}}),
    (ValueError, "factor", {"scaling": NTK(1e300)}),
    (ValueError, "partial_rotary_factor", {"scaling": Proportional(1.5)}),
    (ValueError, "layer_type", {"scaling": {"a": {}}, "layer_type": ["a"]}),
    (ValueError, "layer_type", {"scaling": {"a": {}, 1: {}}}),
    (ValueError, "scaling .*'typo'", {"scaling": {"rope_type": "typo"}}),
    (ValueError, "scaling .*'factor'", {"scaling": {"rope_type": "linear"}}),
    (ValueError, "scaling .*'factor'", {"scaling": {"rope_type": "linear", "factor": None}}),
    (ValueError, "scaling .*'factor'", {"scaling": {"rope_type": "default", "factor": 2.0}}),
    (ValueError, "scaling .*'beta_fas'", {"scaling": YARN | {"beta_fas": 32}}),
    (ValueError, "scaling .*'short_factor'", {"scaling": YARN | {"short_factor": [1.0] * 4}}),
    (ValueError, "scaling .*differ", {"scaling": LLAMA3 | {"type": "yarn"}}),
    (ValueError, "rope_theta", {"base": 5e5, "scaling": {"rope_theta": 1e6}}),
    (ValueError, "rope_theta", {"scaling": {"rope_theta": 0}}),
    (ValueError, "partial_rotary_factor", {"scaling": {"partial_rotary_factor": 0.4}}),
    (ValueError, "partial_rotary_factor", {"scaling": {"partial_rotary_factor": 1.5}}),
    (ValueError, "factor", {"scaling": {"rope_type": "linear", "factor": 0}}),
    (TypeError, "factor", {"scaling": {"rope_type": "linear", "factor": "2"}}),
    (ValueError, "attention_factor", {"scaling": YARN | {"attention_factor": -1.0}}),
    (ValueError, "beta_fast", {"scaling": YARN | {"beta_fast": 1, "beta_slow": 32}}),
    (ValueError, "beta", {"scaling": NTKByParts(2.0, 64, alpha=3, beta=3)}),
    (ValueError, "high_freq_factor", {"scaling": LLAMA3 | {"high_freq_factor": 0.5}}),
    (ValueError, "short_factor", {"dim": 10, "scaling": LONG}),
    (TypeError, "long_factor", {"scaling": LONG | {"long_factor": 2.0}}),
    (TypeError, "long_factor", {"scaling": LONG | {"long_factor": [1.0, "2", 3.0, 4.0]}}),
    (ValueError, "long_factor", {"scaling": LONG | {"long_factor": [1.0, 0.0, 3.0, 4.0]}}),
    (ValueError, "pin", {"scaling": LONG | {"pin": "middle"}}),
    (ValueError, "factor", {"scaling": LongRoPE(*LISTS, 4096)}),
    *(
        (
            ValueError,
            f"scaling .*'{key}'",
            {"scaling": {k: v for k, v in LLAMA3.items() if k != key}},
        )
        for key in LLAMA3
        if key != "rope_type"
    ),
]


@pytest.mark.parametrize(("exception", "start", "changes"), REFUSED)
def test_refusals(exception, start, changes):
    call = {"dim": 8, **changes}
    pattern = rf"^posenc_ext\.rope_frequencies: (?={start})\w+ must .+"
    with pytest.raises(exception, match=pattern):
        rope_frequencies(**call)


def test_ntk_mixed():
    i = torch.arange(4, dtype=torch.float64)
    fixed = 40000.0 ** (-2 * i / 8) / 4.0 ** (2 / 8)
    mixed = 10000.0 ** (-2 * i / 8) / 4.0 ** (((i + 1) / 4) ** 0.625)
    for rule, right in ((NTKMixed(4.0), fixed), (NTKMixed(4.0, 0.625), mixed)):
        found = rope_frequencies(8, scaling=rule).inv_freq
        torch.testing.assert_close(found, right, rtol=1e-14, atol=0)
        assert right[-1] == pytest.approx(10000.0 ** (-6 / 8) / 4)
