"""A script that is profiled again at every save: its versions, and what changed between two of them.

The terminal, notebooks and the page read ``Watch``. Each version runs in a process of its own, so nothing of an earlier version is left
and a version that crashes or hangs ends alone. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tilescope.models import versions as comparing

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: Modules that each version starts with.
_FIRST = ("torch", "triton", "triton.language", "tilescope.notebook.watching", "tilescope.notebook.capturing",
          "tilescope.jobs.supervisor", "tilescope.execution.execute", "tilescope_kernels.catalog", "tilescope_kernels.dispatch", "tilescope.models.text_table")  # fmt: skip
#: Seconds for which the interpreter counts a launch before it samples programs.
_LIMIT = 1.0
#: Milliseconds after which a save counts as finished, and between two looks at the files.
_SETTLED, _LOOK = 50, 50

State = Literal["running", "ready", "failed"]


@dataclass(eq=False)
class Version:
    """One version of the script. Its values come one by one while it is ``running``.

    ``doing`` says what it waits for. ``error`` is what ended it badly. ``texts`` are the texts of the script's own files by path,
    ``run`` the folder of its run. A ``failed`` version has an error, no launch, or a launch with wrong results.
    """

    number: int
    name: str = ""
    state: State = "running"
    doing: str = ""
    cases: Sequence[comparing.Case] = ()
    error: str = ""
    texts: Mapping[Path, str] = field(default_factory=dict)
    seconds: float = 0.0
    run: Path | None = None

    @property
    def title(self) -> str:
        """Its name, or ``version 3``."""
        return self.name or f"version {self.number}"

    @property
    def wrong(self) -> list[str]:
        """What is wrong with it, a line each: its error, and faults of its launches with their lines of code."""
        faults = [finding for case in self.cases for finding in case.findings if finding.fault]
        return [*filter(None, [self.error]), *(f"{f.title}. {f.explanation or f.remedy}" for f in faults)]


@dataclass(frozen=True)
class Comparison:
    """A version beside its baseline, which is None for the first good one. ``diff`` has the lines of a unified diff."""

    baseline: Version | None
    candidate: Version
    pairs: Sequence[comparing.Pair]
    diff: Sequence[str]


class Watch:
    """The versions of ``script``, which runs with ``arguments`` and again whenever it, or a file that it imports, is saved.

    ``collect`` names collectors; by default all that can run here but ncu. ``settings`` are those of ``jobs.job.Job``. Raises
    ValueError for a script that does not exist.
    """

    def __init__(
        self,
        script: Path | str,
        arguments: Sequence[str] = (),
        *,
        target: str = "",
        collect: Sequence[str] = (),
        runs_dir: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.script = Path(script)
        if not self.script.is_file():
            raise ValueError(f"{script} does not exist")
        self._options = {
            "arguments": tuple(arguments),
            "target": target,
            "collect": tuple(collect),
            "runs_dir": runs_dir,
        }
        self._settings = {"interpreter_limit": _LIMIT, **(settings or {})}
        #: Oldest first. A version that a save ended before it had values is not among them.
        self.versions: list[Version] = []
        #: The version that a user pinned; without one each is compared with the last good one before it.
        self.pinned: Version | None = None
        self._by_hand: dict[tuple[Version, Version], dict[int, int | None]] = {}
        self._changed: asyncio.Queue[Version] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None
        self._seen: Mapping[Path, str] = {}

    @property
    def files(self) -> frozenset[Path]:
        """The script and its own files that it imported so far."""
        return frozenset({self.script.resolve(), *(path for version in self.versions for path in version.texts)})

    async def follow(self) -> AsyncIterator[Version]:
        """Runs the script now and at every save; yields a version whenever it has changed. End it with ``aclose``."""
        self.again()
        saving = asyncio.ensure_future(self._saved())
        try:
            while True:
                yield await self._changed.get()
        finally:
            for task in filter(None, (saving, self._work)):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def again(self) -> None:
        """Makes a version of the files as they are now, in place of one that is being made."""
        if self._work:
            self._work.cancel()
        if self.versions and self.versions[-1].state == "running":
            self.versions.pop()
        version = Version(self.versions[-1].number + 1 if self.versions else 1, doing="starting")
        self.versions.append(version)
        self._changed.put_nowait(version)
        self._work = asyncio.ensure_future(self._make(version))

    def compared(self, version: Version, baseline: Version | None = None) -> Comparison:
        """The version beside ``baseline``, else beside the pinned one, else beside the last good one before it."""
        before = self.versions[: self.versions.index(version)]
        good = next((one for one in reversed(before) if one.state == "ready"), None)
        base = baseline or (self.pinned if self.pinned is not version else None) or good
        by_hand = self._by_hand.get((base, version)) if base else None
        pairs = comparing.pairs(base.cases if base else (), version.cases, by_hand)
        texts = [{path.name: text for path, text in one.texts.items()} for one in (base, version) if one]
        return Comparison(base, version, pairs, list(comparing.difference(*texts)) if base else [])

    def name(self, version: Version, name: str) -> None:
        """Names a version; an empty name gives it its number again."""
        version.name = name.strip()
        self._changed.put_nowait(version)

    def pin(self, version: Version | None) -> None:
        """Makes a version the baseline of all others; None releases it."""
        self.pinned = version
        if known := version or (self.versions[-1] if self.versions else None):
            self._changed.put_nowait(known)

    def delete(self, version: Version) -> None:
        """Forgets a version that is made; its run stays. Raises ValueError for the one that is being made."""
        if version.state == "running":
            raise ValueError(f"{version.title} is being made: delete it once it is")
        self.versions.remove(version)
        self.pinned = None if self.pinned is version else self.pinned
        self._changed.put_nowait(version)

    def pair(self, version: Version, case: comparing.Case, baseline: Version, other: comparing.Case | None) -> None:
        """Pairs a launch of ``version`` with one of ``baseline``, or with none."""
        places = self._by_hand.setdefault((baseline, version), {})
        places[list(version.cases).index(case)] = None if other is None else list(baseline.cases).index(other)
        self._changed.put_nowait(version)

    async def _saved(self) -> None:
        """Makes a version at every save."""
        import watchfiles  # noqa: PLC0415 - half a second

        while True:
            known = self.files
            async for saved in watchfiles.awatch(
                *{path.parent for path in known}, watch_filter=functools.partial(_is_among, known),
                debounce=_SETTLED, step=_SETTLED // 2, rust_timeout=_LOOK, yield_on_timeout=True, recursive=False,
            ):  # fmt: skip
                # A file may have been saved before it was watched.
                missed, self._seen = any(_text(path) != text for path, text in self._seen.items()), {}
                if saved or missed:
                    self.again()
                if self.files != known:
                    break  # to watch the files that the script imports, too

    async def _make(self, version: Version) -> None:
        """Makes the version in another process."""
        began, context = time.monotonic(), multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_FIRST))
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_made, args=(self.script, self._options, self._settings, sending))
        process.start()
        sending.close()
        come = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(receiving.fileno(), come.set)
        try:
            await come.wait()
            with contextlib.suppress(EOFError):
                version.cases, version.texts, version.error, version.run = receiving.recv()
            process.join(1.0)
            if not (version.cases or version.error):
                version.error = f"the process ended with status {process.exitcode}"
        finally:
            loop.remove_reader(receiving.fileno())
            receiving.close()
            process.kill()
            process.join()
        self._seen, version.seconds, version.doing = version.texts, time.monotonic() - began, ""
        version.state = "failed" if version.wrong or not version.cases else "ready"
        self._changed.put_nowait(version)


def _is_among(watched: frozenset[Path], change: object, path: str) -> bool:
    return Path(path) in watched


def _text(path: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _made(script: Path, options: Mapping[str, Any], settings: Mapping[str, Any], sending: Connection) -> None:
    """Makes a version in its own process. Without a choice of collectors ncu is left out: CUPTI counts bytes in less time."""
    from tilescope import collectors  # noqa: PLC0415
    from tilescope.jobs import supervisor  # noqa: PLC0415
    from tilescope.notebook import script_running  # noqa: PLC0415
    from tilescope.runs import store  # noqa: PLC0415

    before, cases, texts, folder, error = set(sys.modules), list[comparing.Case](), dict[Path, str](), None, ""
    quick = [name for name in collectors.COLLECTORS if name not in ("ncu", *collectors.OPTIONAL)]
    collect = options["collect"] or [name for name in quick if not collectors.load(name).unavailable()]
    try:
        try:
            capture, job, error = script_running.captured(str(script), settings, **{**options, "collect": collect})
        finally:
            texts = {path: _text(path) for path in _own_files(before, script)}
        folder = asyncio.run(supervisor.run(job))
        cases = comparing.cases(capture.keep(store.open_run(folder)))
    except (ValueError, OSError) as failed:
        error = " ".join(str(failed).split())
    sending.send((cases, texts, error, folder))


def _own_files(before: set[str], script: Path) -> list[Path]:
    """The script and the files that it imported, except those of installed packages, of Python and of Tilescope."""
    from tilescope.captures import SPEC_FILE  # noqa: PLC0415

    library, theirs = Path(sysconfig.get_path("stdlib")).resolve(), {"site-packages", "dist-packages", SPEC_FILE}
    names = [name for name in sys.modules if name not in before and name.partition(".")[0] != "tilescope"]
    files = [str(script), *(getattr(sys.modules[name], "__file__", None) for name in names)]
    paths = dict.fromkeys(Path(file).resolve() for file in files if file and file.endswith(".py"))
    return [path for path in paths if path.is_file() and library not in path.parents and not theirs & {*path.parts}]
