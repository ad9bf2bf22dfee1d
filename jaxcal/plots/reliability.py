"""The reliability diagram: observed frequency against forecast, how sure that is, and where the forecasts are."""

import numpy as np

from jaxcal.metrics import CorpCurve, Interval, ReliabilityCurve, SmoothReliabilityCurve
from jaxcal.plots.places import Places

# Okabe and Ito's palette, told apart with every kind of colour vision.
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "oDs^v<"
# Columns of the panel of forecasts where a curve has no bins of its own: a density of 50 is all of them in one column,
# and the panel goes no higher.
_COLUMNS = 50
# Half the width at which a forecast of a few shows in the panel, where others are no nearer: at a spacing up to 0.1
# they fill it, which looks like the density that they stand for, and beyond they stand alone.
_REACH = 0.05
# Of bands and of the forecasts: two that overlap must both be seen.
_FILL = 0.16
_DENSITY = "density, n = "
# Ticks are 1, 2 or 5 apart: 0.2 on both axes of the curves, and 0.5 in a space of less than so many font sizes.
_STEPS = (1, 2, 5, 10)
_SMALL = 14
# Marks of what is drawn, to know it again at the next call.
_CURVE, _BAND = "reliability", "consistency band"
# Share of the forecasts at either end over which a smooth curve is not drawn: a few rows make any frequency there.
_TAIL = 0.005


def reliability_diagram(
    curve: ReliabilityCurve | CorpCurve | SmoothReliabilityCurve,
    *,
    band: Interval | None = None,
    ax=None,
    label: str | None = None,
):
    """Draw one reliability curve; call again with the same axes to lay another over it.

    A binned curve is a point a bin at its mean forecast and observed frequency, with the interval of the frequency; a
    CORP curve is a line through its distinct forecasts, and `band` is shaded: where the line would lie if the forecasts
    were calibrated; a smooth curve is a line over the middle 99 % of the smoothed forecasts, wide where they are many.
    The panel below shows where the forecasts are, and how many: their density, whose integral is 1 for every kind of
    curve, so that models can be compared; of a binned curve it is constant in each bin, and of a CORP curve in columns
    that are cut between its forecasts. On the diagonal forecasts are
    calibrated, below it over-confident (for the top label).

    Legend, curves and panel share the space that `ax` had, with room for labels left to the layout of the figure, as
    for other axes. Long labels are broken at the width of the space; a title goes above the legend.

    Args:
        curve: a `jaxcal.reliability_curve`, `jaxcal.corp_reliability_curve` or `jaxcal.smooth_reliability_curve`,
            without batch axes.
        band: `jaxcal.corp_consistency_band` of the same forecasts, for a CORP curve. It does not know its forecasts:
            only their number, and that of the distinct ones, is compared.
        ax: axes to draw on; default a new figure.
        label: name for the legend, by matplotlib's rules: one that begins with an underscore is not shown, and what
            stands between two dollar signs is set as mathematics ("\\$" is the sign). Bands have an entry of their own.

    Returns:
        The axes of the curves. The forecasts have axes of their own, `ax.child_axes[0]` unless others were there.

    Raises:
        TypeError: for anything but these curves.
        ValueError: for a curve with batch axes, a band of another number of forecasts, or one for a curve that
            has none.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> p = jax.random.uniform(jax.random.key(0), (500,))
        >>> y = jax.random.bernoulli(jax.random.key(1), p)
        >>> ax = reliability_diagram(jaxcal.corp_reliability_curve(p, y), label="CORP")
        >>> ax = reliability_diagram(jaxcal.smooth_reliability_curve(p, y), label="smooth", ax=ax)
        >>> ax.get_ylabel()
        'observed frequency'
    """
    draw = {ReliabilityCurve: _binned, CorpCurve: _corp, SmoothReliabilityCurve: _smooth}.get(type(curve))
    if draw is None:
        raise TypeError(f"curve must be one of jaxcal's reliability curves, got {type(curve).__name__}")
    arrays = {name: np.asarray(value, np.float64) for name, value in vars(curve).items()}
    shape = arrays["frequency"].shape
    if len(shape) != 1:
        raise ValueError(f"draw one curve at a time; this one has batch shape {shape[:-1]}")
    if not np.isfinite(arrays["frequency"]).any():
        raise ValueError("this curve is empty: its data were invalid, or no bin is occupied")
    if band is not None and (draw is not _corp or not _same_forecasts(band, arrays)):
        raise ValueError("band is a jaxcal.corp_consistency_band, for the CORP curve of the same forecasts")
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(4.6, 5.0), layout="constrained")
    places = _places(ax)
    drawn = sum(line.get_gid() == _CURVE for line in ax.lines)
    style = {"color": _COLORS[drawn % len(_COLORS)], "label": label}
    if draw is _binned:
        style["marker"] = _MARKERS[drawn % len(_MARKERS)]
    line, density = draw(ax, places.panel, arrays, band, style)
    line.set_gid(_CURVE)
    _write_count(places.panel, arrays["count"].sum())
    highest = min(density.max(), _COLUMNS)
    _fit_density(places.panel, max(places.panel.get_ylim()[1] / 1.1, highest) if drawn else highest)
    _draw_legend(ax, places)
    return ax


def _same_forecasts(band, curve) -> bool:
    lower, upper = (np.asarray(end) for end in band)
    return all(np.shape(end) == curve["count"].shape for end in (lower, upper)) and np.array_equal(
        np.isnan(lower), curve["count"] == 0
    )


