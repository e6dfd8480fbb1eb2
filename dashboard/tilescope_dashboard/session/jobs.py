"""Jobs of the server process. They outlive the page that started them, and every session sees them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import panel as pn
from panel.io.state import set_curdoc
from tilescope.jobs import plan, supervisor
from tilescope.notebook import script_jobs
from tilescope.table.case import Case, readable

LOG = logging.getLogger(__name__)

WAITING, RUNNING, CANCELLING = "waiting", "running", "cancelling"
DONE, CANCELLED, FAILED = "done", "cancelled", "failed"
_FINISHED = frozenset({DONE, CANCELLED, FAILED})
#: Finished jobs kept in the list; unfinished ones all are.
_KEPT = 20
#: Seconds without a page after which a job counts as abandoned. Reloading a page takes less.
_GONE = 60.0


@dataclass
class JobState:
    """State of a job: ``index`` of ``of`` cases are done. Times are of ``time.monotonic``, in seconds.

    ``swept`` names the kernels whose configs it sweeps. ``person`` and ``tab`` identify its owner (see ``views.jobs.tab_job``), empty where
    unknown; ``left`` is when the owner's last page closed. ``unfinished`` says what a job that ended by itself did not do, and why.
    ``told`` is set once the owner's page has shown its end. ``pace`` is the seconds a case of the last job of this title, 0 if unknown.
    """

    number: int
    title: str
    swept: frozenset[str] = frozenset()
    of: int = 0
    status: str = WAITING
    index: int = 0
    doing: str = ""
    error: str = ""
    unfinished: str = ""
    folder: Path | None = None
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    failures: int = 0
    person: str = ""
    tab: str = ""
    told: bool = False
    left: float = field(default_factory=time.monotonic)
    began: float | None = None
    pace: float = 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds until its end, by its finished cases, else by the last job of this title; None where neither is known."""
        spent = time.monotonic() - self.began if self.began and self.active else 0.0
        pace = spent / self.index if self.index else self.pace
        return max(0.0, pace * self.of - spent) if pace and self.of and self.active else None

    @property
    def active(self) -> bool:
        """Whether it can still be cancelled."""
        return self.status not in _FINISHED

    @property
    def elapsed(self) -> float:
        """Seconds from its request to its end, or to now."""
        return (self.ended or time.monotonic()) - self.started


class Watched:
    """Tells its watchers of its changes."""

    def __init__(self) -> None:
        self._watchers: set[Callable[[], None]] = set()

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call ``watcher`` after every change. Returns a function that stops it."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def _tell(self) -> None:
        for watcher in list(self._watchers):
            # A watcher of a closing page must end neither the job nor the others.
            with contextlib.suppress(Exception):
                watcher()


