"""The parser of the command line, and how it ends: exit code 0, 2 with one line on stderr, or 130 after Ctrl-C."""

import argparse
import atexit
import os
import sys
from collections.abc import Sequence

import jaxcal
from jaxcal.cli.console import UserError, write

_USER_ERROR, _INTERRUPTED = 2, 130  # the shell's own conventions


class _Parser(argparse.ArgumentParser):
    """argparse that reports an error in one line and writes through `console.write`."""

    def error(self, message: str):
        if message.endswith("required: FILE"):  # --logits and --probs take all the words that follow them
            message += "; FILE comes before the options"
        raise UserError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message, file=None):
        if message:
            write(message.rstrip("\n"), error=file is sys.stderr)


def parser() -> argparse.ArgumentParser:
    """The parser of `jaxcal` with its commands."""
    from jaxcal.cli import apply, audit, demo

    main_parser = _Parser(
        prog="jaxcal", allow_abbrev=False, description="Measure, decompose and repair the calibration of classifiers."
    )
    main_parser.add_argument("--version", action="version", version=f"jaxcal {jaxcal.__version__}")
    commands = main_parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, module, summary, usage in (
        ("demo", demo, "train, decompose and choose epochs on real digits", None),
        ("audit", audit, "measure the calibration of your own predictions", "jaxcal audit FILE [options]"),
        ("apply", apply, "apply a saved calibrator", "jaxcal apply CALIBRATOR FILE --out OUT [options]"),
    ):
        command = commands.add_parser(
            name,
            allow_abbrev=False,
            usage=usage,
            help=summary,
            description=getattr(module, "DESCRIPTION", summary),
            epilog=getattr(module, "EXAMPLES", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; default `sys.argv[1:]`.

    Returns:
        The exit code: 0; 2 when the arguments or a file are at fault; 130 when interrupted.
    """
    try:
        args = parser().parse_args(argv)
        return args.run(args)
    except UserError as error:
        write(f"jaxcal: {error}", error=True)
        return _USER_ERROR
    except KeyboardInterrupt:
        write("jaxcal: interrupted", error=True)
        if argv is None:  # this process is ours: XLA may be computing in a thread, and a normal exit under it crashes
            atexit.register(os._exit, _INTERRUPTED)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a terminal that is gone
        write(f"jaxcal: cannot write: {error.strerror or error}", error=True)
        return _USER_ERROR
    except SystemExit as end:  # --help and --version
        return end.code if isinstance(end.code, int) else 0
