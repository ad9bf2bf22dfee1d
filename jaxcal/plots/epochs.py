"""Risk, calibration and refinement against the epoch, with the epochs that selection rules chose."""

from collections.abc import Mapping

import numpy as np

# Okabe and Ito's palette, told apart with every kind of colour vision; the hues of the paper's Figure 1.
_RISK, _CALIBRATION, _REFINEMENT = "#009E73", "#0072B2", "#D55E00"
_OTHER = "#4D4D4D"
_RULE_COLORS = {"log loss": _RISK, "risk": _RISK, "refinement": _REFINEMENT}


def mean_and_interval(values) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis and half the width of its 95 % t interval.

    mean +- t(0.975, S - 1) sd / sqrt(S)

    Args:
        values: `(S, ...)`, one entry a seed (or any other independent repetition).

    Returns:
        Mean and half width, both `(...)`, float64. The half width of a single repetition does not exist and is NaN.

    Examples:
        >>> mean, half_width = mean_and_interval([0.31, 0.30, 0.32])
        >>> print(f"{mean:.2f} +- {half_width:.3f}")
        0.31 +- 0.025
    """
    from scipy.stats import t

    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or values.shape[0] == 0:
        raise ValueError(f"values must have shape (seeds, ...) with at least one seed, got {values.shape}")
    seeds = values.shape[0]
    if seeds == 1:
        return values[0], np.full(values.shape[1:], np.nan)
    spread = values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return values.mean(axis=0), t.ppf(0.975, seeds - 1) * spread


def decomposition_curves(
    decomposition, *, chosen: Mapping[str, object] | None = None, steps=None, unit: str = "nats", ax=None
):
    """Risk and refinement against the epoch, calibration (the gap between them) in a panel of its own below.

    Lines are means over seeds, bands their 95 % t intervals. The vertical axes fit what happens after the first tenth
    of the epochs, because the first steps of training are far above all that matters; the calibration axis shows 0.

    Args:
        decomposition: a `jaxcal.Decomposition` (or anything with risk, calibration and refinement) of shape `(epochs,)`
            or `(seeds, epochs)`.
        chosen: for each rule, under the name to print, the index of the epoch it chose, `()` or `(seeds,)`, as
            `jaxcal.select_epoch` returns it. A strip at the bottom shows every seed as a dot and their mean as a bar.
            The means of "log loss" (or "risk") and "refinement" are also marked on the curve they minimize.
        steps: increasing numbers of the epochs for the horizontal axis, `(epochs,)`; default 1, 2, ..., so that an
            index e is drawn at e + 1.
        unit: of the loss, for the axis labels; nats for the log loss.
        ax: axes whose place is divided among the panels; default a new figure.

    Returns:
        The upper axes, with risk and refinement; the others follow it in `ax.figure.axes`.

    Raises:
        ValueError: for curves of another shape, a chosen epoch outside of the curve, or steps that do not increase.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> z = jax.random.normal(jax.random.key(0), (3, 20, 100, 5))  # 3 seeds, 20 epochs
        >>> y = jax.random.randint(jax.random.key(1), (100,), 0, 5)
        >>> parts = jaxcal.decompose(z, y)
        >>> ax = decomposition_curves(parts, chosen={"refinement": jaxcal.select_epoch(parts.refinement)})
        >>> ax.get_ylabel()
        'loss (nats)'
    """
    curves = [
        np.atleast_2d(np.asarray(c)) for c in (decomposition.risk, decomposition.calibration, decomposition.refinement)
    ]
    if len({c.shape for c in curves}) > 1 or curves[0].ndim != 2 or curves[0].size == 0:
        raise ValueError(f"the curves must have shape (epochs,) or (seeds, epochs), got {[c.shape for c in curves]}")
    # an epoch at which a network has diverged is a gap
    risk, calibration, refinement = (np.where(np.isfinite(c), c, np.nan) for c in curves)
    if np.isnan(risk).all():
        raise ValueError("no value of the curves is finite")
    num_epochs = risk.shape[-1]
    epochs = np.arange(1, num_epochs + 1) if steps is None else np.asarray(steps)
    if epochs.shape != (num_epochs,) or not (np.diff(epochs) > 0).all():
        raise ValueError(f"steps must be {num_epochs} increasing numbers, got {steps!r}")
    chosen = {name: epochs[_as_indices(name, indices, num_epochs)] for name, indices in (chosen or {}).items()}

    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(6.4, 5.0), layout="constrained")
    heights = (3.2, 1.7, 0.28 * len(chosen) + 0.1) if chosen else (3.2, 1.7)
    upper, lower, *strip = _divide(ax, heights)

    _curve(upper, epochs, risk, _RISK, "risk", "bottom")
    _curve(upper, epochs, refinement, _REFINEMENT, "refinement", "top")
    _curve(lower, epochs, calibration, _CALIBRATION, "calibration\n= risk \N{MINUS SIGN} refinement", "center")
    _fit_vertical(upper, (risk, refinement))
    _fit_vertical(lower, (calibration,), include_zero=True)
    upper.set_ylabel(f"loss ({unit})")
    lower.set_ylabel(unit)
    if strip:
        _strip_of_choices(strip[0], chosen)
        for name, picks in chosen.items():
            if name in _RULE_COLORS:
                curve = refinement if name == "refinement" else risk
                _mark(upper, lower, epochs, curve, picks.mean(), _RULE_COLORS[name])

    panels = (upper, lower, *strip)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelbottom=panel is panels[-1])
    panels[-1].set_xlabel("epoch")
    upper.figure.align_ylabels([upper, lower])
    upper.set_xlim(epochs[0], epochs[-1] if num_epochs > 1 else epochs[0] + 1)
    return upper


def _as_indices(name, indices, num_epochs) -> np.ndarray:
    indices = np.atleast_1d(np.asarray(indices))
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(
            f"chosen[{name!r}] must be integers of shape () or (seeds,), got {indices.dtype} {indices.shape}"
        )
    if indices.min() < 0 or indices.max() >= num_epochs:
        raise ValueError(f"chosen[{name!r}] must lie in [0, {num_epochs}), got {indices.tolist()}")
    return indices


def _divide(ax, heights):
    """The axes and new ones below it, which share its place in the given proportions and its horizontal axis."""
    figure, cell = ax.figure, ax.get_subplotspec()
    if cell is not None:
        cells = cell.subgridspec(len(heights), 1, height_ratios=heights, hspace=0.1)
        ax.set_subplotspec(cells[0])
        return ax, *(figure.add_subplot(cells[i], sharex=ax) for i in range(1, len(heights)))
    place = ax.get_position()
    gap = 0.03 * place.height
    unit = (place.height - gap * (len(heights) - 1)) / sum(heights)
    bottoms = place.y1 - unit * np.cumsum(heights) - gap * np.arange(len(heights))
    ax.set_position((place.x0, bottoms[0], place.width, unit * heights[0]))
    return ax, *(
        figure.add_axes((place.x0, bottom, place.width, unit * height), sharex=ax)
        for bottom, height in zip(bottoms[1:], heights[1:], strict=True)
    )


def _curve(ax, epochs, values, color, label, side):
    """Mean and band over seeds, named at the right end."""
    mean, half_width = mean_and_interval(values)
    if len(values) > 1:
        ax.fill_between(epochs, mean - half_width, mean + half_width, color=color, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(epochs, mean, color=color, linewidth=1.8, label=label.partition("\n")[0], zorder=3)
    last = np.flatnonzero(np.isfinite(mean))[-1:]
    ax.annotate(
        label,
        (epochs[-1], mean[last].sum()),
        xytext=(6, 0),
        textcoords="offset points",
        color=color,
        va=side,
        annotation_clip=False,
    )


def _fit_vertical(ax, curves, include_zero=False):
    """All lows of means and bands are shown, and the highs after the first tenth of the epochs."""
    low, high = (0.0, 0.0) if include_zero else (np.inf, -np.inf)
    for curve in curves:
        mean, half_width = mean_and_interval(curve)
        half_width = np.nan_to_num(half_width)
        low = np.nanmin([low, *(mean - half_width)])
        high = np.nanmax([high, *(mean + half_width)[len(mean) // 10 :]])
    low, high = (low, high) if low <= high else (0.0, 1.0)
    margin = 0.06 * (high - low) or 1e-6
    ax.set_ylim(0 if include_zero and low == 0 else low - margin, high + margin)


def _mark(upper, lower, epochs, curve, epoch, color):
    """A line at a mean chosen epoch, and a dot where it meets the mean curve that the rule minimizes."""
    for panel in (upper, lower):
        panel.axvline(epoch, color=color, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    height = np.interp(epoch, epochs, mean_and_interval(curve)[0])
    upper.plot(epoch, height, "o", color=color, markersize=7, markeredgecolor="white", markeredgewidth=1.2, zorder=4)


def _strip_of_choices(ax, chosen):
    """A row a rule: a dot for each seed, a bar at the mean."""
    for row, (name, picks) in enumerate(chosen.items()):
        color = _RULE_COLORS.get(name, _OTHER)
        # a height for each seed, so that equal choices can be counted
        heights = row + (np.linspace(-0.22, 0.22, len(picks)) if len(picks) > 1 else 0)
        ax.plot(picks, heights, "o", color=color, markersize=4, alpha=0.55, markeredgewidth=0, clip_on=False)
        ax.plot(picks.mean(), row, "|", color=color, markersize=11, markeredgewidth=2, clip_on=False)
    ax.set_title(
        "epoch chosen by each rule (dot: one seed, bar: mean)", loc="left", fontsize="small", color=_OTHER, pad=3
    )
    ax.set_yticks(range(len(chosen)), chosen)
    ax.set_ylim(len(chosen) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
