"""``tilescope watch``: profiles a script again at every save, and shows what changed since the last good version.

The dashboard, where it is installed, shows it on a page (an entry point of the group ``tilescope.pages``); else it is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata

from tilescope.commands import choices
from tilescope.notebook import watch_text, watching


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernels", nargs=1, metavar="SCRIPT", help="a script; arguments after it are its own")
    choices.add_settings(parser)
    parser.add_argument("--once", action="store_true", help="end after the first version")
    parser.add_argument("--text", action="store_true", help="print in the terminal instead of opening a page")


def run(arguments: argparse.Namespace) -> int:
    """Profiles at every save until it is interrupted. Returns the status of the last version."""
    (script,) = arguments.kernels
    if not choices.is_script(script):
        raise ValueError(f"watch takes a script: {script} is none")
    own = choices.own_arguments(script, arguments.of_script, choices.OF_WATCH)
    watch = watching.Watch(
        script, own, target=arguments.target,
        collect=arguments.collect, runs_dir=arguments.runs, settings=choices.settings(arguments),
    )  # fmt: skip
    if not (arguments.text or arguments.once):
        for page in importlib.metadata.entry_points(group="tilescope.pages", name="watch"):
            with contextlib.suppress(ImportError):  # the dashboard's libraries are not installed
                return int(page.load()(watch))
    return asyncio.run(watch_text.follow(watch, once=arguments.once))
