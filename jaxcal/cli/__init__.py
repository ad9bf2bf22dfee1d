"""The command line: `jaxcal demo`, `jaxcal audit FILE`, `jaxcal apply CALIBRATOR FILE`."""

from jaxcal.cli.main import main as main
