"""What a reliability diagram shows, read back from its artists."""

import io
import itertools
import pickle
from dataclasses import replace

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import jaxcal
from jaxcal.plots import reliability_diagram

N = 300
RNG = np.random.default_rng(0)
P = RNG.random(N).astype(np.float32)
Y = RNG.random(N) < P**2


def figure_of(size, **options):
    figure = Figure(figsize=size, **options)
    FigureCanvasAgg(figure)
    return figure


def axes():
    return figure_of((3.3, 3.8)).subplots()


def curve_of(ax, number=0):
    return [line for line in ax.lines if line.get_gid() == "reliability"][number]


def note(ax):
    return ax.child_axes[0].get_title("left")


@pytest.fixture(scope="module")
def band():
    return jaxcal.corp_consistency_band(jax.random.key(0), P, num_resamples=39)


def test_bins_are_points_with_intervals():
    curve = jaxcal.reliability_curve(P, Y, num_bins=5)
    ax = reliability_diagram(curve, ax=axes())
    line, panel = curve_of(ax), ax.child_axes[0]
    np.testing.assert_allclose(line.get_xdata(), curve.confidence, rtol=1e-6)
    np.testing.assert_allclose(line.get_ydata(), curve.frequency, rtol=1e-6)
    ends = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(ends[:, :, 1], np.stack([curve.lower, curve.upper], -1), rtol=1e-6)
    density, edges, _ = panel.patches[0].get_data()
    np.testing.assert_allclose(edges, [0, 0.2, 0.4, 0.6, 0.8, 1], rtol=1e-6)
    np.testing.assert_allclose(density, np.histogram(P, 5, (0, 1), density=True)[0], rtol=1e-6)
    assert note(ax) == "density, n = 300"


def test_empty_bins_are_left_out():
    curve = jaxcal.reliability_curve(P[P < 0.35], Y[P < 0.35], num_bins=5)
    assert len(curve_of(reliability_diagram(curve, ax=axes())).get_xdata()) == 2


def test_equal_mass_bins_are_as_wide_as_their_edges():
    p = np.array([0.2, 0.25, 0.5, 0.5, 0.5, 1, 1, 1], np.float32)  # bins 0 and 1 of five, none in 3, no width in 4
    ax = reliability_diagram(jaxcal.reliability_curve(p, p > 0.3, num_bins=5, bins="mass"), ax=axes())
    density, edges, _ = ax.child_axes[0].patches[0].get_data()
    # floor(5 * smaller / 8): 0, 0, 1, 1, 1, 3, 3, 3, so 0.2 and 0.25 in [0, 0.5), 0.5 in [0.5, 1), 1 in [1, 1)
    np.testing.assert_allclose(edges, [0, 0.5, 1, 1, 1, 1])
    np.testing.assert_allclose(density, [2 / 8 / 0.5, 3 / 8 / 0.5, 0, 50, 0], rtol=1e-6)
    assert ax.child_axes[0].get_ylim() == pytest.approx((0, 55))


def test_corp_is_a_line_in_a_band(band):
    curve = jaxcal.corp_reliability_curve(P, Y)
    ax = reliability_diagram(curve, band=band, ax=axes())
    np.testing.assert_allclose(curve_of(ax).get_ydata(), curve.frequency[curve.count > 0], rtol=1e-6)
    shaded = ax.collections[0].get_paths()[0].vertices
    assert shaded[:, 1].min() >= 0 and np.isclose(shaded[:, 1].max(), np.nanmax(band.upper))
    heights, edges, _ = ax.child_axes[0].patches[0].get_data()
    np.testing.assert_allclose(heights, np.histogram(P, edges, density=True)[0], rtol=1e-5, atol=1e-7)
    assert len(heights) == 50 and [text.get_text() for text in ax.get_legend().get_texts()] == ["consistency band"]


def _density(p):
    curve = jaxcal.corp_reliability_curve(np.asarray(p, np.float32), np.zeros(len(p)))
    density, edges, _ = reliability_diagram(curve, ax=axes()).child_axes[0].patches[0].get_data()
    assert density @ np.diff(edges) == pytest.approx(1, rel=1e-6) and (np.diff(edges) > 1e-6).all()
    return density, edges


