"""The reliability diagram: observed frequency against confidence, with intervals and where the forecasts are."""

import numpy as np

from jaxcal.metrics.reliability import ReliabilityCurve

# Okabe and Ito's palette, told apart with every kind of colour vision.
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "oDs^v<"
_GREY = "#4D4D4D"


def reliability_diagram(curve: ReliabilityCurve, *, ax=None, label: str | None = None):
    """Draw one reliability curve; call again with the same axes to lay another over it.

    Every occupied bin is a point at its mean confidence and observed frequency, with the 95 % interval of the
    frequency; bars below show the share of the forecasts in each bin. On the diagonal forecasts are calibrated, below
    it over-confident (for the top label).

    Args:
        curve: a `jaxcal.reliability_curve` without batch axes.
        ax: axes to draw on; default a new figure.
        label: name for the legend, which is then drawn.

    Returns:
        The axes of the points. The share of the forecasts has axes of its own, `ax.child_axes[0]`.

    Raises:
        ValueError: for a curve with batch axes.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> p = jax.random.uniform(jax.random.key(0), (500,))
        >>> y = jax.random.bernoulli(jax.random.key(1), p)
        >>> ax = reliability_diagram(jaxcal.reliability_curve(p, y))
        >>> ax.get_ylabel()
        'observed frequency, 95 % interval'
    """
    count, confidence, frequency, lower, upper = (
        np.asarray(getattr(curve, name), np.float64) for name in ("count", "confidence", "frequency", "lower", "upper")
    )
    if count.ndim != 1:
        raise ValueError(f"draw one curve at a time; this one has batch shape {count.shape[:-1]}")
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(4.6, 5.0), layout="constrained")
    shares = _share_axes(ax)
    drawn = sum(line.get_gid() == "reliability" for line in ax.lines)
    color, marker = _COLORS[drawn % len(_COLORS)], _MARKERS[drawn % len(_MARKERS)]

    seen = count > 0
    x, y = confidence[seen], frequency[seen]
    ax.vlines(x, lower[seen], upper[seen], color=color, linewidth=1.2, alpha=0.55, zorder=2)
    (line,) = ax.plot(x, y, color=color, marker=marker, markersize=5, linewidth=1.4, label=label, zorder=3)
    line.set_gid("reliability")

    share = count / count.sum()
    order = np.argsort(x)
    shares.vlines(x[order], 0, share[seen][order], color=color, linewidth=3, alpha=0.7)
    shares.set_ylim(0, max(shares.get_ylim()[1] if drawn else 0, 1.1 * share.max()))
    if label is not None:
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), frameon=False, borderaxespad=0.2)
    return ax


def _share_axes(ax):
    """The small panel under the diagram, made at the first call together with everything that is drawn once."""
    if ax.child_axes:
        return ax.child_axes[0]
    ax.plot([0, 1], [0, 1], color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="observed frequency, 95 % interval", aspect="equal")
    shares = ax.inset_axes((0, -0.30, 1, 0.22), sharex=ax)
    shares.set(xlabel="confidence (mean forecast a bin)", ylabel="share")
    ax.tick_params(labelbottom=False)
    for panel in (ax, shares):
        panel.spines[["top", "right"]].set_visible(False)
    return shares
