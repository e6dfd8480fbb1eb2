"""A collector's cases, in as many worker processes as needed, and the cause when a process ends early.

A case that kills its worker every time has failed. A case that failed for lack of the machine's resources, or that was never
tried, is left to another process. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tilescope.jobs import worker_output
from tilescope.jobs.job import BATCH, TIMED, patience
from tilescope.jobs.ledger import Ledger, one_line
from tilescope.jobs.process import Standby, StartError, WorkerProcess
from tilescope.jobs.worker_output import last_line, tail
from tilescope.runs import store
from tilescope.table.case import Case

#: Number of processes in a row that may die at one case, or end without settling any.
TRIES = 3
_FREE = contextlib.nullcontext()


async def collect(
    ledger: Ledger,
    name: str,
    cases: Sequence[Case],
    *,
    leaving: bool,
    standby: Standby | None = None,
    slots: contextlib.AbstractAsyncContextManager[Any] = _FREE,
) -> None:
    """Runs the cases with one collector, in as many processes as needed; gives up after ``TRIES`` without progress.

    ``leaving``: nothing needs to wait for the exit of a process that is done. ``slots`` limits the processes at a time.
    """
    wrapped = hasattr(ledger.collectors[name], "command")
    size = int(ledger.job.settings.get("batch", BATCH)) if wrapped else len(cases)
    left, tries, killed = list(cases), 0, Counter[str]()
    while left:
        async with slots:
            end = await _Attempt(ledger, name, left[:size], killed=killed, leaving=leaving, standby=standby).run()
        if end.impossible:
            ledger.give_up(name, cases, end.obstacle, end.detail)
            return
        remaining = [*end.first, *left[size:], *end.last]
        tries = 0 if len(remaining) < len(left) or end.counted else tries + 1
        if end.hopeless or tries == TRIES:
            times = f" ({tries} times)" if tries > 1 else ""
            ledger.leave(name, f"{end.obstacle or 'its worker settled no case'}{times}", end.detail)
            return
        left = remaining


async def ahead(
    ledger: Ledger,
    cases: Mapping[str, Sequence[Case]],
    *,
    beside: bool = False,
    leaving: bool = False,
    quiet: asyncio.Future[None] | None = None,
) -> None:
    """Runs each collector's cases, one collector after the other, in one process. Whatever it has trouble with stays outstanding.

    ``beside``: other processes use the GPU too. ``leaving`` is as in ``collect``, once nothing is outstanding. Collectors that time
    begin once ``quiet`` is done.
    """
    known = {case.id: case for each in cases.values() for case in each}
    jobs = (_job(ledger, name, each) for name, each in cases.items())
    first, *then = ({**job, "waits": quiet is not None and job["collector"] in TIMED} for job in jobs)
    with contextlib.suppress(StartError):
        async with WorkerProcess({**first, "then": then, "beside": beside}) as worker:
            if quiet is not None:
                quiet.add_done_callback(worker.let_go)
            async for event in worker.events(patience(ledger.job.settings)):
                if event["event"] == "done" and leaving and not any(map(ledger.left, cases)):
                    worker.leave()
                elif event["event"] != "error" and (case := known.get(event.get("case", ""))):
                    await ledger.take(event["collector"], case, event)


def _job(ledger: Ledger, name: str, cases: Iterable[Case]) -> dict[str, Any]:
    return {
        "action": "capture",
        "collector": name,
        "cases": [case.to_json() for case in cases],
        "folder": str(ledger.writer.artefact_folder(name)),
        "settings": dict(ledger.job.settings),
    }


class _End(NamedTuple):
    """The cases that an attempt left for a new process: ``first`` those without trouble, ``last`` the others.

    ``obstacle`` is the reason why they are left, ``detail`` the process's output. ``hopeless``: another process would meet the
    same obstacle. ``impossible``: the collector cannot give results here for any case. ``counted``: the death of the process
    counts against one case, which fails after ``TRIES`` deaths.
    """

    first: Sequence[Case] = ()
    last: Sequence[Case] = ()
    obstacle: str = ""
    detail: str = ""
    hopeless: bool = False
    impossible: bool = False
    counted: bool = False


class _Attempt:
    """One worker process. ``killed`` counts by case the workers that were killed from outside while running it."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        cases: Sequence[Case],
        *,
        killed: Counter[str],
        leaving: bool,
        standby: Standby | None,
    ) -> None:
        self.ledger, self.name, self.killed, self.leaving, self.standby = ledger, name, killed, leaving, standby
        self.collector = ledger.collectors[name]
        #: The function that puts a wrapper in front of the worker's command line, if the collector has one.
        self.command: Any = getattr(self.collector, "command", None)
        self.open = {case.id: case for case in cases}
        #: Cases whose artefacts exist only after the process has ended: the wrapper's, and those that are parsed together.
        self.pending: list[Case] = []
        #: Cases that have begun.
        self.seen: set[Case] = set()
        #: Cases that failed for lack of the machine's resources.
        self.later: dict[str, Case] = {}
        self.obstacle = self.detail = self.doing = ""
        self.current: Case | None = None
        self.finished = self.refused = self.begun = False

    async def run(self) -> _End:
        """Runs the cases until the process ends. Raises StoreError where the run cannot be written."""
        ledger = self.ledger
        job = _job(ledger, self.name, self.open.values())
        variables: dict[str, str] = getattr(self.collector, "environment", dict)()
        oom_kills = worker_output.oom_kills()
        try:
            async with WorkerProcess(job, self.command, variables, self.standby) as worker:
                try:
                    async for event in worker.events(patience(ledger.job.settings)):
                        await self.hear(event)
                        if self.leaving and self.finished and not (self.open or self.later or self.command):
                            worker.leave()
                except asyncio.CancelledError:
                    await worker.stop()
                    for event in worker.drain():
                        await self.hear(event)
                    with contextlib.suppress(Exception):
                        await self.keep_pending(worker)
                    raise
                missing, unwritten = [], ""
                try:
                    missing = await self.keep_pending(worker)
                except store.StoreError:
                    raise
                except Exception as error:
                    missing, unwritten = self.pending, one_line(error)
                return self.conclude(worker, missing, unwritten, worker_output.oom_kills() > oom_kills)
        except StartError as error:
            return self.left(str(error), hopeless=not error.lacking)

    async def hear(self, event: Mapping[str, Any]) -> None:
        """Handles one event. Events of a case that is settled already are ignored."""
        kind, case, ledger = event["event"], self.open.get(event.get("case", "")), self.ledger
        if kind == "start":
            ledger.emit({"event": "waiting", "collector": self.name, "doing": "starting the worker"})
        elif kind == "done":
            self.finished = True
        elif kind == "case" and case:
            self.begun = True
            if (self.current, self.doing) != (case, event["doing"]):
                self.current, self.doing = case, event["doing"]
                self.seen.add(case)
                ahead = len(self.seen & {*self.open.values(), *self.pending}) - 1
                ledger.emit({"event": "case", "case": case.id, "collector": self.name, "doing": event["doing"]}, ahead)
        elif kind == "error" and (lacking := event.get("environment")) and (case or not event.get("case")):
            self.obstacle, self.detail = _machine(lacking), event.get("detail", "")
            self.current = None
            if case:
                self.later[case.id] = self.open.pop(case.id)
        elif kind == "error" and not event.get("case"):
            self.refused, self.current = True, None
            self.obstacle, self.detail = event["message"], event.get("detail", "")
        elif case and kind in ("error", "skipped", "result"):
            del self.open[case.id]
            self.current = None
            if kind != "result":
                await ledger.take(self.name, case, event)
            elif self.command or hasattr(self.collector, "capture_all"):
                self.pending.append(case)
            elif await ledger.keep(self.name, [case]):
                ledger.fail(case, self.name, f"{self.name} left no artefact")

    async def keep_pending(self, worker: WorkerProcess) -> list[Case]:
        """Keeps the artefacts that exist only now; returns the wrapper's cases without one.

        Raises the collector's exception where ``finish`` finds no usable output of the wrapper.
        """
        if self.command and self.pending:
            folder = self.ledger.writer.artefact_folder(self.name)
            await asyncio.to_thread(worker.take_wrapped, folder)
            await asyncio.to_thread(self.collector.finish, folder, self.pending)
            return [case for case in self.pending if await self.ledger.keep(self.name, [case])]
        for case in await self.ledger.keep(self.name, self.pending):
            self.ledger.fail(case, self.name, f"{self.name} left no artefact")
        return []

    def conclude(self, worker: WorkerProcess, missing: Sequence[Case], unwritten: str, out_of_memory: bool) -> _End:
        """The cause of the process's end, and the cases left. ``missing`` have no output of the wrapper; ``unwritten`` says why."""
        log = worker.log()
        if self.refused:
            return self.left(self.obstacle, self.detail, hopeless=not self.begun)
        if self.current is not None:
            return self.blame(self.current, worker, missing, log, out_of_memory)
        if unwritten and self.name not in self.ledger.productive:
            return _End(obstacle=unwritten, detail=tail(log), impossible=True)
        for case in missing:
            if unwritten:
                self.ledger.fail(case, self.name, unwritten, tail(log))
            else:
                self.ledger.skip(case, self.name, "it launches nothing that could be counted")
        if self.finished or self.begun or self.obstacle:
            between = "" if self.finished or unwritten else f"worker {worker.ending()} between two cases"
            return self.left(self.obstacle or between, self.detail or tail(log))
        explained = getattr(self.collector, "explain", lambda log: None)(log)
        last = explained or (_machine("out of memory") if out_of_memory else last_line(log))
        said = ": ".join(filter(None, [f"worker {worker.ending()} before its first case", last]))
        return self.left(said, tail(log))._replace(impossible=bool(explained))

    def blame(self, case: Case, worker: WorkerProcess, missing: Sequence[Case], log: str, out_of_memory: bool) -> _End:
        """The end of a process that died during ``case``. The case fails, or is tried again if the cause is outside of it."""
        self.ledger.writer.artefact_path(self.name, case, self.collector.SUFFIX).unlink(missing_ok=True)
        text = f"worker {worker.ending()} while {self.doing} {case.id}; finished cases are kept"
        del self.open[case.id]
        again, counted = list[Case](), False
        limit = worker.signal in worker_output.LIMITS
        outside = worker.signal in worker_output.FROM_OUTSIDE and not worker.silent
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
        return _End(first, last, self.obstacle, self.detail, counted=counted)

    def left(self, obstacle: str = "", detail: str = "", hopeless: bool = False) -> _End:
        return _End(tuple(self.open.values()), tuple(self.later.values()), obstacle, detail, hopeless)


def _machine(lacking: str) -> str:
    return f"a fault of the machine, not of a kernel: {lacking}"