@pytest.mark.once
def test_forecasts_of_a_few_values_make_no_comb():
    """Each value once, at equal distances: the density is flat, whatever the distance is to the width of a column."""
    for steps in (10, 20, 30, 60, 100, 128, 200, 300):
        density, edges = _density(np.arange(1, steps) / steps)
        inside = (edges[:-1] > 0.5 / steps - 1e-6) & (edges[1:] < 1 - 0.5 / steps + 1e-6)
        assert inside.sum() > 8
        np.testing.assert_allclose(density[inside], steps / (steps - 1), rtol=1e-4)
    # rounded to two digits, the ends hold half as many, as they stand for half as much
    density, _ = _density(np.round((np.arange(20_000) + 0.5) / 20_000, 2))
    np.testing.assert_allclose(density, 1, rtol=1e-4)
    # values that are far apart stand alone
    density, edges = _density(np.repeat([0.1, 0.5, 0.9], 2))
    np.testing.assert_allclose(edges[:-1][density > 0], [0.05, 0.45, 0.85], atol=1e-6)
    np.testing.assert_allclose(density[density > 0], 1 / 0.3, rtol=1e-5)
    assert _density([0.5])[0].max() == pytest.approx(10, rel=1e-5)


@pytest.mark.once
def test_colours_are_those_of_the_style():
    with pyplot.style.context("dark_background"):
        ax = reliability_diagram(jaxcal.reliability_curve(P, Y), ax=axes())
    white = matplotlib.colors.to_rgb("white")
    assert matplotlib.colors.to_rgb(ax.lines[0].get_color()) == white
    assert matplotlib.colors.to_rgb(ax.child_axes[0]._left_title.get_color()) == white


def test_bands_share_one_entry_of_the_legend(band):
    ax, curve = axes(), jaxcal.corp_reliability_curve(P, Y)
    for label in ("one", "two"):
        reliability_diagram(curve, band=band, ax=ax, label=label)
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two", "consistency bands"]
    shades = [tuple(shade.get_facecolor()[0]) for shade in ax.collections]
    assert [patch.get_facecolor() for patch in legend.findobj(Rectangle)] == shades and len(set(shades)) == 2
    outlines = [tuple(shade.get_edgecolor()[0]) for shade in ax.collections]
    assert len(set(outlines)) == 2 and all(
        outline[3] > shade[3] for outline, shade in zip(outlines, shades, strict=True)
    )


def test_labels_follow_the_rules_of_matplotlib():
    """An underscore hides one, and dollar signs are only mathematics unless a backslash stands before them."""
    curve = jaxcal.reliability_curve(P, Y)
    ax = reliability_diagram(curve, ax=axes(), label="_hidden")
    assert ax.get_legend() is None
    for label, math in (("$x^2$", True), (r"for \$5 or \$9", False)):
        reliability_diagram(curve, ax=ax, label=label)
        ax.figure.canvas.draw()
        shown = ax.get_legend().get_texts()[-1].get_text()
        assert shown == label and bool(is_math_text(shown)) == math


def test_smooth_is_as_wide_as_there_are_forecasts():
    curve = jaxcal.smooth_reliability_curve(P**3, Y)
    ax = reliability_diagram(curve, ax=axes())
    (strip,) = ax.collections
    ends = np.array(strip.get_segments())[:, 1]
    place = np.searchsorted(np.asarray(curve.points), ends[:, 0] - 1e-4)
    np.testing.assert_allclose(ends[:, 1], curve.frequency[place], rtol=1e-6)
    widths = strip.get_linewidths()
    assert np.argmax(widths) < 20 and widths[-1] < widths[0] / 2
    # the last 0.5 % of the forecasts are not drawn
    assert ends[-1, 0] == pytest.approx(np.quantile(P**3, 0.995), abs=0.03) and np.quantile(P**3, 0.995) < 0.99


