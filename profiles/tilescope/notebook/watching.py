"""A script that is profiled again at every save: its versions, and what changed between two of them.

The terminal, notebooks and the page read ``Watch``. Each version runs in a process of its own, so nothing of an earlier version is left
and a version that crashes or hangs ends alone. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import importlib.util
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tilescope import collectors
from tilescope.hardware import device
from tilescope.jobs import kept_standby, process, supervisor, warm
from tilescope.jobs.job import Job
from tilescope.models import versions as comparing
from tilescope.notebook import capturing, script_jobs
from tilescope.runs import store

#: Seconds for which the interpreter counts a launch before it samples programs.
_LIMIT = 0.3
#: Milliseconds after which a save counts as finished, and between two looks at the files.
_SETTLED, _LOOK = 50, 50

#: Most characters of a script's output that a version keeps.
_OUTPUT = 64 << 10

State = Literal["running", "ready", "failed"]


@dataclass(eq=False)
class Version:
    """One version of the script. Its values come one by one while it is ``running``.

    ``doing`` says what it waits for. ``error`` is what ended it badly. ``unmade`` names the first launch whose programs did not all
    run, and ``why`` says why. The script lacks that launch's results: its output and its end then say nothing about the kernel.
    ``texts`` are the texts of the script's own files by path, ``run`` the folder of its run, ``output`` the last part of what the
    script printed, ``busy`` how busy others kept the GPU before it (``hardware.device.busy``). A ``failed`` version has an error, no launch, or a
    launch with wrong results.
    """

    number: int
    name: str = ""
    state: State = "running"
    doing: str = ""
    cases: Sequence[comparing.Case] = ()
    error: str = ""
    unmade: str = ""
    why: str = ""
    texts: Mapping[Path, str] = field(default_factory=dict)
    seconds: float = 0.0
    run: Path | None = None
    output: str = ""
    busy: float = 0.0

    @property
    def title(self) -> str:
        """Its name, or ``version 3``."""
        return self.name or f"version {self.number}"

    @property
    def wrong(self) -> list[str]:
        """What is wrong with it, a line each: its error, and faults of its launches with their lines of code."""
        faults = [finding for case in self.cases for finding in case.findings if finding.fault]
        return [*filter(None, [self.error]), *(f"{f.title}. {f.explanation or f.remedy}" for f in faults)]

    @property
    def doubt(self) -> str:
        """Why ``unmade`` was not made, once that is settled or where the reason is a line of code; else empty."""
        settled = not self.doing or ", line " in self.why
        return self.why if self.unmade and self.state == "ready" and settled else ""

    def hear(self, output: bytes) -> None:
        self.output = (self.output + output.decode(errors="replace"))[-_OUTPUT:]


@dataclass(frozen=True)
class Comparison:
    """A version beside its baseline, which is None for the first good one.

    ``diff`` has the lines of a unified diff. ``conditions`` says, a line each, where the times of the two were measured differently.
    """

    baseline: Version | None
    candidate: Version
    pairs: Sequence[comparing.Pair]
    diff: Sequence[str]
    conditions: Sequence[str] = ()


class Watch:
    """The versions of ``script``, which runs with ``arguments`` and again whenever it, or a file that it imports, is saved.

    ``collect`` names collectors; by default all that can run here but ncu. ``settings`` are as in ``profile``. Raises
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
        if not collect:
            quick = [name for name in collectors.COLLECTORS if name not in ("check", "ncu", *collectors.OPTIONAL)]
            collect = [name for name in quick if not collectors.load(name).unavailable()]
        given = {"arguments": list(arguments), "target": target, "collect": list(collect), "runs_dir": runs_dir}
        self._options: dict[str, Any] = given
        # Those that run under another program, which takes seconds to start.
        self._wrapped = [
            name for name in collect if supervisor.may_stand_by() and hasattr(collectors.load(name), "command")
        ]
        self._sampling = "interpreter_limit" not in (settings or {})
        self._settings = {"interpreter_limit": _LIMIT, **(settings or {})}
        #: Oldest first. A version that a save ended before it was ready is not among them; its number is not used again.
        self.versions: list[Version] = []
        self._made = 0
        #: The process of the next version, where it can be made ready.
        self._next: process.WorkerProcess | None = None
        #: The version that a user pinned; without one each is compared with the last good one before it.
        self.pinned: Version | None = None
        self._by_hand: dict[tuple[Version, Version], dict[int, int | None]] = {}
        self._changed: asyncio.Queue[Version] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None
        # The texts of the files at the last begin, and those that the last version has run.
        self._begun: Mapping[Path, str] = {}
        self._seen: Mapping[Path, str] = {}

    @property
    def files(self) -> frozenset[Path]:
        return frozenset({self.script.resolve(), *(path for version in self.versions for path in version.texts)})

    async def follow(self) -> AsyncGenerator[Version]:
        """Runs the script now and at every save; yields a version whenever it has changed. End it with ``aclose``."""
        warm.prepare()
        self.again()
        saving = asyncio.ensure_future(self._saved())
        try:
            while True:
                yield await self._changed.get()
        finally:
            try:
                for task in filter(None, (saving, self._work)):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            finally:
                await self._end_next()

    def again(self) -> None:
        """Makes a version of the files as they are now, in place of one that is being made."""
        if self._work:
            self._work.cancel()
        if self.versions and self.versions[-1].state == "running":
            self.versions.pop()
        self._made += 1
        before, self._begun = self._begun, {path: _text(path) for path in self.files}
        changed = [path for path, text in self._begun.items() if before.get(path) != text]
        version = Version(self._made, doing="starting")
        self.versions.append(version)
        self._changed.put_nowait(version)
        self._work = asyncio.ensure_future(self._make(version, changed))

    def compared(self, version: Version, baseline: Version | None = None) -> Comparison:
        """The version beside ``baseline``, else beside the pinned one, else beside the last good one before it."""
        before = self.versions[: self.versions.index(version)]
        good = next((one for one in reversed(before) if one.state == "ready"), None)
        base = baseline or (self.pinned if self.pinned is not version else None) or good
        by_hand = self._by_hand.get((base, version)) if base else None
        pairs = comparing.pairs(base.cases if base else (), version.cases, by_hand)
        texts = [{path.name: text for path, text in one.texts.items()} for one in (base, version) if one]
        other = comparing.conditions(version.busy, base.busy if base else 0.0, pairs, base.title if base else "")
        return Comparison(base, version, pairs, list(comparing.difference(*texts)) if base else [], other)

    def name(self, version: Version, name: str) -> None:
        """Names a version; an empty name gives it its number again."""
        version.name = name.strip()
        self._changed.put_nowait(version)

    def pin(self, version: Version | None) -> None:
        """Makes a version the baseline of all others; None releases it."""
        self.pinned = version
        for newest in self.versions[-1:]:
            self._changed.put_nowait(newest)

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
        import watchfiles  # noqa: PLC0415 - half a second

        while True:
            known = self.files
            async for saved in watchfiles.awatch(
                *{path.parent for path in known}, watch_filter=functools.partial(_is_among, known),
                debounce=_SETTLED, step=_SETTLED // 2, rust_timeout=_LOOK, yield_on_timeout=True, recursive=False,
            ):  # fmt: skip
                # A file may have been saved before it was watched.
                missed, self._seen = _differ(self._seen), {}
                # One save can be seen twice.
                again = self._work and not self._work.done() and not _differ(self._begun)
                if missed or (saved and not again):
                    self.again()
                if self.files != known:
                    break  # to watch the files that the script imports, too

    async def _make(self, version: Version, changed: Sequence[Path] = ()) -> None:
        began = time.monotonic()
        waking = asyncio.gather(*(asyncio.to_thread(kept_standby.wake, name) for name in self._wrapped))
        version.busy, job = await asyncio.to_thread(device.busy), None
        await waking
        if self._next and not (self._next.current and self._may_wait()):
            await self._end_next()
        for path in changed:
            # Python takes bytecode of an earlier text that was saved in the same second and is as long.
            with contextlib.suppress(OSError):
                Path(importlib.util.cache_from_source(str(path))).unlink()
        try:
            job = await self._profile(version)
        except (ValueError, OSError, process.StartError) as error:
            version.error = " ".join(str(error).split())
        if self._may_wait():
            with contextlib.suppress(ValueError, OSError, process.StartError):
                self._next = await script_jobs.started(
                    str(self.script), self._settings, on_output=bytes, waits=True, **self._options
                ).__aenter__()
        # A script that failed did not get to all its files.
        version.texts = {**{path: text for path, text in self._begun.items() if text}, **version.texts}
        self._seen, version.seconds = version.texts, time.monotonic() - began
        self._conclude(version)
        count = self._sampling and any("sampled" in case.values for case in version.cases)
        run = self._sampling and version.unmade and version.state == "ready"
        if run or count:
            version.doing = f"running every program of {version.unmade}" if run else "counting every program"
        self._changed.put_nowait(version)
        for name in self._wrapped:
            await asyncio.to_thread(kept_standby.leave, name)
        if job and (run or count):
            try:
                with (
                    tempfile.TemporaryDirectory(prefix="tilescope-exact-") as exact,
                    contextlib.suppress(ValueError, OSError, process.StartError),
                ):
                    await (self._run_all(version, Path(exact)) if run else self._count(version, job, Path(exact)))
            finally:  # also where the next save ends it
                self._conclude(version)
            self._changed.put_nowait(version)

    @staticmethod
    def _conclude(version: Version) -> None:
        version.doing, version.state = "", "failed" if version.wrong or not version.cases else "ready"

    async def _count(self, version: Version, job: Job, folder: Path) -> None:
        """Counts exactly what the version has sampled. Its run keeps the sample."""
        settings = {**job.settings, "interpreter_limit": capturing.LIMIT}
        exact = dataclasses.replace(job, collectors=("interpreter",), given=(), settings=settings, runs_dir=folder)
        counted = comparing.cases(store.open_run(await supervisor.run(exact)))
        version.cases = comparing.exact(version.cases, counted)

    async def _run_all(self, version: Version, folder: Path) -> None:
        """Runs the script again with every program that the usual limit allows, for exact counts and for what it says of the results."""

        def hear(event: dict[str, Any]) -> None:
            if event["event"] == "captured":
                whole.unmade, whole.why = event["unmade"], event["why"]

        whole = Version(version.number)
        settings = {**self._settings, "interpreter_limit": capturing.LIMIT}
        options = {**self._options, "collect": ["interpreter"], "runs_dir": folder}
        _, run, whole.error = await script_jobs.profile(
            str(self.script), settings, on_event=hear, on_output=whole.hear, **options
        )
        version.cases = comparing.exact(version.cases, comparing.cases(store.open_run(run)))
        version.output, version.error, version.unmade, version.why = whole.output, whole.error, whole.unmade, whole.why

    def _may_wait(self) -> bool:
        """Whether the next version's process may make its CUDA context ahead. A script may choose its GPU, and set variables that CUDA reads once."""
        chosen = any("CUDA_" in _text(path) for path in self.files)
        return supervisor.may_stand_by() and device.count() == 1 and not chosen

    async def _end_next(self) -> None:
        if self._next:
            await self._next.__aexit__(None, None, None)
        self._next = None

    async def _profile(self, version: Version) -> Job:
        async def refresh() -> None:
            while True:
                await come.wait()
                come.clear()
                with contextlib.suppress(store.StoreError):  # it has just been finished
                    loaded, _ = await asyncio.to_thread(store.open_partial, folder / f"{store.PARTIAL}{begun[0]}")
                    version.cases = await asyncio.to_thread(comparing.cases, loaded)
                    self._changed.put_nowait(version)

        def hear(event: dict[str, Any]) -> None:
            if event["event"] == "files":
                version.texts = {Path(path): text for path, text in event["texts"].items()}
            elif event["event"] == "captured":
                version.unmade, version.why = event["unmade"], event["why"]
            elif event["event"] == "start":
                begun.append(event["run"])
            elif event["event"] == "result":
                come.set()
            version.doing = event.get("doing", version.doing)

        come, begun, folder = asyncio.Event(), list[str](), self._options["runs_dir"] or store.runs_dir()
        refreshing, worker, self._next = asyncio.ensure_future(refresh()), self._next, None
        try:
            job, version.run, version.error = await script_jobs.profile(
                str(self.script), self._settings, on_event=hear, on_output=version.hear, worker=worker, **self._options
            )
        finally:
            refreshing.cancel()
        version.cases = comparing.cases(store.open_run(version.run))
        return job


def _is_among(watched: frozenset[Path], change: object, path: str) -> bool:
    return Path(path) in watched


def _differ(texts: Mapping[Path, str]) -> bool:
    return any(_text(path) != text for path, text in texts.items())


def _text(path: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
