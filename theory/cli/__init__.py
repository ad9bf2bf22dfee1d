"""The command line: `python -m theory curve`, `python -m theory map`."""

from theory.cli.main import main as main
