"""``tilescope watch``: profiles a script again at every save, and prints what changed since the last good version.

Each version runs in a process of its own, forked from one that has imported torch and Triton (``multiprocessing``'s fork server), so
nothing of an earlier version is left. A version that fails says why; the next one is compared with the last good one.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.commands import choices, profile

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tilescope.models import versions

#: Modules that each version starts with.
_FIRST = ("torch", "triton", "triton.language", "tilescope.commands.watch", "tilescope.notebook.capturing",
          "tilescope.jobs.supervisor", "tilescope.execution.execute", "tilescope_kernels.catalog", "tilescope_kernels.dispatch", "tilescope.models.text_table")  # fmt: skip
#: Seconds for which the interpreter counts a launch before it samples programs.
_LIMIT = 1.0
#: Milliseconds after which a save counts as finished, and between two looks at a version that runs.
_SETTLED, _LOOK = 50, 50


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("watch", help="profile a script again at every save, and say what changed")
    parser.add_argument("kernels", nargs="+", metavar="SCRIPT", help="a script; arguments after it are its own")
    choices.add_choices(parser)
    parser.add_argument("--once", action="store_true", help="end after the first version")
    parser.set_defaults(run=run, title="")


@dataclass
class Version:
    """One version of the script: its cases, the ``error`` that ended it, and the texts of its files by path."""

    cases: list[versions.Case] = field(default_factory=list)
    error: str = ""
    texts: Mapping[Path, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether every case has values, and none is wrong."""
        return not self.error and bool(self.cases) and not any(f.fault for case in self.cases for f in case.findings)


def run(arguments: argparse.Namespace) -> int:
    """Profiles at every save until it is interrupted. Returns the status of the last version."""
    if len(arguments.kernels) != 1 or not profile.is_script(arguments.kernels[0]):
        raise ValueError(f"watch takes one script: {' '.join(arguments.kernels)} names other things")
    script = Path(arguments.kernels[0])
    if not script.is_file():
        raise ValueError(f"{script} does not exist")
    arguments.interpreter_limit = arguments.interpreter_limit or _LIMIT
    good: tuple[int, Version] | None = None
    for number, version in enumerate(_versions(arguments, script), 1):
        _print(number, version, good, script)
        good = (number, version) if version.is_good else good
        if arguments.once:
            return int(not version.is_good)
        print(f"watching {', '.join(sorted(path.name for path in version.texts))}", flush=True)
    return 0


class _Work:
    """A process that makes a version."""

    def __init__(self, context: Any, arguments: argparse.Namespace) -> None:
        self._receiving, sending = context.Pipe(duplex=False)
        self._process = context.Process(target=_make, args=(arguments, sending))
        self._began = time.monotonic()
        self._process.start()
        sending.close()

    def is_done(self) -> bool:
        return bool(self._receiving.poll()) or not self._process.is_alive()

    def version(self) -> Version:
        try:
            made: Version = self._receiving.recv()
        except EOFError:
            made = Version(error=f"the process ended with status {self._process.exitcode}")
        made.seconds = time.monotonic() - self._began
        return made

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def _versions(arguments: argparse.Namespace, script: Path) -> Iterator[Version]:
    """The versions as they are made. A save ends the one that is being made, and the next begins."""
    import watchfiles  # noqa: PLC0415

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_FIRST))
    watched = frozenset({script.resolve()})
    work: _Work | None = _Work(context, arguments)
    seen: Mapping[Path, str] = {}
    try:
        while True:
            known = watched
            for saved in watchfiles.watch(
                *{path.parent for path in known}, watch_filter=functools.partial(_is_among, known),
                debounce=_SETTLED, step=_SETTLED // 2, rust_timeout=_LOOK, yield_on_timeout=True, recursive=False,
            ):  # fmt: skip
                # A file may have been saved before it was watched.
                missed, seen = any(_text(path) != text for path, text in seen.items()), {}
                if saved or missed:
                    if work:
                        work.stop()
                    work = _Work(context, arguments)
                elif work and work.is_done():
                    version, work = work.version(), None
                    watched, seen = watched | version.texts.keys(), version.texts
                    yield version
                    if watched != known:
                        break  # to watch the files that the script imports, too
    finally:
        if work:
            work.stop()


