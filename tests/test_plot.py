"""The numbers behind the pictures, and what the pictures hold."""

import math
import subprocess
import sys

import numpy as np
import oracle_sinusoidal
import pytest
import torch

from posenc_ext import RopeFrequencies, plot, rope_frequencies
from posenc_ext.scaling import YaRN

YARN = "yarn/code_vs_paper_vs_seed"


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


@pytest.mark.parametrize("base", [10000, 500000])
def test_decay_curves_are_the_golden_ones(base, golden):
    case = golden[f"decay/d128_b{base}"]
    distance = torch.tensor(case["inputs"]["distance"])
    mean, bound = plot.decay_curves(distance, rope_frequencies(128, base))
    assert mean.dtype == bound.dtype == torch.float64
    np.testing.assert_allclose(mean, case["expected"]["mean_cos"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(bound, case["expected"]["roformer_bound"], rtol=1e-12)


def test_decay_carries_the_attention_factor_as_scores_do():
    distance = torch.tensor([0, 3, 100])
    inv_freq = rope_frequencies(64).inv_freq
    plain = plot.decay_curves(distance, RopeFrequencies(inv_freq, 1.0))
    scaled = plot.decay_curves(distance, RopeFrequencies(inv_freq, 1.5))
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, 2.25 * one)


def test_frequency_ratios_are_the_golden_ones(golden):
    inputs, expected = golden[YARN]["inputs"], golden[YARN]["expected"]["ratio_code"]
    rule = YaRN(inputs["factor"], inputs["original_max_position_embeddings"])
    scaled = rope_frequencies(inputs["dim"], inputs["rope_theta"], rule)
    got = plot.frequency_ratios(scaled, inputs["rope_theta"])
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    np.testing.assert_allclose(plot.frequency_ratios(plot.rules()["yarn"]), expected, rtol=1e-14)


def test_rules_keep_the_highest_and_divide_the_lowest_frequency():
    for name, scaled in plot.rules(64, 500000.0, 4.0, 8192.0).items():
        ratios = plot.frequency_ratios(scaled, 500000.0)
        assert ratios[0].item() == pytest.approx(0.25 if name == "linear" else 1.0)
        assert ratios[-1].item() == pytest.approx(1.0 if name == "unscaled" else 0.25)


@pytest.mark.parametrize("longest", [1, 2, 100, 100_000])
def test_distances_run_from_zero_to_the_longest(longest):
    distances = plot.spaced_distances(longest)
    assert distances[0] == 0
    assert distances[-1] == longest
    assert (distances.diff() > 0).all()
    assert {0, 1, min(longest, 30)} <= set(distances.tolist())


@pytest.mark.parametrize("longest", [123_456_789, 2**63 - 1])
def test_far_distances_end_at_the_longest(longest):
    distances = plot.spaced_distances(longest)
    assert distances[[0, -1]].tolist() == [0, longest]
    assert (distances.diff() > 0).all()


def test_sinusoidal_shows_the_table():
    figure = plot.sinusoidal(9, 6, base=100.0, convention="concatenated")
    image = figure.axes[0].get_images()[0]
    expected = oracle_sinusoidal.sinusoidal_table(9, 6, base=100.0, convention="concatenated")
    np.testing.assert_allclose(image.get_array(), expected, atol=1e-7)
    assert image.get_clim() == (-1, 1)


def test_decay_shows_a_line_for_each_curve():
    curves = plot.bases(32, (1e4, 1e6))
    figure = plot.decay(curves, longest=50)
    score, bound = figure.axes
    distances = plot.spaced_distances(50)
    for name, frequencies in curves.items():
        mean, upper = plot.decay_curves(distances, frequencies)
        line = lines_of(score)[name]
        np.testing.assert_array_equal(line.get_xdata(), distances)
        np.testing.assert_array_equal(line.get_ydata(), mean)
        assert any(np.array_equal(line.get_ydata(), upper) for line in bound.get_lines())
    assert len(bound.get_lines()) == 2


def test_frequencies_shows_ratios_and_wavelengths():
    curves = plot.rules(16)
    ratio, wave = plot.frequencies(curves).axes
    for name, line, other in zip(curves, ratio.get_lines(), wave.get_lines(), strict=True):
        assert line.get_label() == name
        np.testing.assert_array_equal(line.get_ydata(), plot.frequency_ratios(curves[name]))
        np.testing.assert_allclose(other.get_ydata(), 2 * math.pi / curves[name].inv_freq)


def test_alibi_shows_the_bias_of_a_head_and_the_lines_of_all():
    cells, lines, _ = plot.alibi(3, 5).axes
    image = np.ma.filled(cells.get_images()[0].get_array(), -math.inf)
    i, j = np.indices((5, 5))
    np.testing.assert_allclose(image, np.where(j > i, -math.inf, -0.0625 * (i - j)))
    slopes = [0.0625, 0.00390625, 0.25]
    for line, slope in zip(lines.get_lines(), slopes, strict=True):
        np.testing.assert_allclose(line.get_ydata(), [-slope * d for d in range(5)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot.sinusoidal(0), r"plot\.sinusoidal: positions must be at least 1, got 0"),
        (lambda: plot.alibi(8, -1), r"plot\.alibi: length must be at least 1, got -1"),
        (lambda: plot.decay(longest=0), r"plot\.decay: longest must be at least 1, got 0"),
    ],
)
def test_sizes_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_pyplot_and_the_backend_stay_as_they_are():
    code = """if True:
        import sys, matplotlib, posenc_ext.plot as plot
        settings = lambda: list(dict.items(matplotlib.rcParams))  # a look-up resolves the backend
        before = settings()
        for draw in (plot.sinusoidal, plot.decay, plot.frequencies, plot.alibi):
            draw().savefig("/dev/null", format="png")
        assert settings() == before
        assert "matplotlib.pyplot" not in sys.modules
    """
    process = run_python(code)
    assert process.returncode == 0, process.stderr


def test_without_matplotlib_one_sentence_says_what_to_install():
    code = "import sys; sys.modules['matplotlib'] = None; import posenc_ext.plot as plot; "
    process = run_python(code + "plot.alibi()")
    last = process.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: posenc_ext.plot: matplotlib must be installed")
    assert "pip install 'posenc_ext[plot]'" in last
    process = run_python(code + "print(plot.bases())")  # the numbers need none
    assert process.returncode == 0, process.stderr