def test_several_models_on_one_axes():
    ax = axes()
    reliability_diagram(jaxcal.reliability_curve(P, Y), ax=ax, label="one")
    same = reliability_diagram(jaxcal.corp_reliability_curve(P[:100], Y[:100]), ax=ax, label="two")
    reliability_diagram(jaxcal.smooth_reliability_curve(P, Y), ax=ax, label="three")
    assert same is ax and len({curve_of(ax, i).get_color() for i in range(3)}) == 3
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two", "three"]
    assert note(ax) == "density, n = 300; 100"
    assert sum(bool(child.get_xlabel()) for child in ax.child_axes) == 1


def test_forecasts_of_all_kinds_of_curves_have_one_scale():
    p = P**2
    for curve in (jaxcal.reliability_curve(p, Y, num_bins=7, bins="mass"), jaxcal.corp_reliability_curve(p, Y)):
        density, edges, _ = reliability_diagram(curve, ax=axes()).child_axes[0].patches[0].get_data()
        assert density @ np.diff(edges) == pytest.approx(1, rel=1e-6)
        assert density[0] == pytest.approx(np.mean(p < edges[1]) / edges[1], rel=1e-5)
    line = reliability_diagram(jaxcal.smooth_reliability_curve(p, Y), ax=axes()).child_axes[0].lines[0]
    assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1, rel=1e-6)


def test_smooth_says_how_many():
    curve = jaxcal.smooth_reliability_curve(P, Y)
    assert note(reliability_diagram(curve, ax=axes())) == "density, n = 300"
    assert note(reliability_diagram(replace(curve, count=7 * curve.count), ax=axes())) == "density, n = 2,100"


def test_weights_that_are_no_whole_numbers():
    curve = jaxcal.reliability_curve(P, Y, weights=np.full(N, 0.5, np.float32) + 0.001)
    ax = reliability_diagram(curve, ax=axes())
    assert note(ax) == "density, n = 150.3"


LONG = "a model, with calibration by a map that was fitted to other rows, $a + b z$, and explained at length"
# size, rows and columns, font size, and whether there is a title, for which no layout leaves room between rows
FIGURES = {
    "default": ((6.4, 4.8), (1, 1), 10, True),
    "column": ((3.3, 3.8), (1, 1), 8, True),
    "row": ((8.5, 3.5), (1, 3), 8, True),
    "grid": ((7, 7), (2, 2), 8, False),
}


def _draw(ax, band, number=0, label=LONG):
    curves = (jaxcal.corp_reliability_curve, jaxcal.smooth_reliability_curve, jaxcal.reliability_curve)
    reliability_diagram(jaxcal.corp_reliability_curve(P, Y), band=band, ax=ax, label="short")
    return reliability_diagram(curves[number % 3](P, Y), ax=ax, label=label)