def _is_among(watched: frozenset[Path], change: object, path: str) -> bool:
    return Path(path) in watched


def _text(path: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _make(arguments: argparse.Namespace, sending: Connection) -> None:
    """Makes a version in its own process. Without a choice of collectors ncu is left out: CUPTI counts bytes in less time."""
    import asyncio  # noqa: PLC0415

    from tilescope import collectors  # noqa: PLC0415
    from tilescope.jobs import supervisor  # noqa: PLC0415
    from tilescope.models import versions  # noqa: PLC0415
    from tilescope.runs import store  # noqa: PLC0415

    before, made = set(sys.modules), Version()
    quick = [name for name in collectors.COLLECTORS if name not in ("ncu", *collectors.OPTIONAL)]
    arguments.collect = arguments.collect or [name for name in quick if not collectors.load(name).unavailable()]
    try:
        try:
            capture, job, made.error = profile.captured(arguments)
        finally:
            own = _own_files(before, arguments.kernels[0])
            made.texts = {path: _text(path) for path in own}
        loaded = capture.keep(store.open_run(asyncio.run(supervisor.run(job))))
        made.cases = versions.cases(loaded)
    except (ValueError, OSError) as error:
        made.error = " ".join(str(error).split())
    sending.send(made)


def _own_files(before: set[str], script: str) -> list[Path]:
    """The script and the files that it imported, except those of installed packages, of Python and of Tilescope."""
    from tilescope.captures import SPEC_FILE  # noqa: PLC0415

    library, theirs = Path(sysconfig.get_path("stdlib")).resolve(), {"site-packages", "dist-packages", SPEC_FILE}
    names = [name for name in sys.modules if name not in before and name.partition(".")[0] != "tilescope"]
    files = [getattr(sys.modules[name], "__file__", None) for name in names]
    paths = dict.fromkeys(Path(file).resolve() for file in [script, *files] if file and file.endswith(".py"))
    return [path for path in paths if path.is_file() and library not in path.parents and not theirs & {*path.parts}]


def _print(number: int, version: Version, good: tuple[int, Version] | None, script: Path) -> None:
    """Prints a version: what is wrong first, else what changed since the last good one; then the diff of the source."""
    from tilescope.models import terminal, versions  # noqa: PLC0415

    print(f"\nversion {number}, {version.seconds:.1f} s: {script}")
    faults = [finding for case in version.cases for finding in case.findings if finding.fault]
    wrong = [version.error, *(f"{fault.title}. {fault.explanation or fault.remedy}" for fault in faults)]
    terminal.say(*(f"wrong: {said}" for said in wrong if said))
    if not version.is_good:
        terminal.say(f"version {good[0]} stays the last good one" if good else "no version is good yet")
    last, before = good or (0, Version())
    if version.cases:
        for pair in versions.pairs(before.cases, version.cases):
            _print_pair(pair, last, number)
    if good:
        texts = [{path.name: text for path, text in one.texts.items()} for one in (before, version)]
        print("\n".join(versions.difference(*texts)))


def _print_pair(pair: versions.Pair, last: int, number: int) -> None:
    """Prints the findings that came and went, then the values of both versions; nothing of a case that is wrong."""
    from tilescope.models import terminal, versions  # noqa: PLC0415

    baseline, candidate = pair.baseline, pair.candidate
    if candidate is None:
        terminal.say(f"gone: {baseline.title if baseline else ''}")
        return
    if any(finding.fault for finding in candidate.findings):
        return
    renamed = f", paired with {baseline.title} by its place" if baseline and pair.how == "place" else ""
    terminal.say(f"{candidate.title}{renamed}")
    came, went = versions.came_and_went(pair)
    for word, findings in (("new" if baseline else "found", came), ("gone", went)):
        for finding in findings:
            terminal.say(f"  {word}: {finding.title}{f', {finding.bound.text}' if finding.bound else ''}")
    changes = versions.changes(pair)
    headings = ["", *([f"version {last}"] if baseline else []), f"version {number}", *(["change"] if baseline else [])]
    rows = [[change.label, *(change.texts() if baseline else change.texts()[1:2])] for change in changes]
    print(terminal.render(headings, rows, len(headings)))
