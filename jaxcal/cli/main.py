"""The commands of `jaxcal`."""

import argparse
from collections.abc import Sequence

import jaxcal
from jaxcal.cli import program


def parser() -> argparse.ArgumentParser:
    """The parser of `jaxcal` with its commands."""
    from jaxcal.cli import apply, audit, demo, watch

    commands = (
        program.Command("demo", demo, "train, decompose and choose epochs on real digits"),
        program.Command(
            "audit", audit, "measure the calibration of your own predictions", "jaxcal audit FILE [options]"
        ),
        program.Command("apply", apply, "apply a saved calibrator", "jaxcal apply CALIBRATOR FILE --out OUT [options]"),
        program.Command("watch", watch, "show the history of a training as it grows", "jaxcal watch FILE [options]"),
    )
    about = "Measure, decompose and repair the calibration of classifiers."
    return program.parser("jaxcal", about, commands, version=f"jaxcal {jaxcal.__version__}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; default `sys.argv[1:]`.

    Returns:
        The exit code: 0; 2 when the arguments or a file are at fault; 130 when interrupted.
    """
    return program.run("jaxcal", parser, argv)