def _extents(figure):
    """Of every axes with all that belongs to it, in pixels, after what is asserted of one diagram."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    inside = lambda a, b: (a.p0 >= b.p0 - 0.5).all() and (a.p1 <= b.p1 + 0.5).all()  # noqa: E731
    for ax in figure.axes:
        panel, square, legend = ax.child_axes[0], ax.get_window_extent(), ax.get_legend().get_window_extent()
        space = ax.get_position(original=True).transformed(figure.transSubfigure)
        assert square.width == pytest.approx(square.height, rel=1e-6) and square.width > space.height / 3
        assert all(inside(part, space) for part in (square, panel.get_window_extent(), legend))
        assert panel.get_window_extent().x0 == square.x0 and panel.get_window_extent().x1 == square.x1
        assert panel.get_tightbbox(renderer).y1 < square.y0 and legend.y0 >= square.y1 - 0.5
        assert not ax.get_title() or ax.title.get_window_extent().y0 >= legend.y1 - 0.5
        texts = (ax.title, ax.yaxis.label, panel.xaxis.label, panel._left_title, *ax.get_legend().get_texts())
        assert all(inside(text.get_window_extent(renderer), figure.bbox) for text in texts if text.get_text())
    extents = [ax.get_tightbbox(renderer) for ax in figure.axes]
    assert all(inside(extent, figure.bbox) for extent in extents)
    return extents


@pytest.mark.parametrize("layout", [None, "constrained", "tight", "compressed", "tight_layout()"])
@pytest.mark.parametrize("size, grid, font, title", FIGURES.values(), ids=FIGURES.keys())
def test_nothing_is_cut_or_overlaps(size, grid, font, title, layout, band):
    with matplotlib.rc_context({"font.size": font}):
        figure = figure_of(size, layout=None if layout == "tight_layout()" else layout)
        cells = figure.subplots(*grid, squeeze=False)
        for number, ax in enumerate(cells.flat):
            _draw(ax, band, number, LONG if number % 2 == 0 else "another")
            if title:
                ax.set_title("Title")
        if layout == "tight_layout()":
            figure.tight_layout()
        extents = _extents(figure)
    for one, two in itertools.combinations(extents, 2):
        assert max(one.x0, two.x0) >= min(one.x1, two.x1) or max(one.y0, two.y0) >= min(one.y1, two.y1)
    for row in cells:  # squares side by side are level, though their legends are not equally high
        assert len({round(ax.get_window_extent().y0, 3) for ax in row}) == 1


def test_parts_follow_the_figure(band):
    figure = figure_of((7, 5))
    ax = _draw(figure.subplots(), band)
    lines = []
    for size in ((7, 5), (3.5, 5), (7, 5)):
        figure.set_size_inches(size)
        _extents(figure)
        shown = ax.get_legend().get_texts()[1].get_text()
        assert shown.replace("\n", " ") == LONG and "$a + b z$" in shown
        lines.append(shown.count("\n"))
    assert lines[1] > lines[0] == lines[2]
    copy = pickle.loads(pickle.dumps(figure))
    FigureCanvasAgg(copy)
    _extents(copy)
    for options in ({"dpi": 50, "bbox_inches": "tight"}, {"format": "svg"}):
        figure.savefig(io.BytesIO(), **options)
    _extents(figure)


def test_a_legend_of_the_user_takes_no_room(band):
    figure = figure_of((4, 4), layout="constrained")
    ax = _draw(figure.subplots(), band, label="another")
    figure.canvas.draw()
    before = ax.get_window_extent().width
    ax.legend(loc="lower right")
    figure.canvas.draw()
    assert ax.get_window_extent().width > 1.1 * before


def test_cleared_axes_and_axes_with_others_of_their_own():
    figure = figure_of((4, 4))
    ax = figure.subplots()
    curve = jaxcal.reliability_curve(P, Y)
    reliability_diagram(curve, ax=ax, label="one")
    ax.cla()
    reliability_diagram(curve, ax=ax, label="two")
    _extents(figure)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["two"] and len(ax.child_axes) == 2
    right = figure.add_subplot()
    axis = right.secondary_yaxis("right")
    reliability_diagram(curve, ax=right)
    assert right.child_axes[0] is axis and right.child_axes[1].get_xlabel() == "forecast" and not axis.patches


def test_subfigures(band):
    figure = figure_of((8, 4), layout="constrained")
    for part in figure.subfigures(1, 2):
        _draw(part.subplots(), band)
    figure.canvas.draw()
    left, right = (ax.get_tightbbox(figure.canvas.get_renderer()) for ax in figure.axes)
    assert left.x0 >= 0 and left.x1 <= right.x0 and right.x1 <= 800 and left.y0 >= 0 and left.y1 <= 400


def test_leaves_matplotlib_alone():
    before = matplotlib.rcParams.copy()
    ax = reliability_diagram(jaxcal.reliability_curve(P, Y))
    ax.figure.canvas.draw()
    pyplot.close(ax.figure)
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
        (  # as many forecasts, one of them twice
            lambda: reliability_diagram(
                jaxcal.corp_reliability_curve(P, Y),
                band=jaxcal.corp_consistency_band(jax.random.key(0), np.append(P[1:], P[1]), num_resamples=39),
            ),
            ValueError,
            "for the CORP curve of the same forecasts",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
