"""A program of several commands, and how it ends: exit code 0, 2 with one line on stderr, or 130 after Ctrl-C."""

import argparse
import atexit
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import NamedTuple

from jaxcal.cli.console import UserError, write

_USER_ERROR, _INTERRUPTED = 2, 130  # the shell's own conventions


class Command(NamedTuple):
    """A module with `add_arguments`, `run` and perhaps `DESCRIPTION` and `EXAMPLES`, as a command."""

    name: str
    module: ModuleType
    summary: str
    usage: str | None = None


class _Parser(argparse.ArgumentParser):
    """argparse that reports an error in one line and writes through `console.write`."""

    def parse_args(self, args=None, namespace=None):
        """As argparse; what no option matches is an error of the command, whose help has the options."""
        found, unknown = self.parse_known_args(args, namespace)
        command = vars(found).pop("command", self)
        if unknown:
            command.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found

    def error(self, message: str):
        if message.endswith("required: FILE"):  # --logits and --probs take all the words that follow them
            message += "; FILE comes before the options"
        raise UserError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message, file=None):
        if message:
            write(message.rstrip("\n"), error=file is sys.stderr)


def parser(prog: str, description: str, commands: Iterable[Command], version: str | None = None):
    """The argument parser of a program; the parsed arguments carry the command's function as `run`."""
    main_parser = _Parser(prog=prog, allow_abbrev=False, description=description)
    if version is not None:
        main_parser.add_argument("--version", action="version", version=version)
    subparsers = main_parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, module, summary, usage in commands:
        command = subparsers.add_parser(
            name,
            allow_abbrev=False,
            usage=usage,
            help=summary,
            description=getattr(module, "DESCRIPTION", summary),
            epilog=getattr(module, "EXAMPLES", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, command=command)
    return main_parser


def run(name: str, make_parser: Callable[[], argparse.ArgumentParser], argv: Sequence[str] | None) -> int:
    """Parse `argv` (default: that of the process), run the command, and turn what goes wrong into an exit code."""
    try:
        args = make_parser().parse_args(argv)
        return args.run(args)
    except UserError as error:
        write(f"{name}: {error}", error=True)
        return _USER_ERROR
    except KeyboardInterrupt:
        write(f"{name}: interrupted", error=True)
        if argv is None:  # this process is ours: XLA may be computing in a thread, and a normal exit under it crashes
            atexit.register(os._exit, _INTERRUPTED)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a terminal that is gone
        write(f"{name}: cannot write: {error.strerror or error}", error=True)
        return _USER_ERROR
    except SystemExit as end:  # --help and --version
        return end.code if isinstance(end.code, int) else 0
