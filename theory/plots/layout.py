"""Panels in the place of one axes."""


def divide(ax, heights, widths=(1.0,)):
    """Cells `[row, column]` that share the place of `ax` in the given proportions; `ax` moves to the first one.

    Args:
        ax: axes in a grid of subplots or placed by hand.
        heights, widths: relative sizes of the rows and columns.
    """
    shape = {"nrows": len(heights), "ncols": len(widths), "height_ratios": heights, "width_ratios": widths}
    if ax.figure.get_layout_engine() is None:  # nothing else will make room for labels between the rows
        shape["hspace"] = 0.45
    cell = ax.get_subplotspec()
    if cell is not None:
        cells = cell.subgridspec(**shape)
    else:
        place = ax.get_position()
        edges = {"left": place.x0, "right": place.x1, "bottom": place.y0, "top": place.y1}
        cells = ax.figure.add_gridspec(**shape, **edges)
    ax.set_subplotspec(cells[0, 0])
    return cells
