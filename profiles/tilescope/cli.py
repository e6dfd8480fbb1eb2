"""The command ``tilescope``. Each subcommand is a module of ``tilescope.commands``.

Installed packages add subcommands through the entry-point group ``tilescope.commands``: functions that take the subparsers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tilescope.commands import COMMANDS, GROUPS, RECORDINGS, WARMED, choices, fill
from tilescope.files.bounded_reading import one_line
from tilescope.jobs import warm
from tilescope.version import VERSION

#: Exit status for a request that cannot be served.
BAD_INPUT = 2

#: The most characters of a message of an error.
_LONGEST = 4000


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {one_line(message, _LONGEST)} (see '{self.prog} --help')\n")


def main(arguments: Sequence[str] | None = None, ready: Callable[[], object] = lambda: None) -> int:
    """Runs the command and returns its exit status: 2 for bad input. Calls ``ready`` when all is imported and the command begins."""
    given, of_script = choices.split(list(sys.argv[1:] if arguments is None else arguments))
    if given and given[0] in WARMED and not {"-h", "--help"} & {*given}:
        warm.prepare()
    try:
        known = parser(given[0] if given else "")
        chosen, rest = known.parse_known_args(given)
        # argparse takes the positional arguments of one place alone: kernels may also follow an option.
        if hasattr(chosen, "kernels") and not any(text.startswith("-") for text in rest):
            chosen.kernels = [*chosen.kernels, *rest]
        elif rest:
            known.error(f"unrecognized arguments: {' '.join(rest)}")
        chosen.given, chosen.of_script = given, of_script
        ready()
        status = int(chosen.run(chosen))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of our output has gone (``| head``): nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("TILESCOPE_DEBUG"):
            raise
        print(f"tilescope: {one_line(error, _LONGEST)}", file=sys.stderr)
        return BAD_INPUT


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser with one command. Where there is no such one it lists all, and has the arguments of installed packages' alone."""
    top = _Parser(
        prog="tilescope",
        description="Runs Triton kernels and shows why each is fast or slow.",
        usage="tilescope [-h] [--version] COMMAND …",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"tilescope {VERSION}")
    subparsers = top.add_subparsers(
        prog=top.prog, required=True, metavar="COMMAND", dest="command", parser_class=_Parser, help=argparse.SUPPRESS
    )
    listed, known = _Listed(subparsers), COMMANDS | RECORDINGS
    for name, (module, said) in known.items():
        if command == name or command not in known:
            own = listed.add_parser(name, help=said)
        if command == name:
            fill(own, module)
    if command not in known:
        for entry in importlib.metadata.entry_points(group="tilescope.commands"):
            try:
                entry.load()(listed)
            except ImportError as error:
                _broken(listed, entry.name, error)
        top.epilog = listed.text()
    return top


class _Listed:
    """Subparsers that keep each command's line of help, and list it in a group."""

    def __init__(self, subparsers: Any) -> None:
        self._subparsers, self._helps = subparsers, dict[str, str]()

    def add_parser(self, name: str, *, help: str = "", **more: Any) -> argparse.ArgumentParser:
        self._helps[name] = help
        added: argparse.ArgumentParser = self._subparsers.add_parser(name, **{"description": help, **more})
        return added

    def text(self) -> str:
        """A line for each command in a group, and one that names the others."""
        lines = []
        for group, names in GROUPS.items():
            lines += [f"{group}:", *(f"  {name:10}{self._helps[name]}" for name in names if name in self._helps), ""]
        listed = {*RECORDINGS, *(name for names in GROUPS.values() for name in names)}
        others = ", ".join(name for name in self._helps if name not in listed)
        return "\n".join([*lines, f"Also: {others} (see 'tilescope COMMAND --help')"])


def _broken(subparsers: _Listed, name: str, error: ImportError) -> None:
    """Adds a command that only says that its package does not import."""
    message = f"command {name} does not import: {error}"

    def run(arguments: argparse.Namespace) -> int:
        raise ValueError(message)

    subparsers.add_parser(name, help=f"({message})").set_defaults(run=run)
