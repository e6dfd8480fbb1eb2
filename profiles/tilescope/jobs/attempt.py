"""One worker process on some of a collector's cases, and the cause when it ends early.

A case that kills its worker every time has failed. A case that failed for lack of the machine's resources, or that was never
tried, is left to another process. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tilescope.jobs import machine_limits
from tilescope.jobs.ledger import Ledger, one_line
from tilescope.jobs.process import StartError, WorkerProcess
from tilescope.jobs.worker_output import last_line, tail
from tilescope.runs import store
from tilescope.table.case import Case

#: Number of processes in a row that may die at one case, or end without settling any.
TRIES = 3


@dataclass(frozen=True)
class Outcome:
    """The cases that an attempt left for a new process: ``first`` those without trouble, ``last`` the others.

    ``obstacle`` is the reason why they are left, ``detail`` the process's output. ``hopeless``: another process would meet the
    same obstacle. ``settled``: the collector cannot give results here for any case. ``counted``: the death of the process counts
    against one case, which fails after ``TRIES`` deaths.
    """

    first: tuple[Case, ...] = ()
    last: tuple[Case, ...] = ()
    obstacle: str = ""
    detail: str = ""
    hopeless: bool = False
    settled: bool = False
    counted: bool = False


class Attempt:
    """One worker process. ``killed`` counts by case the workers that were killed from outside while running it.

    ``leaving``: nothing needs to wait for the exit of a process that is done.
    """

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        collector: ModuleType,
        cases: list[Case],
        killed: Counter[str],
        *,
        leaving: bool,
    ) -> None:
        self.ledger, self.name, self.collector, self.killed, self.leaving = ledger, name, collector, killed, leaving
        self.open = {case.id: case for case in cases}
        #: Cases whose artefacts the wrapper writes after the worker has ended.
        self.wrapped: list[Case] = []
        #: Cases whose artefacts are parsed together after the worker has ended.
        self.together: list[Case] = []
        #: Cases that failed for lack of the machine's resources.
        self.later: dict[str, Case] = {}
        self.obstacle = self.detail = ""
        self.current: Case | None = None
        self.doing = ""
        self.finished = self.refused = self.begun = False
        self.folder = ledger.writer.artefact_folder(name)

    async def run(self) -> Outcome:
        """Runs the cases until the process ends. Raises StoreError where the run cannot be written."""
        job = {
            "action": "capture",
            "collector": self.name,
            "cases": [case.to_json() for case in self.open.values()],
            "folder": str(self.folder),
            "settings": dict(self.ledger.job.settings),
        }
        command = getattr(self.collector, "command", None)
        variables: dict[str, str] = getattr(self.collector, "environment", dict)()
        killed = machine_limits.oom_kills()
        try:
            async with WorkerProcess(job, command, variables) as worker:
                try:
                    async for event in worker.events(self.ledger.job.patience):
                        await self.hear(event)
                        if self.leaving and self.finished and not (self.open or self.later or self.wrapped):
                            worker.leave()
                except asyncio.CancelledError:
                    await worker.stop()
                    for event in worker.drain():
                        await self.hear(event)
                    with contextlib.suppress(Exception):
                        await self.ledger.keep_together(self.name, self.collector, self.together)
                        await self.unwrap(worker)
                    raise
                return await self.conclude(worker, machine_limits.oom_kills() > killed)
        except StartError as error:
            return self.left(str(error), hopeless=not error.lacking)

    async def hear(self, event: Mapping[str, Any]) -> None:
        """Handles one event. Events of a case that is settled already are ignored."""
        kind, case = event["event"], self.open.get(event.get("case", ""))
        if kind == "start":
            self.ledger.emit({"event": "waiting", "collector": self.name, "doing": "starting the worker"})
        elif kind == "case" and case:
            self.begun = True
            if (self.current, self.doing) != (case, event["doing"]):
                self.current, self.doing = case, event["doing"]
                self.ledger.emit({"event": "case", "case": case.id, "collector": self.name, "doing": event["doing"]})
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
        """Settles a case by its last event: an error, a skip, or an artefact that is parsed now or after the process."""
        if kind == "error" and event.get("environment"):
            self.later[case.id] = case
            self.obstacle, self.detail = _machine(event["environment"]), event.get("detail", "")
        elif kind == "error":
            self.ledger.fail(case, self.name, event["message"], event.get("detail", ""))
        elif kind == "skipped":
            self.ledger.skip(case, self.name, event["message"])
        elif hasattr(self.collector, "command"):
            self.wrapped.append(case)
        elif hasattr(self.collector, "capture_all"):
            self.together.append(case)
        elif not await self.ledger.keep(self.name, self.collector, case):
            self.ledger.fail(case, self.name, f"{self.name} left no artefact")

    async def unwrap(self, worker: WorkerProcess) -> list[Case]:
        """Splits the wrapper's output into one artefact a case and keeps these; returns the cases without one.

        Raises the collector's exception where ``finish`` finds no usable output.
        """
        if not self.wrapped:
            return []
        await asyncio.to_thread(worker.take_wrapped, self.folder)
        await asyncio.to_thread(self.collector.finish, self.folder, self.wrapped)
        return [case for case in self.wrapped if not await self.ledger.keep(self.name, self.collector, case)]

    async def conclude(self, worker: WorkerProcess, out_of_memory: bool) -> Outcome:
        """Handles the end of the process: keeps the wrapper's output, finds the cause of an early end, and the cases left."""
        log = worker.log()
        await self.ledger.keep_together(self.name, self.collector, self.together)
        if self.refused:
            return self.left(self.obstacle, self.detail, hopeless=not self.begun)
        try:
            missing = await self.unwrap(worker)
        except store.StoreError:
            raise
        except Exception as error:
            missing = list(self.wrapped)
            if self.current is None:
                return self.blame_wrapper(missing, one_line(error), log)
        if self.current is not None:
            return self.blame(self.current, worker, missing, log, out_of_memory)
        for case in missing:
            self.ledger.skip(case, self.name, "it launches nothing that could be counted")
        if not self.finished and not self.begun and not self.obstacle:
            explain = getattr(self.collector, "explain", None)
            explained = explain(log) if explain else None
            last = explained or (_machine("out of memory") if out_of_memory else last_line(log))
            text = f"worker {worker.ending()} before its first case"
            said, detail = f"{text}: {last}" if last else text, tail(log)
            return Outcome(obstacle=said, detail=detail, settled=True) if explained else self.left(said, detail)
        between = "" if self.finished else f"worker {worker.ending()} between two cases"
        return self.left(self.obstacle or between, self.detail or tail(log))

    def blame(self, case: Case, worker: WorkerProcess, missing: list[Case], log: str, out_of_memory: bool) -> Outcome:
        """The outcome of a process that ended during ``case``. The case fails, or is tried again if the cause is outside of it."""
        self.ledger.writer.artefact_path(self.name, case, self.collector.SUFFIX).unlink(missing_ok=True)
        text = f"worker {worker.ending()} while {self.doing} {case.id}; finished cases are kept"
        del self.open[case.id]
        again: list[Case] = []
        counted = False
        limit = worker.signal in machine_limits.LIMITS
        outside = worker.signal in machine_limits.FROM_OUTSIDE and not worker.silent
        self.killed[case.id] += outside
        if limit or (outside and out_of_memory):
            lacking = f"a limit of this process's ({worker.signal})" if limit else "out of memory"
            self.obstacle, self.detail, again = f"{_machine(lacking)}: {text}", tail(log), [case]
        elif outside and self.killed[case.id] < TRIES:
            self.obstacle, self.detail, again, counted = text, tail(log), [case], True
        else:
            self.ledger.fail(case, self.name, text, tail(log))
        # The case that is tried again goes last, because it may kill the next process too.
        first, last = (*missing, *self.open.values()), (*self.later.values(), *again)
        return Outcome(first, last, self.obstacle, self.detail, counted=counted)

    def left(self, obstacle: str = "", detail: str = "", hopeless: bool = False) -> Outcome:
        """The outcome with all open cases."""
        return Outcome(tuple(self.open.values()), tuple(self.later.values()), obstacle, detail, hopeless)

    def blame_wrapper(self, cases: list[Case], reason: str, log: str) -> Outcome:
        """The outcome of a wrapper without output: these cases fail, or the collector is given up if it never had any."""
        if self.name not in self.ledger.productive:
            return Outcome(obstacle=reason, detail=tail(log), settled=True)
        for case in cases:
            self.ledger.fail(case, self.name, reason, tail(log))
        return self.left(self.obstacle, self.detail)


def _machine(lacking: str) -> str:
    return f"a fault of the machine, not of a kernel: {lacking}"
