"""One worker process on some of a collector's cases: what it says of them, and who is to blame when it ends early.

A case that its worker dies of, every time, is that case's failure. What the machine lacked is not: such a case is left to
another process, and so is one that was never tried.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilescope.jobs import environment
from tilescope.jobs.bounded_log import last_line, tail
from tilescope.jobs.process import StartError, WorkerProcess
from tilescope.runs import store
from tilescope.table.case import Case

if TYPE_CHECKING:
    from tilescope.jobs.running_job import Session

#: Processes that are tried without any of them getting on: for a case that kills them, and for cases never reached.
TRIES = 3


@dataclass(frozen=True)
class Outcome:
    """What an attempt left: cases for a fresh process, ``first`` those that nothing speaks against, ``last`` the others.

    ``obstacle`` is what kept it from them, for a person, and ``detail`` what it printed. ``hopeless``: another process would
    meet the same. ``settled``: the collector itself says that it gives nothing here, of none of the cases. ``counted``: what
    went wrong is counted against a case, which can happen to it so often only.
    """

    first: tuple[Case, ...] = ()
    last: tuple[Case, ...] = ()
    obstacle: str = ""
    detail: str = ""
    hopeless: bool = False
    settled: bool = False
    counted: bool = False


class Attempt:
    """``run`` it once."""

    def __init__(self, session: Session, name: str, module: ModuleType, cases: list[Case]) -> None:
        self.session, self.name, self.module = session, name, module
        self.open = {case.id: case for case in cases}
        self.wrapped: list[Case] = []
        #: Cases that the machine had no room for, say.
        self.later: dict[str, Case] = {}
        self.obstacle = self.detail = ""
        self.current: Case | None = None
        self.doing = ""
        self.finished = self.refused = self.begun = False
        self.folder = session.writer.artefact_folder(name)

    async def run(self) -> Outcome:
        """Goes through the cases as far as the process lives."""
        job = {
            "action": "capture",
            "collector": self.name,
            "cases": [case.to_json() for case in self.open.values()],
            "folder": str(self.folder),
            "settings": dict(self.session.job.settings),
        }
        command = getattr(self.module, "command", None)
        wrap = (lambda argv: command(argv, self.folder)) if command else None
        variables: dict[str, str] = getattr(self.module, "environment", dict)()
        killed = environment.oom_kills()
        try:
            async with WorkerProcess(job, wrap, variables) as worker:
                try:
                    async for event in worker.events(self.session.patience):
                        await self.hear(event)
                except asyncio.CancelledError:
                    await worker.stop()
                    for event in worker.drain():
                        await self.hear(event)
                    with contextlib.suppress(Exception):
                        await self.unwrap()
                    raise
                return await self.conclude(worker, environment.oom_kills() > killed)
        except StartError as error:
            return self.left(str(error), hopeless=not error.lacking)

    async def hear(self, event: Mapping[str, Any]) -> None:
        """Takes one event. Of a case that is settled already nothing more is believed."""
        kind, case = event["event"], self.open.get(event.get("case", ""))
        if kind == "start":
            self.session.emit({"event": "waiting", "collector": self.name, "doing": "starting the worker"})
        elif kind == "case" and case:
            self.begun = True
            if (self.current, self.doing) != (case, event["doing"]):
                self.current, self.doing = case, event["doing"]
                self.session.emit({"event": "case", "case": case.id, "collector": self.name, "doing": event["doing"]})
        elif kind == "done":
            self.finished = True
        elif kind == "error" and not event.get("case"):
            self.refused, self.current = True, None
            self.obstacle, self.detail = event["message"], event.get("detail", "")
            if lacking := event.get("environment"):
                self.refused, self.obstacle = False, _machine(lacking)
        elif case and kind in ("error", "skipped", "result"):
            del self.open[case.id]
            self.current = None
            await self.settle(kind, case, event)

    async def settle(self, kind: str, case: Case, event: Mapping[str, Any]) -> None:
        """What the worker says it came to with a case."""
        if kind == "error" and event.get("environment"):
            self.later[case.id] = case
            self.obstacle, self.detail = _machine(event["environment"]), event.get("detail", "")
        elif kind == "error":
            self.session.fail(case, self.name, event["message"], event.get("detail", ""))
        elif kind == "skipped":
            self.session.skip(case, self.name, event["message"])
        elif hasattr(self.module, "command"):
            self.wrapped.append(case)
        elif not await self.session.keep(self.name, self.module, case):
            self.session.fail(case, self.name, f"{self.name} left no artefact")

    async def unwrap(self) -> list[Case]:
        """Turns what the wrapper wrote into one artefact a case and keeps those; returns the cases without one.

        Raises what the collector's ``finish`` raises when the wrapper wrote nothing of use.
        """
        if not self.wrapped:
            return []
        await asyncio.to_thread(self.module.finish, self.folder, self.wrapped)
        return [case for case in self.wrapped if not await self.session.keep(self.name, self.module, case)]

    async def conclude(self, worker: WorkerProcess, out_of_memory: bool) -> Outcome:
        """After the process ended: what its wrapper counted, who is to blame, and which cases deserve another."""
        log = worker.log()
        if self.refused:
            return self.left(self.obstacle, self.detail, hopeless=not self.begun)
        try:
            missing = await self.unwrap()
        except store.StoreError:
            raise
        except Exception as error:
            missing = list(self.wrapped)
            if self.current is None:
                return self.blame_wrapper(missing, one_line(error), log)
        if self.current is not None:
            return self.blame(self.current, worker, missing, log, out_of_memory)
        for case in missing:
            self.session.skip(case, self.name, "it launches nothing that could be counted")
        if not self.finished and not self.begun and not self.obstacle:
            explain = getattr(self.module, "explain", None)
            explained = explain(log) if explain else None
            last = explained or (_machine("out of memory") if out_of_memory else last_line(log))
            text = f"worker {worker.ending()} before its first case"
            said, detail = f"{text}: {last}" if last else text, tail(log)
            return Outcome(obstacle=said, detail=detail, settled=True) if explained else self.left(said, detail)
        between = "" if self.finished else f"worker {worker.ending()} between two cases"
        return self.left(self.obstacle or between, self.detail or tail(log))

    def blame(self, case: Case, worker: WorkerProcess, missing: list[Case], log: str, out_of_memory: bool) -> Outcome:
        """The process ended at ``case``: by its doing, or by what came from outside, which is tried again."""
        session = self.session
        session.writer.artefact_path(self.name, case, self.module.SUFFIX).unlink(missing_ok=True)
        silence = f" for {session.patience:g} s" if worker.silent else ""
        ending = worker.ending().replace("answer", f"answer{silence}")
        text = f"worker {ending} while {self.doing} {case.id}; finished cases are kept"
        del self.open[case.id]
        again: list[Case] = []
        counted = False
        limit = worker.signal in environment.LIMITS
        outside = worker.signal in environment.FROM_OUTSIDE and not worker.silent
        if outside:
            session.killed[self.name, case.id] += 1
        if limit or (outside and out_of_memory):
            lacking = "out of memory" if not limit else f"a limit of this process's ({worker.signal})"
            self.obstacle, self.detail, again = f"{_machine(lacking)}: {text}", tail(log), [case]
        elif outside and session.killed[self.name, case.id] < TRIES:
            self.obstacle, self.detail, again, counted = text, tail(log), [case], True
        else:
            session.fail(case, self.name, text, tail(log))
        # What comes of a case that is tried again says nothing against the others: they go first.
        first, last = (*missing, *self.open.values()), (*self.later.values(), *again)
        return Outcome(first, last, self.obstacle, self.detail, counted=counted)

    def left(self, obstacle: str = "", detail: str = "", hopeless: bool = False) -> Outcome:
        """The cases that are open still."""
        return Outcome(tuple(self.open.values()), tuple(self.later.values()), obstacle, detail, hopeless)

    def blame_wrapper(self, cases: list[Case], reason: str, log: str) -> Outcome:
        """The wrapper gave nothing: for good if it never did, else for these cases only."""
        if self.name not in self.session.productive:
            return Outcome(obstacle=reason, detail=tail(log), settled=True)
        for case in cases:
            self.session.fail(case, self.name, reason, tail(log))
        return self.left(self.obstacle, self.detail)


def _machine(lacking: str) -> str:
    return f"the machine's fault and no kernel's: {lacking}"


def one_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
