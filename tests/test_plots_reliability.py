"""What a reliability diagram shows, read back from its artists."""

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxcal
from jaxcal.plots import reliability_diagram

N = 300
RNG = np.random.default_rng(0)
P = RNG.random(N).astype(np.float32)
Y = RNG.random(N) < P**2


def axes():
    return Figure(figsize=(3.3, 3.8)).subplots()


def curve_of(ax, number=0):
    return [line for line in ax.lines if line.get_gid() == "reliability"][number]


def test_bins_are_points_with_intervals():
    curve = jaxcal.reliability_curve(P, Y, num_bins=5)
    ax = reliability_diagram(curve, ax=axes())
    line, panel = curve_of(ax), ax.child_axes[0]
    np.testing.assert_allclose(line.get_xdata(), curve.confidence, rtol=1e-6)
    np.testing.assert_allclose(line.get_ydata(), curve.frequency, rtol=1e-6)
    ends = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(ends[:, :, 1], np.stack([curve.lower, curve.upper], -1), rtol=1e-6)
    shares = np.array(panel.collections[0].get_segments())[:, 1, 1]
    np.testing.assert_allclose(shares, np.asarray(curve.count) / N, rtol=1e-6)
    assert [text.get_text() for text in panel.texts] == ["n = 300"]


def test_empty_bins_are_left_out():
    curve = jaxcal.reliability_curve(P[P < 0.35], Y[P < 0.35], num_bins=5)
    assert len(curve_of(reliability_diagram(curve, ax=axes())).get_xdata()) == 2


def test_corp_is_a_line_in_a_band():
    curve = jaxcal.corp_reliability_curve(P, Y)
    band = jaxcal.corp_consistency_band(jax.random.key(0), P, num_resamples=39)
    ax = reliability_diagram(curve, band=band, ax=axes())
    np.testing.assert_allclose(curve_of(ax).get_ydata(), curve.frequency[curve.count > 0], rtol=1e-6)
    shaded = ax.collections[0].get_paths()[0].vertices
    assert shaded[:, 1].min() >= 0 and np.isclose(shaded[:, 1].max(), np.nanmax(band.upper))
    heights, edges, _ = ax.child_axes[0].patches[0].get_data()
    np.testing.assert_allclose(heights.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(heights, np.histogram(P, edges)[0] / N, rtol=1e-5, atol=1e-9)


def test_smooth_is_as_wide_as_there_are_forecasts():
    curve = jaxcal.smooth_reliability_curve(P**3, Y, num_points=101)
    ax = reliability_diagram(curve, ax=axes())
    (strip,) = ax.collections
    ends = np.array(strip.get_segments())[:, 1]
    place = np.searchsorted(np.asarray(curve.points), ends[:, 0] - 1e-4)
    np.testing.assert_allclose(ends[:, 1], curve.frequency[place], rtol=1e-6)
    widths = strip.get_linewidths()
    assert np.argmax(widths) < 10 and widths[-1] < widths[0] / 2
    # the last 0.5 % of the forecasts are not drawn
    assert ends[-1, 0] == pytest.approx(np.quantile(P**3, 0.995), abs=0.03) and np.quantile(P**3, 0.995) < 0.99


def test_several_models_on_one_axes():
    ax = axes()
    reliability_diagram(jaxcal.reliability_curve(P, Y), ax=ax, label="one")
    same = reliability_diagram(jaxcal.corp_reliability_curve(P[:100], Y[:100]), ax=ax, label="two")
    reliability_diagram(jaxcal.smooth_reliability_curve(P, Y), ax=ax, label="three")
    assert same is ax and len({curve_of(ax, i).get_color() for i in range(3)}) == 3
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two", "three"]
    assert [text.get_text() for text in ax.child_axes[0].texts] == ["n = 300; 100"]
    assert len(ax.child_axes) == 1


def test_weights_that_are_no_whole_numbers():
    curve = jaxcal.reliability_curve(P, Y, weights=np.full(N, 0.5, np.float32) + 0.001)
    ax = reliability_diagram(curve, ax=axes())
    assert ax.child_axes[0].texts[0].get_text() == "n = 150.3"


def test_leaves_matplotlib_alone():
    before = matplotlib.rcParams.copy()
    ax = reliability_diagram(jaxcal.reliability_curve(P, Y))
    ax.figure.canvas.draw()
    matplotlib.pyplot.close(ax.figure)
    assert matplotlib.rcParams == before


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: reliability_diagram((P, Y)), TypeError, "one of jaxcal's reliability curves, got tuple"),
        (
            lambda: reliability_diagram(jaxcal.reliability_curve(np.stack([P, P]), Y)),
            ValueError,
            r"one curve at a time; this one has batch shape \(2,\)",
        ),
        (
            lambda: reliability_diagram(jaxcal.reliability_curve(P, Y), band=jaxcal.Interval(P, P)),
            ValueError,
            "for the CORP curve of the same forecasts",
        ),
        (
            lambda: reliability_diagram(jaxcal.corp_reliability_curve(P, Y), band=jaxcal.Interval(P[1:], P[1:])),
            ValueError,
            "for the CORP curve of the same forecasts",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
