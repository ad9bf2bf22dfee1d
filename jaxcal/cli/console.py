"""The one place from which the command line writes: text, tables and progress bars."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO


class UserError(Exception):
    """Something the user can put right; its message is one line, printed to stderr with exit code 2."""


def write(text: str, *, error: bool = False) -> None:
    """Write `text` and a line end to stdout, or to stderr if `error`. Every word of the command line passes here."""
    stream = sys.stderr if error else sys.stdout
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:  # a terminal or pipe that knows fewer signs, such as an ASCII locale
        stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding) + "\n")
    stream.flush()


def require(module: str, extra: str):
    """Import and return an optional `module`; a `UserError` says which extra of the package brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(f"this needs the package {package}: pip install 'jaxcal[{extra}]'") from error


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> str:
    """A table as text, as wide as the terminal allows; needs `rich`.

    Args:
        columns: headings.
        rows: cells, as text.
        left: indices of the columns set flush left; the others, numbers, are set flush right.

    Returns:
        The rendered table, with colours if stdout is a terminal.
    """
    rich_table, box = require("rich.table", "cli"), require("rich.box", "cli")
    plain = require("rich.text", "cli").Text  # what is in brackets, such as [0.1, 0.2], is not markup
    grid = rich_table.Table(box=box.SIMPLE_HEAD, show_edge=False)
    for i, name in enumerate(columns):
        grid.add_column(plain(name), justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*map(plain, row))
    # the terminal's own console knows its width and colours; the text is caught so that `write` alone writes it
    terminal = require("rich.console", "cli").Console()
    page = require("rich.console", "cli").Console(
        file=StringIO(), width=terminal.width, force_terminal=terminal.is_terminal, color_system=terminal.color_system
    )
    page.print(grid)
    return "\n".join(line.rstrip() for line in page.file.getvalue().splitlines()).strip("\n")


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr with the time left; yields `advance(steps)`.

    It is shown only where stderr is a terminal and `rich` is installed, and leaves no trace when it ends.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield lambda steps: None
        return
    console = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)
