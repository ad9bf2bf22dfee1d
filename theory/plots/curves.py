"""Risk, calibration and refinement along the regularization path, with simulations and minimizers."""

import numpy as np

from jaxcal.plots.epochs import mean_and_interval
from theory.plots.layout import divide

# The colours of the same quantities in `jaxcal.plots`.
_COLORS = {"risk": "#009E73", "calibration": "#0072B2", "refinement": "#D55E00"}
_GREY = "#4D4D4D"
_TALL = 2.0  # a risk that would make the panel so many times as high is cut at the rim of its valley
_EDGE, _RIGHT = 0.015, 0.2  # shares of the axis: distance of an arrow from its end, where text no longer fits


def learning_curve(regularizations, curve, *, simulation=None, minimizers=None, unit: str = "nats", ax=None):
    """Exact risk and refinement against lambda, and calibration, the gap between them, in a panel of its own below.

    Lambda falls from left to right, from heavy regularization to none, as models grow from under- to overfitted. The
    upper panel shows all of refinement; where risk explodes at one end it is as high as the other end, so that the
    valleys are seen, and calibration is cut at the same lambda. The calibration panel begins at 0.

    Args:
        regularizations: lambda, `(L,)`, positive and finite, in any order.
        curve: `theory.LearningCurve` of shape `(L,)` at these lambda. Failed lanes (NaN) are gaps in the lines.
        simulation: `theory.Simulation`, at lambda of its own: means over its seeds as points, with the 95 % t interval
            as a bar. A lambda at which a fit failed is left out.
        minimizers: `theory.Minimizers` of shape `()`: a line at each, and a strip at the bottom that names them.
        unit: of the loss, for the axis labels; nats for the log loss.
        ax: axes whose place is divided among the panels; default a new figure.

    Returns:
        The upper axes, with risk and refinement; the others follow it in `ax.figure.axes`.

    Raises:
        ValueError: for a curve of another shape, lambda that a logarithmic axis cannot show, batches of minimizers.

    Examples:
        >>> import numpy as np
        >>> import theory
        >>> lam = np.geomspace(1.0, 1e-3, 20)
        >>> curve = theory.learning_curve(lam, ratio=0.5, bayes_error=0.1, spectrum=theory.BetaSpectrum(1.0, 1.0))
        >>> ax = learning_curve(lam, curve)
        >>> ax.get_ylabel(), ax.figure.axes[1].get_xlabel()
        ('loss (nats)', 'regularization λ, falling')

    Source: Berta et al. (2025), Figure 7.
    """
    lam, order = _checked(regularizations)
    values = {name: np.asarray(getattr(curve, name), np.float64) for name in _COLORS}
    if any(v.shape != lam.shape for v in values.values()):
        shapes = [v.shape for v in values.values()]
        raise ValueError(f"the curves must have the shape {lam.shape} of the regularizations, got {shapes}")
    values = {name: v[order] for name, v in values.items()}
    if minimizers is not None and np.ndim(minimizers.lambda_risk):
        shape = np.shape(minimizers.lambda_risk)
        raise ValueError(f"the minimizers must be those of one problem, of shape (), got {shape}")

    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(6.4, 5.2), layout="constrained")
    cells = divide(ax, (3.0, 1.8, 1.1) if minimizers is not None else (3.0, 1.8))
    upper, lower, *strip = (ax, *(ax.figure.add_subplot(c, sharex=ax) for c in list(cells)[1:]))
    homes = {"risk": upper, "calibration": lower, "refinement": upper}
    for name, home in homes.items():
        home.plot(lam[order], values[name], color=_COLORS[name], linewidth=1.8, label=name, zorder=3)
    ax.set_xscale("log")
    left, right = _ends(lam, simulation)
    ax.set_xlim(left, right)
    legend = list(upper.lines)
    if simulation is not None:
        legend.append(_simulated(homes, simulation))
    upper.legend(
        handles=legend,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        frameon=False,
        fontsize="small",
        borderpad=0.2,
        handlelength=1.5,
        columnspacing=1.2,
    )
    _fit_vertical(upper, lower, values, simulation)
    if strip:
        _strip_of_minimizers(strip[0], minimizers)
        for name, color in _COLORS.items():
            place = float(getattr(minimizers, f"lambda_{name}"))
            if right <= place <= left:
                for panel in (upper, lower):
                    panel.axvline(place, color=color, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    upper.set_ylabel(f"loss ({unit})")
    lower.set_ylabel(f"calibration\n({unit})")
    panels = (upper, lower, *strip)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(which="both", labelbottom=panel is panels[-1])
    panels[-1].set_xlabel("regularization \N{GREEK SMALL LETTER LAMDA}, falling")
    upper.figure.align_ylabels([upper, lower])
    return upper


def _checked(regularizations):
    """Lambda as an array and the order in which it falls."""
    lam = np.asarray(regularizations, np.float64)
    if lam.ndim != 1 or lam.size == 0 or not np.all((lam > 0) & (lam < np.inf)):
        raise ValueError(f"regularizations must be positive and finite, of shape (L,), got {regularizations}")
    return lam, np.argsort(-lam, kind="stable")


def _ends(lam, simulation):
    """Largest and smallest lambda with a margin of 1 %."""
    if simulation is not None:
        lam = np.append(lam, np.asarray(simulation.regularizations))
    low, high = np.log10(lam.min()), np.log10(lam.max())
    margin = 0.01 * (high - low) or 0.5
    return 10 ** (high + margin), 10 ** (low - margin)


def _simulated(homes, simulation):
    """Means and intervals over seeds; returns the entry of the legend."""
    from matplotlib.lines import Line2D

    lam, seeds = np.asarray(simulation.regularizations), len(simulation.risk)
    dots = {"marker": "o", "linestyle": "", "markersize": 3.5, "markerfacecolor": "white", "markeredgewidth": 1.0}
    for name, home in homes.items():
        mean, half_width = mean_and_interval(getattr(simulation, name))
        home.errorbar(
            lam, mean, np.nan_to_num(half_width), color=_COLORS[name], elinewidth=1.0, capsize=2.0, zorder=4, **dots
        )
    over = f"{seeds} simulations,\n95 % intervals" if seeds > 1 else "one simulation"
    return Line2D([], [], color=_GREY, label=over, **dots)


def _fit_vertical(upper, lower, values, simulation):
    """All of refinement, risk (up to the lower rim of its valley if it explodes), calibration where risk is seen."""
    risk, refinement, calibration = (values[name] for name in ("risk", "refinement", "calibration"))
    seen = np.isfinite(risk)
    if not seen.any():
        return
    lowest = np.argmin(np.where(seen, risk, np.inf))
    sides = [np.nanmax(side) for side in (risk[: lowest + 1], risk[lowest:])]
    rim = max(sides) if min(sides) == risk[lowest] else min(sides)
    top, bottom = max(rim, np.nanmax(refinement)), np.nanmin(refinement)
    if np.nanmax(risk) - bottom < _TALL * (top - bottom):
        top = np.nanmax(risk)
    margin = 0.06 * (top - bottom) or 1e-6
    upper.set_ylim(bottom - margin, top + margin)
    highest = np.max(calibration[seen & (risk <= top)], initial=0.0)
    if simulation is not None:  # with the upper ends of their bars
        mean, half_width = mean_and_interval(simulation.calibration)
        shown = np.mean(simulation.risk, axis=0) <= top
        highest = np.max((mean + np.nan_to_num(half_width))[shown], initial=highest)
    lower.set_ylim(-0.04 * highest, 1.06 * highest or 1e-6)


def _strip_of_minimizers(ax, minimizers):
    """A row a quantity: a dot at its minimizer, or an arrow at the end beyond which it lies."""
    low, high = sorted(ax.get_xlim())
    for row, (name, color) in enumerate(_COLORS.items()):
        place = float(getattr(minimizers, f"lambda_{name}"))
        if np.isnan(place):
            continue
        shown = np.clip(place, low * (high / low) ** _EDGE, high / (high / low) ** _EDGE)
        marker = ">" if place < low else "<" if place > high else "o"
        ax.plot(shown, row, marker, color=color, markersize=6)
        side = -1 if shown < low * (high / low) ** _RIGHT else 1  # lambda falls to the right
        ax.annotate(
            "\N{INFINITY}" if place == np.inf else f"{place:.3g}",
            (shown, row),
            xytext=(8 * side, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            color=color,
            fontsize="small",
        )
    ax.set_title("\N{GREEK SMALL LETTER LAMDA} that minimizes each", loc="left", fontsize="small", color=_GREY, pad=3)
    ax.set_yticks(range(len(_COLORS)), _COLORS, fontsize="small")
    ax.set_ylim(len(_COLORS) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
