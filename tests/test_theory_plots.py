"""Figures of the theory: what they draw, on which scales, and what they refuse."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxcal.plots.epochs import mean_and_interval
from theory.curves import LearningCurve
from theory.minima import Minimizers
from theory.plots import learning_curve, minimizer_gap, minimizer_map, minimizer_maps
from theory.simulation import Simulation
from theory.spectra import BetaSpectrum, DiscreteSpectrum

pytestmark = pytest.mark.once

RATIOS, ERRORS = np.array([0.1, 0.3, 1.0, 10.0]), np.array([0.001, 0.1, 0.45])


@pytest.fixture(autouse=True)
def settings_stay():
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


def best(calibration=0.07, risk=0.05, refinement=0.004, gain=0.02):
    """Minimizers with given places; arguments broadcast."""
    places = np.broadcast_arrays(*(np.asarray(a, float) for a in (risk, calibration, refinement, gain)))
    rest = np.zeros(places[0].shape)
    return Minimizers(*places[:3], rest + 0.57, rest, rest + 0.56, places[3], rest.astype(int), rest.astype(int))


def decades(gap):
    """Minimizers with a given gap."""
    return best(calibration=10.0 ** np.asarray(gap, float), refinement=1.0, gain=np.abs(gap) / 100)


def curve(lam):
    calibration, refinement = 0.03 * np.log(lam / 0.07) ** 2, 0.56 + 0.002 * np.log(lam / 0.004) ** 2
    return LearningCurve(
        refinement + calibration, calibration, refinement, np.full(lam.shape, 0.3), np.zeros(lam.shape, int)
    )


def simulation(lam, seeds):
    values = np.random.default_rng(0).uniform(0.5, 0.6, (3, seeds, len(lam)))
    filler = [np.zeros((seeds, len(lam)))] * 2
    return Simulation(lam, *filler, *values, *filler, np.zeros((seeds, len(lam)), int))


def axes():
    return Figure(layout="constrained").add_subplot()


# learning curves


def test_learning_curve_draws_the_three_parts_from_large_to_small_lambda():
    lam = np.array([0.01, 1.0, 0.1, 0.001])
    parts, ax = curve(lam), axes()
    assert learning_curve(lam, parts, ax=ax) is ax
    upper, lower = ax.figure.axes
    assert {line.get_label() for line in upper.lines} == {"risk", "refinement"}
    for panel, name in ((upper, "risk"), (upper, "refinement"), (lower, "calibration")):
        (line,) = [line for line in panel.lines if line.get_label() == name]
        np.testing.assert_array_equal(line.get_xdata(), np.sort(lam)[::-1])
        np.testing.assert_array_equal(line.get_ydata(), getattr(parts, name)[[1, 2, 0, 3]])
    assert ax.get_xscale() == "log" and ax.xaxis_inverted()
    assert ax.get_ylabel() == "loss (nats)" and lower.get_ylabel() == "calibration\n(nats)"
    assert "λ" in lower.get_xlabel()
    ax.figure.canvas.draw()


def test_learning_curve_shows_the_valley_and_all_of_refinement():
    lam = np.geomspace(1, 1e-6, 50)
    parts, ax = curve(lam), axes()
    learning_curve(lam, parts, ax=ax)
    low, high = ax.get_ylim()
    assert low < parts.refinement.min() and parts.risk[0] < high < parts.risk[-1]
    # calibration is cut at the same lambda
    assert np.all((parts.calibration < ax.figure.axes[1].get_ylim()[1]) == (parts.risk < high))
    # a risk that does not explode is shown to both ends
    ax = learning_curve(lam[:25], curve(lam[:25]), ax=axes())
    assert ax.get_ylim()[1] > parts.risk[24] > parts.risk[0]


@pytest.mark.parametrize("seeds", [1, 5])
def test_learning_curve_simulations_are_points_with_intervals(seeds):
    lam, ax = np.geomspace(1, 1e-3, 7), axes()
    simulated = simulation(lam[::2], seeds)
    learning_curve(lam, curve(lam), simulation=simulated, unit="Brier", ax=ax)
    upper, lower = ax.figure.axes
    for panel, names in ((upper, ("risk", "refinement")), (lower, ("calibration",))):
        for container, name in zip(panel.containers, names, strict=True):
            mean, half_width = mean_and_interval(getattr(simulated, name))
            points, _, (bars,) = container.lines
            np.testing.assert_allclose(points.get_ydata(), mean)
            spans = [abs(np.diff(segment[:, 1])[0]) / 2 for segment in bars.get_segments()]
            np.testing.assert_allclose(spans, np.nan_to_num(half_width), atol=1e-12)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert ("5 simulations" in texts[2]) == (seeds == 5) and ax.get_ylabel() == "loss (Brier)"
    ax.figure.canvas.draw()


def test_learning_curve_marks_minimizers_and_those_beyond_the_axis():
    lam, ax = np.geomspace(1, 1e-3, 7), axes()
    learning_curve(lam, curve(lam), minimizers=best(0.07, np.inf, 0.0), ax=ax)
    upper, lower, strip = ax.figure.axes
    for panel in (upper, lower):
        assert [line.get_xdata()[0] for line in panel.lines if line.get_linestyle() == "--"] == [0.07]
    assert [text.get_text() for text in strip.get_yticklabels()] == ["risk", "calibration", "refinement"]
    assert [text.get_text() for text in strip.texts] == ["∞", "0.07", "0"]
    assert [line.get_marker() for line in strip.lines] == ["<", "o", ">"]
    low, high = sorted(ax.get_xlim())
    assert all(low < line.get_xdata()[0] < high for line in strip.lines)
    ax.figure.canvas.draw()


def test_learning_curve_of_failed_lanes_and_of_one_lambda():
    lam = np.geomspace(1, 1e-3, 7)
    parts = curve(lam)
    parts.risk[2] = parts.calibration[2] = parts.refinement[2] = np.nan
    ax = learning_curve(lam, parts, minimizers=best(risk=np.nan), ax=axes())
    assert np.all(np.isfinite(ax.get_ylim())) and len(ax.figure.axes[2].texts) == 2
    nothing = LearningCurve(*[np.full(7, np.nan)] * 4, np.full(7, 4))
    learning_curve(lam, nothing, ax=axes()).figure.canvas.draw()
    learning_curve(lam[:1], curve(lam[:1]), ax=axes()).figure.canvas.draw()


def test_learning_curve_stays_in_the_place_of_its_axes():
    lam = np.geomspace(1, 1e-3, 7)
    for place in ("subplot", "axes"):
        figure = Figure()
        ax = figure.add_subplot(2, 2, 3) if place == "subplot" else figure.add_axes((0.1, 0.1, 0.5, 0.8))
        box = ax.get_position()
        learning_curve(lam, curve(lam), minimizers=best(), ax=ax)
        boxes = [panel.get_position() for panel in figure.axes]
        np.testing.assert_allclose([boxes[0].y1, boxes[-1].y0, boxes[0].x0], [box.y1, box.y0, box.x0])
        assert boxes[0].y0 > boxes[1].y1 > boxes[1].y0 > boxes[2].y1


def test_learning_curve_refuses_what_it_cannot_draw():
    lam = np.geomspace(1, 1e-3, 7)
    with pytest.raises(ValueError, match="positive and finite"):
        learning_curve(np.append(lam[1:], 0), curve(lam))
    with pytest.raises(ValueError, match=r"must have the shape \(7,\)"):
        learning_curve(lam, curve(lam[:3]))
    with pytest.raises(ValueError, match=r"of one problem, of shape \(\), got \(2,\)"):
        learning_curve(lam, curve(lam), minimizers=best(risk=[1, 2]))


# maps


def test_gap_counts_decades_and_knows_limits():
    found = best(calibration=[1e-2, 1e-2, 0.0, np.inf, 0.0, np.inf, np.nan], refinement=[1e-4, 0, 1, 1, 0, np.inf, 1])
    np.testing.assert_allclose(minimizer_gap(found), [2, np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan])


def test_map_of_the_gap_is_symmetric_and_hatches_infinite_cells():
    gap = np.array([[-3.0, -1, -1, -1], [0.5, 0.2, 1, 1], [np.inf, np.inf, 2, np.nan]])
    ax = axes()
    assert minimizer_map(RATIOS, ERRORS, decades(gap), ax=ax) is ax
    cells, hatched = [c for c in ax.collections if c.get_array() is not None][:2]
    assert cells.get_clim() == (-3, 3) == hatched.get_clim()
    shown = cells.get_array().reshape(gap.shape)
    np.testing.assert_allclose(shown[:2], gap[:2])
    assert np.ma.getmaskarray(shown).tolist() == [[False] * 4, [False] * 4, [False, False, False, True]]
    assert hatched.get_hatch() and hatched.get_array().count() == 2
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[:2] == ["calibration first", "refinement first"]
    assert len(texts) == 4 and "no result" in texts[3]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0.001", "0.1", "0.45"]
    assert ax.get_xscale() == "log" and len(ax.figure.axes) == 2
    # edges are half-way between ratios on the logarithmic axis
    assert ax.get_xlim() == pytest.approx((0.1 / 3**0.5, 10 * 10**0.5))
    ax.figure.canvas.draw()


@pytest.mark.parametrize(
    ("calibration", "refinement", "text"),
    [
        (1, 0, "refinement smallest as λ → 0"),
        (np.inf, 1, "calibration smallest as λ → ∞"),
        (0, 1, "calibration smallest as λ → 0"),
        (1, np.inf, "refinement smallest as λ → ∞"),
    ],
)
def test_legend_names_the_limit_behind_an_infinite_gap(calibration, refinement, text):
    ax = minimizer_map([1.0], [0.1], best(np.full((1, 1), calibration), refinement=refinement), ax=axes())
    assert [t.get_text() for t in ax.get_legend().get_texts()][2:] == [text]
    ax.figure.canvas.draw()


def test_map_of_the_gain_is_in_per_cent_from_0():
    gain = np.arange(12.0).reshape(3, 4) / 100
    ax = minimizer_map(RATIOS, ERRORS, best(gain=gain), quantity="gain", ax=axes())
    (cells,) = ax.collections
    np.testing.assert_allclose(cells.get_array().reshape(3, 4), 100 * gain)
    assert cells.get_clim() == pytest.approx((0, 11)) and ax.get_legend() is None
    ax = minimizer_map(RATIOS, ERRORS, best(gain=gain), quantity="gain", limit=30, colorbar=False, ax=axes())
    assert ax.collections[0].get_clim() == (0, 30) and len(ax.figure.axes) == 1


def test_many_bayes_errors_are_labelled_so_that_they_can_be_read():
    errors = np.linspace(0.01, 0.4, 40)
    ax = minimizer_map([1.0, 2.0], errors, decades(np.ones((40, 2))), ax=axes())
    assert len(ax.get_yticks()) <= 15


def test_ratios_are_labelled_so_that_they_can_be_read():
    def labels(ratios):
        ax = minimizer_map(ratios, ERRORS, decades(np.ones((3, len(ratios)))), ax=axes())
        ax.figure.canvas.draw()
        return [text.get_text() for text in ax.get_xticklabels(which="both") if text.get_text()]

    assert labels([0.3, 1.0, 7.0]) == ["0.3", "1", "7"]
    assert {"0.1", "1", "10"} <= set(labels(np.geomspace(0.1, 10, 9)))
    assert {"1", "2", "5"} <= set(labels(np.geomspace(0.9, 6, 9)))


@pytest.mark.parametrize("place", ["constrained", "subplot", "axes"])
def test_maps_share_their_scales(place):
    figure = Figure(layout="constrained" if place == "constrained" else None)
    ax = figure.add_axes((0.1, 0.1, 0.8, 0.8)) if place == "axes" else figure.add_subplot()
    weights = np.arange(1.0, 8)
    spectra = [BetaSpectrum(0.5, 1.0), BetaSpectrum(2, 2, 0.1), DiscreteSpectrum(np.geomspace(0.01, 3, 7), weights)]
    tables = [np.linspace(-k, 2, 12).reshape(3, 4) for k in (1, 5, 2)]
    panels = minimizer_maps(RATIOS, ERRORS, spectra, [decades(t) for t in tables], ax=ax)
    assert panels.shape == (3, 3) and panels[0, 0] is ax
    titles = [panel.get_title() for panel in panels[0]]
    assert titles == ["0.001 + Beta(0.5, 1)", "0.1 + Beta(2, 2)", "7 eigenvalues"]
    assert {panel.collections[0].get_clim() for panel in panels[1]} == {(-5, 5)}
    assert {panel.collections[0].get_clim() for panel in panels[2]} == {(0, 5)}
    line = panels[0, 1].lines[0]
    np.testing.assert_allclose(line.get_ydata(), spectra[1].density(line.get_xdata()))
    assert sum(bar.get_height() for bar in panels[0, 2].patches) == pytest.approx(1)
    assert panels[0, 2].get_ylabel() == "share"
    labels = [panel.get_ylabel() for panel in figure.axes]
    assert "relative gain (%)" in labels and any("lambda" in label for label in labels)
    figure.canvas.draw()


def test_maps_of_one_cell_one_eigenvalue_and_no_result():
    panels = minimizer_maps([1.0], [0.1], [DiscreteSpectrum([2.0])], [decades([[1.0]])], titles=["identity"], ax=axes())
    assert panels[0, 0].get_title() == "identity"
    panels[0, 0].figure.canvas.draw()
    nothing = best(*np.full((4, 3, 4), np.nan))
    minimizer_maps(RATIOS, ERRORS, [BetaSpectrum(1, 1)], [nothing], ax=axes())[0, 0].figure.canvas.draw()


def test_maps_refuse_what_they_cannot_draw():
    found = decades(np.ones((3, 4)))
    with pytest.raises(ValueError, match=r'quantity must be "gap" or "gain"'):
        minimizer_map(RATIOS, ERRORS, found, quantity="loss")
    with pytest.raises(ValueError, match=r"shape \(E, R\) = \(4, 3\), got \(3, 4\)"):
        minimizer_map(ERRORS, RATIOS, found)
    for bad in (RATIOS[::-1], [0.0, 1, 2, 3], [1.0, 1, 2, 3], [1, 2, 3, np.inf], [1, 2, np.nan, 3], np.ones((2, 2))):
        with pytest.raises(ValueError, match="ratios must be positive and increasing"):
            minimizer_map(bad, ERRORS, found)
    with pytest.raises(ValueError, match="bayes_errors must be positive and increasing"):
        minimizer_map(RATIOS, ERRORS[::-1], found)
    with pytest.raises(ValueError, match="as many maps and titles as spectra"):
        minimizer_maps(RATIOS, ERRORS, [BetaSpectrum(1, 1)], [found, found])
