"""The reliability diagram: observed frequency against forecast, how sure that is, and where the forecasts are."""

import numpy as np

from jaxcal.metrics import CorpCurve, Interval, ReliabilityCurve, SmoothReliabilityCurve

# Okabe and Ito's palette, told apart with every kind of colour vision.
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "oDs^v<"
_GREY = "#4D4D4D"
# Columns of the panel of forecasts where a curve has no bins of its own.
_COLUMNS = 50
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
    The panel below shows where the forecasts are, and how many. On the diagonal forecasts are calibrated, below it
    over-confident (for the top label). The panel lies outside of `ax`: save with `bbox_inches="tight"`.

    Args:
        curve: a `jaxcal.reliability_curve`, `jaxcal.corp_reliability_curve` or `jaxcal.smooth_reliability_curve`,
            without batch axes.
        band: `jaxcal.corp_consistency_band` of the same forecasts, for a CORP curve.
        ax: axes to draw on; default a new figure.
        label: name for the legend, which is then drawn.

    Returns:
        The axes of the curves. The forecasts have axes of their own, `ax.child_axes[0]`.

    Raises:
        TypeError: for anything but these curves.
        ValueError: for a curve with batch axes, a band of other forecasts, or one for a curve that has none.

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
    panel = _forecast_axes(ax)
    drawn = sum(line.get_gid() == "reliability" for line in ax.lines)
    style = {"color": _COLORS[drawn % len(_COLORS)], "label": label}
    if draw is _binned:
        style["marker"] = _MARKERS[drawn % len(_MARKERS)]
    line, heights = draw(ax, panel, arrays, band, style)
    line.set_gid("reliability")
    if "count" in arrays:
        _write_count(panel, arrays["count"].sum())
    panel.set_ylim(0, max(panel.get_ylim()[1] if drawn else 0, 1.1 * heights.max()))
    if label is not None:
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), frameon=False, borderaxespad=0.2)
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
    (line,) = ax.plot(x, y, markersize=5, linewidth=1.4, zorder=3, **style)
    share = curve["count"][seen] / curve["count"].sum()
    panel.vlines(x, 0, share, color=style["color"], linewidth=3, alpha=0.7)
    return line, share


def _corp(ax, panel, curve, band, style):
    seen = curve["count"] > 0
    x, color = curve["confidence"][seen], style["color"]
    if band is not None:
        lower, upper = (np.asarray(end, np.float64)[seen] for end in band)
        ax.fill_between(x, lower, upper, color=color, alpha=0.18, linewidth=0, zorder=1)
    few = {"marker": ".", "markersize": 4} if len(x) <= _COLUMNS else {}  # forecasts that take a few values
    (line,) = ax.plot(x, curve["frequency"][seen], linewidth=1.4, zorder=3, **few, **style)
    share, edges = np.histogram(x, _COLUMNS, (0, 1), weights=curve["count"][seen] / curve["count"].sum())
    panel.stairs(share, edges, color=color, fill=True, alpha=0.3)
    panel.stairs(share, edges, color=color, linewidth=0.8)
    return line, share


def _smooth(ax, panel, curve, band, style):
    from matplotlib.collections import LineCollection

    x, y, density, color = curve["points"], curve["frequency"], curve["density"], style["color"]
    width = 0.6 + 2.2 * np.sqrt(density / density.max())
    places = np.stack([x, y], axis=-1)
    segments = np.stack([places[:-1], places[1:]], axis=1)
    upto = np.cumsum(density) / density.sum()
    shown = np.isfinite(segments).all(axis=(1, 2)) & (upto[1:] >= _TAIL) & (upto[:-1] <= 1 - _TAIL)
    ax.add_collection(
        LineCollection(segments[shown], linewidths=width[1:][shown], colors=color, capstyle="round", zorder=3)
    )
    (line,) = ax.plot([], [], linewidth=2.2, **style)  # for the legend
    share = density / _COLUMNS  # of the forecasts in one column
    panel.fill_between(x, 0, share, color=color, alpha=0.3, linewidth=0)
    panel.plot(x, share, color=color, linewidth=0.8)
    return line, share


def _write_count(panel, count):
    """The numbers of forecasts of all curves, each once, in the corner of the panel."""
    text = f"{count:,.0f}" if count == round(count) else f"{count:,.1f}"
    for known in panel.texts:
        if text not in known.get_text().removeprefix("n = ").split("; "):
            known.set_text(f"{known.get_text()}; {text}")
        return
    panel.text(0.5, 1.02, f"n = {text}", transform=panel.transAxes, ha="center", va="bottom", fontsize="small")


def _forecast_axes(ax):
    """The small panel under the diagram, made at the first call together with everything that is drawn once."""
    if ax.child_axes:
        return ax.child_axes[0]
    ax.plot([0, 1], [0, 1], color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="observed frequency", aspect="equal")
    panel = ax.inset_axes((0, -0.30, 1, 0.22), sharex=ax)
    panel.set(xlabel="forecast", ylabel="share")
    ax.tick_params(labelbottom=False)
    for axes in (ax, panel):
        axes.spines[["top", "right"]].set_visible(False)
    return panel
