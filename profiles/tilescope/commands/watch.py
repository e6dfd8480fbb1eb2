"""``tilescope watch``: profiles a script again at every save, and shows what changed since the last good version.

The dashboard, where it is installed, shows it on a page (an entry point of the group ``tilescope.pages``); else it is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
from typing import TYPE_CHECKING

from tilescope.commands import choices, profile

if TYPE_CHECKING:
    from tilescope.models import versions
    from tilescope.notebook.watching import Version, Watch


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("watch", help="profile a script again at every save, and say what changed")
    parser.add_argument("kernels", nargs="+", metavar="SCRIPT", help="a script; arguments after it are its own")
    choices.add_choices(parser)
    parser.add_argument("--once", action="store_true", help="end after the first version")
    parser.add_argument("--text", action="store_true", help="print in the terminal instead of opening a page")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Profiles at every save until it is interrupted. Returns the status of the last version."""
    from tilescope.notebook import watching  # noqa: PLC0415

    if len(arguments.kernels) != 1 or not profile.is_script(arguments.kernels[0]):
        raise ValueError(f"watch takes one script: {' '.join(arguments.kernels)} names other things")
    watch = watching.Watch(
        arguments.kernels[0], profile.own_arguments(arguments.kernels[0], arguments.of_script), target=arguments.target,
        collect=arguments.collect, runs_dir=arguments.runs, settings=choices.settings(arguments),
    )  # fmt: skip
    pages = (
        ()
        if arguments.text or arguments.once
        else importlib.metadata.entry_points(group="tilescope.pages", name="watch")
    )
    for page in pages:
        with contextlib.suppress(ImportError):  # the dashboard's libraries are not installed
            return int(page.load()(watch))
    return asyncio.run(_follow(watch, once=arguments.once))


async def _follow(watch: Watch, *, once: bool) -> int:
    async for version in watch.follow():
        if version.state != "running":
            _print(watch, version)
            if once:
                return int(version.state == "failed")
            print(f"watching {', '.join(sorted(path.name for path in watch.files))}", flush=True)
    return 0


def _print(watch: Watch, version: Version) -> None:
    """Prints a version: what is wrong first, else what changed since the last good one; then the diff of the source."""
    from tilescope.models import terminal  # noqa: PLC0415

    compared = watch.compared(version)
    base = compared.baseline
    print(f"\n{version.title}, {version.seconds:.1f} s: {watch.script}")
    terminal.say(*(f"wrong: {said}" for said in version.wrong))
    if version.state == "failed":
        terminal.say(f"{base.title} stays the last good one" if base else "no version is good yet")
    for pair in compared.pairs if version.cases else ():
        _print_pair(pair, base.title if base else "", version.title)
    if compared.diff:
        print("\n".join(compared.diff))


def _print_pair(pair: versions.Pair, last: str, this: str) -> None:
    """Prints the findings that came and went, then the values of both versions; nothing of a case that is wrong."""
    from tilescope.models import terminal  # noqa: PLC0415

    baseline, candidate = pair.baseline, pair.candidate
    if candidate is None:
        terminal.say(f"gone: {baseline.title if baseline else ''}")
        return
    if any(finding.fault for finding in candidate.findings):
        return
    renamed = baseline and pair.how != "name"
    terminal.say(
        f"{candidate.title}{f', paired with {baseline.title} by its {pair.how}' if baseline and renamed else ''}"
    )
    for word, findings in (("new" if baseline else "found", pair.came), ("gone", pair.went)):
        for finding in findings:
            terminal.say(f"  {word}: {finding.title}{f', {finding.bound.text}' if finding.bound else ''}")
    headings = ["", *([last] if baseline else []), this, *(["change"] if baseline else [])]
    rows = [[change.label, *(change.texts() if baseline else change.texts()[1:2])] for change in pair.changes]
    print(terminal.render(headings, rows, len(headings)))
