"""The commands of `python -m theory`."""

import argparse
from collections.abc import Sequence

from jaxcal.cli import program


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m theory` with its commands."""
    from theory.cli import curve, map

    commands = (
        program.Command(
            "curve", curve, "risk, calibration and refinement along the regularization path of one problem"
        ),
        program.Command("map", map, "where they are smallest, over dimension ratios, Bayes errors and spectra"),
    )
    about = "Exact high-dimensional limits of calibration and refinement."
    return program.parser("python -m theory", about, commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; default `sys.argv[1:]`.

    Returns:
        The exit code: 0; 2 when the arguments or a file are at fault; 130 when interrupted.
    """
    return program.run("theory", parser, argv)