class JobManager(Watched):
    """Runs requests one after another on the server's event loop, and notifies watchers of changes.

    ``planner``, ``run`` and ``script`` are ``tilescope.jobs.plan.plan``, ``tilescope.jobs.supervisor.run`` and
    ``tilescope.notebook.script_jobs.profile``; tests give their own.
    """

    def __init__(
        self, planner: Callable[..., Any] = plan.plan, run: Callable[..., Any] = supervisor.run,
        script: Callable[..., Any] = script_jobs.profile,
    ) -> None:  # fmt: skip
        super().__init__()
        self.jobs: list[JobState] = []
        self._plan, self._run, self._script = planner, run, script
        self._numbers = itertools.count(1)
        self._turn = asyncio.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pages: set[Callable[[JobState], bool]] = set()
        #: Seconds a case of the last finished job, by its title.
        self._paces: dict[str, float] = {}

    @property
    def current(self) -> JobState | None:
        """The newest job, finished or not."""
        return self.jobs[-1] if self.jobs else None

    def start(self, request: plan.Request) -> JobState:
        """Queue a request and return at once. One job runs at a time, as timings disturb each other."""
        swept = frozenset(Case(kernel, "", "", "").name for kernel in request.kernels if request.configs)
        state = JobState(next(self._numbers), request.title or ", ".join(request.kernels), swept)
        return self._queue(state, lambda: self._profile(request, state))

    def start_script(self, script: Path) -> JobState:
        """As ``start``, for the launches of a person's script."""
        state = JobState(next(self._numbers), script.name)
        return self._queue(state, lambda: self._profile_script(script, state))

    def _queue(self, state: JobState, work: Callable[[], Awaitable[Path]]) -> JobState:
        self.jobs.append(state)
        self._forget()
        self._tasks[state.number] = asyncio.get_running_loop().create_task(self._follow(work, state))
        self._tell()
        return state

    def cancel(self, number: int) -> None:
        """Ask a job to stop. Finished cases are kept."""
        task = self._tasks.get(number)
        state = next((s for s in self.jobs if s.number == number), None)
        if task and state and state.active:
            state.status = CANCELLING
            task.cancel()
            self._tell()

    @property
    def active(self) -> list[JobState]:
        """The running job and the waiting ones, in order."""
        return [job for job in self.jobs if job.active]

    def enter(self, mine: Callable[[JobState], bool]) -> Callable[[], None]:
        """Register an open page; ``mine`` tells whether a job is its person's. Returns a function to call when the page closes."""
        self._pages.add(mine)

        def leave() -> None:
            self._pages.discard(mine)
            for job in filter(mine, self.jobs):
                job.left = time.monotonic()

        return leave

    def abandoned(self, job: JobState) -> bool:
        """Whether the job's owner has had no page open for ``_GONE`` seconds, so that others may cancel it."""
        return time.monotonic() - job.left > _GONE and not any(mine(job) for mine in self._pages)

    async def _profile(self, request: plan.Request, state: JobState) -> Path:
        job = await self._plan(request)
        state.of, state.doing = len(job.cases) * len(job.collectors), "starting the worker"
        self._tell()
        folder: Path = await self._run(job, functools.partial(self._on_event, state))
        return folder

    async def _profile_script(self, script: Path, state: JobState) -> Path:
        def print_line(output: bytes) -> None:
            for line in filter(None, map(str.strip, output.decode(errors="replace").splitlines())):
                self._on_event(state, {"event": "case", "doing": line})

        print_line(f"running {script.name}".encode())
        told = functools.partial(self._on_event, state)
        made: tuple[Any, Path, str] = await self._script(
            str(script), {}, title=script.name, on_event=told, on_output=print_line
        )
        _, folder, ended = made
        if ended:
            state.unfinished = f"{ended}: its launches until then were profiled"
        return folder

    async def _follow(self, work: Callable[[], Awaitable[Path]], state: JobState) -> None:
        try:
            async with self._turn:
                state.status, state.doing = RUNNING, "reading the kernel"
                state.began, state.pace = time.monotonic(), self._paces.get(state.title, 0.0)
                self._tell()
                state.folder = await work()
            state.status = DONE
            if state.of and state.began:
                self._paces[state.title] = (time.monotonic() - state.began) / state.of
        except asyncio.CancelledError:
            state.status = CANCELLED
        except ValueError as error:
            # A message of the planner, the worker or the store for the person.
            state.status, state.error = FAILED, str(error)
        except Exception as error:
            LOG.exception("job %s failed", state.number)
            state.status, state.error = FAILED, str(error) or type(error).__name__
        finally:
            state.ended = time.monotonic()
            self._tasks.pop(state.number, None)
            self._forget()
            self._tell()

    def _on_event(self, state: JobState, event: Mapping[str, Any]) -> None:
        kind, event = event["event"], {**event, "case": readable(event.get("case", ""))}
        state.index, state.of = event.get("index", state.index), event.get("of", state.of)
        if event.get("doing"):
            state.doing = " · ".join(str(event[key]) for key in ("collector", "case", "doing") if event.get(key))
            state.log.append(state.doing)
        if kind in ("error", "skipped"):
            state.failures += kind == "error"
            about = " · ".join(str(event[key]) for key in ("collector", "case") if event.get(key))
            state.log.append(
                ": ".join(filter(None, ["failed" if kind == "error" else "skipped", about, event.get("message")]))
            )
        elif kind == "done" and event.get("folder"):
            state.folder, state.unfinished = Path(event["folder"]), str(event.get("why", ""))
        self._tell()

    def _forget(self) -> None:
        """Drop the oldest finished jobs."""
        finished = [job for job in self.jobs if not job.active]
        for job in finished[: max(0, len(finished) - _KEPT)]:
            self.jobs.remove(job)


class Follower:
    """Calls ``draw`` at the session's tick after the changes that ``watch`` tells, once for several at a time, until the session ends."""

    def __init__(self, watch: Callable[[Callable[[], None]], Callable[[], None]], draw: Callable[[], Any]) -> None:
        self._draw, self._pending, self._ticking, self._doc = draw, False, None, pn.state.curdoc
        unwatch = watch(self.changed)
        pn.state.on_session_destroyed(lambda _: unwatch())

    def changed(self) -> None:
        """Schedule a redraw; without a session, draw. Called in the server's event loop, for each change."""
        if self._doc is None:
            self._draw()
        elif not self._pending:
            self._pending = True
            self._doc.add_next_tick_callback(self._redraw)

    def each_second(self, wanted: bool) -> None:
        """Also draw each second, or stop that. Uses the document's callback, as Panel's periodic callbacks mark every page busy."""
        if wanted and self._ticking is None and self._doc is not None:
            self._ticking = self._doc.add_periodic_callback(self._redraw, 1000)
        elif not wanted and self._ticking is not None:
            self._doc.remove_periodic_callback(self._ticking)
            self._ticking = None

    def _redraw(self) -> None:
        self._pending = False
        # Another session may have told of the change. Panel would take this page for that session's.
        with set_curdoc(self._doc):
            self._draw()


def shared() -> JobManager:
    """The server's job manager, shared by its sessions."""
    return pn.state.as_cached("tilescope-jobs", JobManager)