def _binned(ax, panel, curve, band, style):
    seen = curve["count"] > 0
    x, y = curve["confidence"][seen], curve["frequency"][seen]
    ax.vlines(x, curve["lower"][seen], curve["upper"][seen], color=style["color"], linewidth=1.2, alpha=0.55, zorder=2)
    (line,) = ax.plot(x, y, markersize=5, linewidth=1.4, zorder=3, clip_on=False, **style)
    with np.errstate(invalid="ignore", divide="ignore"):  # equal-mass bins may have no width
        density = curve["count"] / curve["count"].sum() / np.diff(curve["edges"])
    density = np.where(seen, np.minimum(density, _COLUMNS), 0)
    _forecasts(panel, curve["edges"], density, style["color"])
    return line, density


def _corp(ax, panel, curve, band, style):
    seen = curve["count"] > 0
    x, color = curve["confidence"][seen], style["color"]
    if band is not None:
        lower, upper = (np.asarray(end, np.float64)[seen] for end in band)
        shade = ax.fill_between(
            x, lower, upper, facecolor=(color, _FILL), edgecolor=(color, 0.6), linewidth=0.6, zorder=1
        )
        shade.set_gid(_BAND)
    few = {"marker": ".", "markersize": 4} if len(x) <= _COLUMNS else {}  # forecasts that take a few values
    (line,) = ax.plot(x, curve["frequency"][seen], linewidth=1.4, zorder=3, **few, **style)
    edges = _columns(x)
    share, _ = np.histogram(x, edges, weights=curve["count"][seen] / curve["count"].sum())
    density = np.minimum(share / np.diff(edges), _COLUMNS)
    _forecasts(panel, edges, density, color)
    return line, density


def _columns(values):
    """Edges of the columns for distinct forecasts, increasing: where one would cut through what belongs to a value it
    is moved to the middle between two. Of multiples of 0.01 a column then holds as many as its width says."""
    edges = np.arange(_COLUMNS + 1) / _COLUMNS
    gaps = np.diff(values, prepend=-np.inf, append=np.inf) / 2
    half = np.minimum(np.minimum(gaps[:-1], gaps[1:]), _REACH)
    nearest = np.searchsorted((values[1:] + values[:-1]) / 2, edges)
    offset, half = edges - values[nearest], half[nearest]
    edges = np.where(np.abs(offset) < half, values[nearest] + np.copysign(half, offset), edges)
    edges[[0, -1]] = 0, 1
    edges = np.unique(np.clip(edges, 0, 1))
    edges = edges[np.diff(edges, append=2) > 1e-6]  # one middle, found from either side
    edges[0] = 0
    return edges


def _smooth(ax, panel, curve, band, style):
    from matplotlib.collections import LineCollection

    x, y, density, color = curve["points"], curve["frequency"], curve["density"], style["color"]
    width = 0.6 + 2.2 * np.sqrt(density / density.max())
    points = np.stack([x, y], axis=-1)
    segments = np.stack([points[:-1], points[1:]], axis=1)
    upto = np.cumsum(density) / density.sum()
    shown = np.isfinite(segments).all(axis=(1, 2)) & (upto[1:] >= _TAIL) & (upto[:-1] <= 1 - _TAIL)
    ax.add_collection(
        LineCollection(segments[shown], linewidths=width[1:][shown], colors=color, capstyle="round", zorder=3)
    )
    (line,) = ax.plot([], [], linewidth=2.2, **style)  # for the legend
    panel.fill_between(x, 0, density, color=color, alpha=_FILL, linewidth=0)
    panel.plot(x, density, color=color, linewidth=0.9)
    return line, density


def _forecasts(panel, edges, density, color):
    panel.stairs(density, edges, color=color, fill=True, alpha=_FILL)
    panel.stairs(density, edges, color=color, linewidth=0.9)


def _write_count(panel, count):
    """Above the panel what it shows, and the numbers of forecasts of all curves, each once."""
    number = f"{count:,.0f}" if count == round(count) else f"{count:,.1f}"
    numbers = panel.get_title("left").removeprefix(_DENSITY)
    if number not in numbers.split("; "):
        numbers = f"{numbers}; {number}" if numbers else number
        panel.set_title(_DENSITY + numbers, loc="left", fontsize="small", pad=2)


def _fit_density(panel, highest):
    """Room for the highest density of all curves, with ticks at 0 and at the last round number."""
    panel.set_ylim(0, 1.1 * highest)
    scale = 10 ** np.floor(np.log10(highest))
    panel.set_yticks([0, scale * max(step for step in _STEPS if step * scale <= highest)])


def _draw_legend(ax, places):
    """The labelled curves, and one entry that explains the bands of all of them."""
    from matplotlib.legend_handler import HandlerTuple

    handles, labels = ax.get_legend_handles_labels()
    bands = tuple(shade for shade in ax.collections if shade.get_gid() == _BAND)
    if bands:
        handles, labels = [*handles, bands], [*labels, "consistency band" if len(bands) == 1 else "consistency bands"]
    if labels:
        places.draw_legend(handles, labels, handler_map={tuple: HandlerTuple(ndivide=None, pad=0.3)})


def _places(ax) -> Places:
    """Of the parts of the diagram, made at the first call together with everything that is drawn once."""
    from matplotlib import rcParams
    from matplotlib.ticker import MaxNLocator

    places = ax.get_axes_locator()
    if isinstance(places, Places) and places.panel in ax.child_axes:
        return places
    ax.plot([0, 1], [0, 1], color=rcParams["axes.edgecolor"], alpha=0.7, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="observed frequency", aspect="equal")
    ax.tick_params(labelbottom=False)
    places = Places(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6 if places.side() > _SMALL else 3, steps=_STEPS))
    places.panel.set(xlabel="forecast")
    for axes in (ax, places.panel):
        axes.spines[["top", "right"]].set_visible(False)
    return places
