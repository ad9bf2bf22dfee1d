"""Where calibration and refinement are minimized, and what refinement gains: maps over p/n and the Bayes error."""

import numpy as np

from theory.plots.layout import divide
from theory.spectra import BetaSpectrum

_GREY = "#4D4D4D"
# Blue and red stand for calibration and refinement, as in the curves; both ends of the map are equally dark.
_GAP_COLORS, _GAIN_COLORS = "RdBu", "YlGnBu"
_UNDEFINED = "#B8B8B8"
_HATCH = "/////"
_GAP_LABEL = r"$\log_{10}\,\lambda_\mathrm{calibration}/\lambda_\mathrm{refinement}$"
_LEGEND = {"frameon": False, "fontsize": "small", "borderpad": 0.2, "handlelength": 1.5, "columnspacing": 1.2}
_ENDS = {0.0: "0", np.inf: "\N{INFINITY}"}
_LAMBDA = "\N{GREEK SMALL LETTER LAMDA}"


def minimizer_gap(found) -> np.ndarray:
    """Decades between the minimizers of calibration and refinement: log10(lambda_calibration / lambda_refinement).

    Positive: on a path of falling regularization calibration is minimized first.

    Args:
        found: `theory.Minimizers` of any shape.

    Returns:
        float64, same shape. +inf or -inf where one of the two is minimized in the limit of no (infinite)
        regularization, NaN where both are at the same limit or the solver failed.

    Examples:
        >>> import theory
        >>> found = theory.minimizers(0.5, 0.1, theory.BetaSpectrum(1.0, 1.0))
        >>> print(f"{minimizer_gap(found):.3f}")
        1.203
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(np.asarray(found.lambda_calibration)) - np.log10(np.asarray(found.lambda_refinement))


def minimizer_map(
    ratios, bayes_errors, found, *, quantity: str = "gap", limit: float | None = None, colorbar: bool = True, ax=None
):
    """Heat map of the gap between two minimizers, or of the relative gain, over r = p/n and the Bayes error.

    gap:   log10(lambda_calibration / lambda_refinement), symmetric about 0. Blue: calibration is minimized at the
           larger lambda, first on a path of falling regularization; red: refinement. A line separates the two. Colours
           are linear within a decade and logarithmic beyond. Where one of them is minimized in a limit of lambda the
           gap is infinite, and the cell is hatched.
    gain:  100 (1 - min refinement / min risk), per cent, from 0.

    Every Bayes error has a row of the same height, in increasing order from below. Grey cells have no value: both are
    minimized in the same limit, or the solver failed.

    Args:
        ratios: `(R,)`, positive and increasing, on a logarithmic axis.
        bayes_errors: `(E,)`, positive and increasing.
        found: `theory.Minimizers` of shape `(E, R)`, for example of `theory.minimizer_map`.
        quantity: "gap" or "gain".
        limit: end of the colour scale; default the largest finite value (in size).
        colorbar: whether to draw the colour bar.
        ax: axes to draw on; default a new figure.

    Returns:
        The axes; `ax.collections[0]` holds the cells.

    Raises:
        ValueError: for shapes that do not match, axes out of order, an unknown quantity.

    Examples:
        >>> import theory
        >>> ratios, errors = [0.1, 1.0], [0.05, 0.1, 0.2]
        >>> found = theory.minimizer_map(ratios, errors, theory.BetaSpectrum(5.0, 1.0))
        >>> ax = minimizer_map(ratios, errors, found)
        >>> low, high = ax.collections[0].get_clim()
        >>> print(f"{low:.2f} {high:.2f}")
        -2.68 2.68

    Source: Berta et al. (2025), Figure 8.
    """
    ratios, errors, values = _checked(ratios, bayes_errors, found, quantity)
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(4.4, 3.9), layout="constrained")
    cells = _draw(ax, ratios, errors, values, quantity, _limit([values]) if limit is None else float(limit))
    ax.set(xlabel="dimension ratio r = p/n", ylabel="Bayes error e*")
    if colorbar:
        _color_bar(cells, quantity, ax=ax)
    if quantity == "gap":
        ax.legend(handles=_legend([found]), loc="lower left", bbox_to_anchor=(0, 1), **_LEGEND)
    return ax


def minimizer_maps(ratios, bayes_errors, spectra, maps, *, titles=None, ax=None) -> np.ndarray:
    """Figure 8 of Berta et al. (2025): a column a spectrum, with its density, the gap and the gain as `minimizer_map`.

    Colour scales are shared by the columns; "first" means at a larger lambda. The density is that of the eigenvalues
    of the covariance; of a discrete spectrum it is a histogram of their logarithms.

    Args:
        ratios, bayes_errors: `(R,)` and `(E,)`, positive and increasing.
        spectra: C spectra without batch shape.
        maps: C `theory.Minimizers` of shape `(E, R)`.
        titles: C headings; default the parameters of each spectrum.
        ax: axes whose place is divided among the panels, best of a figure with layout="constrained"; default a new one.

    Returns:
        The axes of the panels, an array `(3, C)`; the colour bars follow them in `ax.figure.axes`.

    Raises:
        ValueError: as `minimizer_map`, and for numbers of spectra, maps and titles that differ.

    Examples:
        >>> import theory
        >>> ratios, errors, spectrum = [0.1, 1.0], [0.05, 0.1, 0.2], theory.BetaSpectrum(5.0, 1.0)
        >>> axes = minimizer_maps(ratios, errors, [spectrum], [theory.minimizer_map(ratios, errors, spectrum)])
        >>> axes.shape, axes[0, 0].get_title()
        ((3, 1), '0.001 + Beta(5, 1)')
    """
    spectra, maps = list(spectra), list(maps)
    titles = [_title(spectrum) for spectrum in spectra] if titles is None else list(titles)
    if not spectra or not len(spectra) == len(maps) == len(titles):
        raise ValueError(
            f"there must be as many maps and titles as spectra, at least one, got {len(maps)}, {len(titles)} and "
            f"{len(spectra)}"
        )
    count = len(spectra)
    tables = {quantity: [_checked(ratios, bayes_errors, m, quantity)[2] for m in maps] for quantity in ("gap", "gain")}
    ratios, errors, _ = _checked(ratios, bayes_errors, maps[0], "gap")
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(1.5 + 2.0 * count, 5.8), layout="constrained")
    figure = ax.figure
    legend = _legend(maps)
    lines = -(-len(legend) // count)
    cells = divide(ax, (0.62, 1, 1, 0.08 * lines), (*[1.0] * count, 0.06))
    axes = np.array([[ax if i == j == 0 else figure.add_subplot(cells[i, j]) for j in range(count)] for i in range(3)])
    for j, spectrum in enumerate(spectra):
        what = _draw_spectrum(axes[0, j], spectrum)
        if j == 0 or what != axes[0, 0].get_ylabel():
            axes[0, j].set_ylabel(what)
        axes[0, j].set_title(titles[j], fontsize="medium")
    for i, quantity in enumerate(("gap", "gain"), start=1):
        limit = _limit(tables[quantity])
        for panel, values in zip(axes[i], tables[quantity], strict=True):
            drawn = _draw(panel, ratios, errors, values, quantity, limit)
            panel.tick_params(labelbottom=i == 2, labelleft=panel is axes[i, 0])
        _color_bar(drawn, quantity, cax=figure.add_subplot(cells[i, count]))
        axes[i, 0].set_ylabel("Bayes error e*")
    for panel in axes[2]:
        panel.set_xlabel("r = p/n")
    below = figure.add_subplot(cells[3, :])
    below.axis("off")
    below.legend(handles=legend, loc="center", ncols=count, borderaxespad=0, **_LEGEND)
    figure.align_ylabels(axes[:, 0])
    return axes


def _checked(ratios, bayes_errors, found, quantity):
    """Both axes and the table of values, `(E, R)`."""
    if quantity not in ("gap", "gain"):
        raise ValueError(f'quantity must be "gap" or "gain", got {quantity!r}')
    ratios, errors = np.asarray(ratios, np.float64), np.asarray(bayes_errors, np.float64)
    for name, axis in (("ratios", ratios), ("bayes_errors", errors)):
        if axis.ndim != 1 or not axis.size or not np.all(np.diff(axis, prepend=0.0) > 0) or np.isinf(axis[-1]):
            raise ValueError(f"{name} must be positive and increasing, of shape (N,), got {axis}")
    values = minimizer_gap(found) if quantity == "gap" else 100 * np.asarray(found.gain, np.float64)
    if values.shape != (errors.size, ratios.size):
        raise ValueError(f"found must have shape (E, R) = {(errors.size, ratios.size)}, got {values.shape}")
    return ratios, errors, values


def _limit(tables) -> float:
    """Largest finite size in all tables; 1 if there is none."""
    return max((np.max(np.abs(t[np.isfinite(t)]), initial=0.0) for t in tables), default=0.0) or 1.0


def _edges(ratios):
    """Edges of cells around points on a logarithmic axis."""
    logs = np.log(ratios)
    middle = (logs[1:] + logs[:-1]) / 2
    first, last = (middle[0], middle[-1]) if middle.size else (logs[0] - 0.1, logs[0] + 0.1)
    return np.exp(np.concatenate([[2 * logs[0] - first], middle, [2 * logs[-1] - last]]))


def _draw(ax, ratios, errors, values, quantity, limit):
    """Cells, hatches and the line where the gap is 0; returns the cells."""
    from matplotlib import colormaps
    from matplotlib.colors import AsinhNorm, Normalize

    gap = quantity == "gap"
    colors = colormaps[_GAP_COLORS if gap else _GAIN_COLORS].with_extremes(bad=_UNDEFINED)
    # a factor of 10 between the minimizers matters even where others are 10^9 apart
    norm = AsinhNorm(1.0, -limit, limit) if gap else Normalize(0.0, limit)
    edges, rows = _edges(ratios), np.arange(len(errors) + 1) - 0.5
    shown = np.ma.masked_invalid(np.clip(values, -limit, limit) if gap else values)
    # thin edges of the same colour close the seams that viewers show between cells of vector graphics
    cells = ax.pcolormesh(edges, rows, shown, edgecolors="face", linewidth=0.2, cmap=colors, norm=norm)
    infinite = np.ma.masked_where(~np.isinf(values), shown)
    if infinite.count():
        ax.pcolor(edges, rows, infinite, hatch=_HATCH, edgecolors="white", linewidth=0, cmap=colors, norm=norm)
    if gap and min(values.shape) > 1 and np.any(shown < 0) and np.any(shown > 0):
        ax.contour(ratios, rows[1:] - 0.5, shown, levels=[0.0], colors=_GREY, linewidths=1.0)
    ax.set_xscale("log")
    ax.set_xlim(edges[0], edges[-1])
    _ticks(ax, ratios, errors)
    return cells


def _ticks(ax, ratios, errors):
    """The ratios if they are few, else decades (or 1, 2, 5) in plain numbers; Bayes errors of as many rows as fit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    if len(ratios) <= 7:
        ax.set_xticks(ratios, [f"{r:.2g}" for r in ratios])
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        low, high = ax.get_xlim()
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 20 * low else (1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    step = -(-len(errors) // 15)
    ax.set_yticks(range(0, len(errors), step), [f"{e:.3g}" for e in errors[::step]], fontsize="small")
    ax.tick_params(axis="y", length=2)


def _color_bar(cells, quantity, **where):
    bar = cells.axes.figure.colorbar(cells, **where)
    bar.outline.set_visible(False)
    if quantity == "gain":
        bar.set_label("relative gain (%)")
        return
    bar.set_label(_GAP_LABEL, fontsize="small")
    limit = cells.get_clim()[1]
    steps = [step for step in (1, 2, 5, 10, 20, 40) if step <= limit] or [limit / 2]
    ticks = [-step for step in steps[::-1]] + [0, *steps]
    bar.set_ticks(ticks, labels=[f"{tick:.2g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
    bar.minorticks_off()


def _legend(maps) -> list:
    """What the colours mean, and what is behind cells without a finite gap if there are any."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    colors, gaps = colormaps[_GAP_COLORS], [minimizer_gap(found) for found in maps]
    entries = [
        Patch(facecolor=colors(place), label=f"{name} first")
        for name, place in (("calibration", 0.8), ("refinement", 0.2))
    ]
    for name, limit, end in (
        ("refinement", 0.0, 1.0),
        ("calibration", np.inf, 1.0),
        ("calibration", 0.0, 0.0),
        ("refinement", np.inf, 0.0),
    ):
        places = (np.asarray(getattr(found, f"lambda_{name}")) for found in maps)
        if any(np.any((place == limit) & np.isinf(gap)) for place, gap in zip(places, gaps, strict=True)):
            text = f"{name} smallest as {_LAMBDA} \N{RIGHTWARDS ARROW} {_ENDS[limit]}"
            entries.append(Patch(facecolor=colors(end), edgecolor="white", hatch=_HATCH, linewidth=0, label=text))
    if any(np.isnan(gap).any() for gap in gaps):
        entries.append(Patch(facecolor=_UNDEFINED, label="both at the same limit, or no result"))
    return entries


def _title(spectrum) -> str:
    if isinstance(spectrum, BetaSpectrum):
        return f"{float(spectrum.shift):g} + Beta({float(spectrum.alpha):g}, {float(spectrum.beta):g})"
    count = np.shape(spectrum.values)[-1]
    return f"{count} eigenvalue{'s' if count > 1 else ''}"


def _draw_spectrum(ax, spectrum):
    """Density of a continuous law, histogram of the logarithms of a discrete one; returns which."""
    if isinstance(spectrum, BetaSpectrum):
        # mid-points: the ends of the support can be poles
        s = float(spectrum.shift) + (np.arange(400) + 0.5) / 400
        density = spectrum.density(s)
        ax.fill_between(s, density, color=_GREY, alpha=0.25, linewidth=0)
        ax.plot(s, density, color=_GREY, linewidth=1.2)
        ax.set_ylim(0, 1.1 * min(density.max(), 20 * np.median(density)))
    else:
        values, weights = (np.asarray(a) for a in spectrum.atoms())
        low, high = values.min(), values.max()
        if high < 1.01 * low:
            low, high = low / 1.5, high * 1.5
        bins = np.geomspace(low, high, min(40, 10 + int(np.sqrt(len(values)) / 2)) + 1)
        ax.hist(values, bins, weights=weights, color=_GREY, alpha=0.6)
        ax.set_xscale("log")
    ax.set_xlabel("eigenvalue", labelpad=1)
    ax.spines[["top", "right"]].set_visible(False)
    return "density" if isinstance(spectrum, BetaSpectrum) else "share"
