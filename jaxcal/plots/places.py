"""Where the parts of a reliability diagram lie: its axes share the space that they had with legend and panel."""

import re

# Height of the panel of forecasts, of the side of the square of the curves.
_PANEL = 0.22
# Between square and panel, in font sizes: ticks and a line of small print.
_GAP = 1.9
# Least side of the square, of the shorter side of the space, where the legend leaves nothing of it.
_LEAST = 0.05


class Places:
    """Locates, from the top: key (the box of the legend), square (the curves) and panel (the forecasts).

    Each is asked for before it is drawn and whenever a layout is made, so that all follow the size of the figure, of
    its fonts and of the legend. Only labels and ticks are outside of the space, where layouts look for them.
    """

    def __init__(self, ax):
        from matplotlib import rcParams

        self.ax = ax
        self.font_size = rcParams["font.size"]
        self.key = None
        self.key_height = 0  # pixels
        self.legend = None
        self.whole = {}  # the labels of the legend, by what is shown of them: with line breaks
        self.broken_for = None
        self.panel = ax.inset_axes((0, 0, 1, 1), sharex=ax)
        ax.set_axes_locator(self)
        self.panel.set_axes_locator(self.locate_panel)

    def __call__(self, _, renderer):
        """The square: with what is around it in the middle of the space, or at the anchor of the axes."""
        from matplotlib.transforms import Bbox

        space, unit = self.ax.get_position(original=True), self._unit()
        width, height = space.size * unit
        gap, key = _GAP * self._font_pixels(), self._highest_key(space, renderer)
        side = max(min(width, (height - key - gap) / (1 + _PANEL)), _LEAST * min(width, height))
        whole = Bbox.from_bounds(0, 0, side / unit[0], (key + side * (1 + _PANEL) + gap) / unit[1])
        whole = whole.anchored(self.ax.get_anchor(), space)
        self.key_height = key
        top = whole.y1 - key / unit[1]
        return Bbox.from_extents(whole.x0, top - side / unit[1], whole.x1, top)

    def get_subplotspec(self):
        """Where tight layouts look for the cell of axes that have a locator."""
        return self.ax.get_subplotspec()

    def locate_panel(self, _, renderer):
        from matplotlib.transforms import Bbox

        square, unit = self.ax.get_position(), self._unit()
        top = square.y0 - _GAP * self._font_pixels() / unit[1]
        return Bbox.from_extents(square.x0, top - _PANEL * square.width * unit[0] / unit[1], square.x1, top)

    def locate_key(self, _, renderer):
        """Above the square and to its right, or moved left as far as it would leave the space."""
        from matplotlib.transforms import Bbox

        square, space, unit = self.ax.get_position(), self.ax.get_position(original=True), self._unit()
        width = self._legend_size(renderer)[0] / unit[0]
        left = max(min(square.x0, space.x1 - width), space.x0)
        return Bbox.from_bounds(left, square.y1, width, self.key_height / unit[1])

    def side(self) -> float:
        """The shorter side of the space as it is now, in font sizes."""
        return min(self.ax.get_position(original=True).size * self._unit()) / self._font_pixels()

    def draw_legend(self, handles, labels, **options):
        """The legend, in its place."""
        if self.key is None or self.key not in self.ax.child_axes:
            # axes, though empty, because a title goes above all axes that belong to its own
            self.key = self.ax.inset_axes((0, 1, 1, 1))
            self.key.set_axis_off()
            self.key.set_navigate(False)
            self.key.set_in_layout(False)  # the legend is; without one the key has no size
            self.key.set_axes_locator(self.locate_key)
        self.legend = self.ax.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 0),
            bbox_transform=self.key.transAxes,
            borderaxespad=0,
            frameon=False,
            handlelength=1.6,
            handletextpad=0.6,
            labelspacing=0.3,
            **options,
        )

    def _unit(self):
        """Pixels of the width and the height of the figure, also while only a part of it is saved."""
        corners = self.ax.figure.transSubfigure.transform([(0, 0), (1, 1)])
        return corners[1] - corners[0]

    def _font_pixels(self):
        return self.font_size * self.ax.figure.dpi / 72

    def _highest_key(self, space, renderer):
        """Of the diagrams side by side, so that their squares are, too."""
        figure = self.ax.figure
        places = [self, *(ax.get_axes_locator() for ax in figure.axes if ax.figure is figure and ax is not self.ax)]
        row = (other for other in places if isinstance(other, Places) and _beside(other, space))
        return max(other._legend_size(renderer)[1] for other in row)

    def _legend_size(self, renderer):
        """In pixels, once broken to the width of the space; 0 if it was removed, hidden or replaced by another."""
        if self.legend is None or self.legend is not self.ax.get_legend() or not self.legend.get_visible():
            return 0, 0
        self._break_labels(renderer)
        box = self.legend.get_window_extent(renderer)
        return box.width, box.height

    def _break_labels(self, renderer):
        """Break labels between words where the legend would be wider than the space."""
        texts = self.legend.get_texts()
        width = self.ax.get_position(original=True).width * self._unit()[0]
        if self.broken_for == (width, [text.get_text() for text in texts]):
            return
        frame = self.legend.get_window_extent(renderer).width
        frame -= max(text.get_window_extent(renderer).width for text in texts)
        for text in texts:
            label = self.whole.get(text.get_text(), text.get_text())
            _break_lines(text, label, width - frame, renderer)
            self.whole[text.get_text()] = label
        self.broken_for = width, [text.get_text() for text in texts]


def _beside(places, space) -> bool:
    other = places.ax.get_position(original=True)
    return abs(other.y0 - space.y0) < 1e-6 and abs(other.y1 - space.y1) < 1e-6


def _break_lines(text, label, width, renderer):
    """Show `label` in lines of at most so many pixels, if words allow; formulas and no-break spaces are kept."""
    lines = []
    for line in label.split("\n"):
        first, *words = re.findall(r"(?:\$[^$]*\$|[^ ])+", line) or [""]
        lines.append(first)
        for word in words:
            text.set_text(f"{lines[-1]} {word}")
            if text.get_window_extent(renderer).width > width:
                lines.append(word)
            else:
                lines[-1] = text.get_text()
    text.set_text("\n".join(lines))
