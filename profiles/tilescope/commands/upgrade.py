"""``tilescope upgrade``: what other releases of Triton or PyTorch do to the launches of a script or of kernels."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tilescope.commands import choices, compare, running
from tilescope.hardware import device
from tilescope.jobs import packages, questions
from tilescope.jobs.packages import Packages
from tilescope.models import json_documents, terminal, upgrade
from tilescope.models.compare import Side
from tilescope.models.upgrade import Upgrade
from tilescope.runs import store
from tilescope.runs.store import LoadedRun

#: Without a kernel: every kernel of the library, in Triton, at this workload.
_LIBRARY = ("--impl", "triton", "--workload", "large")
#: Most launches that are named one by one.
_TOLD = 10


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Profiles a script or kernels under two sets of packages, each in a folder of its own that is installed once, and "
        "says which launches got worse. A set is releases (triton==3.9), folders of packages or environments, and NAME=value for "
        "variables. Status 0: no launch got worse; 1: some did, or failed; 2: nothing to compare."
    )
    parser.add_argument(
        "kernels",
        nargs="*",
        metavar="KERNEL",
        help="script.py (arguments of its own follow --), or kernels (the library)",
    )
    parser.add_argument(
        "--from", dest="before", nargs="+", default=[], metavar="PACKAGE", help="the baseline (as installed)"
    )
    parser.add_argument(
        "--to", dest="after", nargs="+", required=True, metavar="PACKAGE", help="what it is compared with"
    )
    parser.add_argument("--bisect", action="store_true", help="find the first release between the two that is worse")
    parser.add_argument(
        "--collect", default="", metavar="NAME,…", help="collectors (compiler; with a GPU torch_profiler, too)"
    )
    for name, what in (
        ("workload", "workloads"),
        ("impl", "implementations"),
        ("target", "architecture to compile for"),
    ):
        parser.add_argument(f"--{name}", default="", metavar=name.upper(), help=what)
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="where runs go ($TILESCOPE_RUNS)")
    parser.add_argument("--json", action="store_true", help="every launch as JSON (schema: upgrade)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdict and the counts that moved, or JSON. Returns 1 where a launch got worse."""
    sides = [packages.read(words) for words in (arguments.before, arguments.after)]
    releases = packages.releases_between(*sides) if arguments.bisect else []
    for script in filter(choices.is_script, arguments.kernels[-1:]):
        if not Path(script).is_file():
            raise ValueError(f"{script} cannot be run: no such file")
    # What cannot be installed is said before anything runs.
    used = [(packages.folder_of(side), side.folders, side.variables) for side in sides]
    if used[0] == used[1]:
        raise ValueError(f"both sides use the same packages: {sides[1].name}")
    baseline, candidate = (Side(_profiled(side, arguments)) for side in sides)
    found = upgrade.Upgrade(baseline, candidate, (sides[0].name, sides[1].name))
    steps = list(_bisected(found, releases, arguments)) if found.worse else []
    if arguments.json:
        print(json_documents.text(json_documents.upgrade(found, steps)))
    else:
        before, after = found.names
        terminal.say(
            f"{before} → {after}: {found.verdict}", *(f"worse: {upgrade.said(one)}" for one in found.worse[:_TOLD])
        )
        terminal.say(*(f"{release}: {said}" for release, said in steps), *found.configs, *found.alone)
        compare.tell_code(found.launches)
        running.tell(found.broken)
        terminal.say(f"runs: {baseline.loaded.folder} {candidate.loaded.folder}")
    return int(bool(found.worse or found.broken)) if found.launches or found.broken else 2


def _profiled(side: Packages, arguments: argparse.Namespace) -> LoadedRun:
    print(f"profiling under {side.name}", file=sys.stderr)
    timed = ",torch_profiler" if device.detect() and not arguments.target else ""
    words = ["--collect", arguments.collect or f"compiler{timed}"]
    for name in ("workload", "impl", "target"):
        words += [f"--{name}", getattr(arguments, name)] if getattr(arguments, name) else []
    kernels = arguments.kernels
    if not kernels:
        kernels = [entry["name"] for entry in asyncio.run(questions.describe())]
        words += [] if arguments.workload or arguments.impl else _LIBRARY
    return packages.profile(side, [*words, *kernels, *arguments.of_script], arguments.runs or store.runs_dir())


def _bisected(found: Upgrade, releases: Sequence[str], arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Each release that was tried and what it does to the worst launch, then the first that is worse."""

    def tried(release: str) -> str:
        side = Side(_profiled(packages.read([release]), arguments))
        return found.again(upgrade.Upgrade(found.baseline, side, (found.names[0], release)))

    if arguments.bisect:
        yield from upgrade.bisected(*found.names, releases, tried)
