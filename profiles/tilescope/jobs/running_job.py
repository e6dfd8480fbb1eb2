"""One job under way: which of its cases are outstanding, what is settled of them, and what is said at the end.

One process a collector (several where they do not contend for the GPU). Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from tilescope import collectors
from tilescope.hardware import device
from tilescope.hardware.gpu_lock import gpu_lock
from tilescope.jobs.attempt import TRIES, Attempt, one_line
from tilescope.jobs.question import WorkerError, ask
from tilescope.runs import journal, store
from tilescope.table import launch_configs, line_values
from tilescope.table.case import Case
from tilescope.table.schema import SOURCES, Ceiling, Device, Failure

#: Collectors that need the GPU to themselves. ``check`` uses it where there is one.
ON_GPU = frozenset({"events", "torch_profiler", "ncu", "ncu_rules", "ncu_source"})
#: Longest silence of a worker, in seconds, before it is taken for hung (setting ``timeout``).
TIMEOUT = 600.0
#: Cases a wrapped worker (ncu) does before its wrapper writes what it counted (setting ``batch``).
BATCH = 24
#: Fewest cases worth the start of one more process.
SHARE = 4
#: Begins the note of a run that says what of it is outstanding.
OUTSTANDING = "not complete: "

OnEvent = Callable[[dict[str, Any]], None]
Catalog = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Job:
    """What is to be run: every case by every collector.

    ``settings``: ``target`` (``sm_90``), ``repetitions``, ``warmup``, ``timeout`` and ``interpreter_limit`` in seconds,
    ``measure_ceilings`` (default True). ``catalog`` is what ``describe`` said of the kernels, if it was asked already.
    """

    cases: Sequence[Case]
    collectors: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    runs_dir: Path = field(default_factory=store.runs_dir)
    title: str = ""
    catalog: Catalog | None = None


class Session:
    """One job under way."""

    def __init__(self, job: Job, writer: store.RunWriter, on_event: OnEvent) -> None:
        self.job, self.writer, self.on_event = job, writer, on_event
        self.of = len(job.cases) * len(job.collectors)
        self.outstanding = {(name, case.id) for name in job.collectors for case in job.cases}
        self.productive: set[str] = set()
        self.skipped: dict[tuple[str, str], list[Case]] = defaultdict(list)
        self.sizes: dict[str, float] = {}
        #: Kernels and those of their implementations that are other libraries'.
        self.foreign: set[tuple[str, str]] = set()
        #: Of each case, the functions that a collector named.
        self.functions: dict[str, dict[str, set[str]]] = defaultdict(dict)
        #: How often a collector's worker was killed from outside, as it seems, when it was at a case.
        self.killed: Counter[tuple[str, str]] = Counter()
        #: Of each collector, what kept it from cases that are outstanding.
        self.obstacles: dict[str, dict[str, None]] = defaultdict(dict)
        self.slots = asyncio.Semaphore(processors())

    def recall(self, settled: Iterable[journal.Settled], rows: pd.DataFrame) -> None:
        """What an interrupted session knew of these cases, whose ``rows`` are written already."""
        cases = {case.id: case for case in self.job.cases}
        for done in settled:
            self.outstanding.discard((done.collector, done.case))
            if done.event == "skipped" and done.case in cases:
                self.skipped[done.collector, done.message].append(cases[done.case])
            elif done.event == "result":
                self.productive.add(done.collector)
        named = {(case.name, case.impl, case.direction, case.workload, case.config): case.id for case in cases.values()}
        for key, of_case in rows.groupby(["kernel", "impl", "pass", "workload", "config"], sort=False):
            case_id = named.get(key)
            if case_id is None:
                raise WorkerError(
                    f"{self.writer.run.id} has rows of {'/'.join(key)}, which it is not of: profile it anew"
                )
            self.functions[case_id] = _functions(of_case)
            # Rows are written before it is noted that they are.
            for name in self.functions[case_id].keys() & set(self.job.collectors):
                self.outstanding.discard((name, case_id))
                self.productive.add(name)

    def left(self, name: str) -> list[Case]:
        """The cases that this collector has not settled."""
        return [case for case in self.job.cases if (name, case.id) in self.outstanding]

    async def run(self, catalog: Catalog, here: Device | None) -> Path:
        """Does what is outstanding, as far as that can be done, and closes the run."""
        self.emit({"event": "start", "run": self.writer.run.id, "of": self.of})
        try:
            self.sizes = _sizes(self.job.cases, catalog)
            self.foreign = {
                (entry["kernel"], name)
                for entry in catalog
                for name, facts in entry["implementations"].items()
                if facts["requires"]
            }
            on_gpu = [name for name in self.job.collectors if _needs_gpu(name, here)]
            await self.off_gpu([name for name in self.job.collectors if name not in on_gpu])
            if on_gpu:
                await self.with_gpu(on_gpu)
        except BaseException:
            self.close(interrupted=True)
            raise
        return self.close()

    def emit(self, event: Mapping[str, Any]) -> None:
        """Tells who listens, with how far the job is."""
        self.on_event({**event, "index": self.of - len(self.outstanding), "of": self.of})

    def close(self, interrupted: bool = False) -> Path:
        """Ends the run, which is complete when nothing is outstanding; one that was interrupted before anything goes."""
        if interrupted and not self.productive:
            self.writer.discard()
            self.emit({"event": "done", "folder": "", "run": self.writer.run.id, "complete": False})
            return self.writer.folder
        complete = not interrupted and not self.outstanding
        unfinished = [] if interrupted else list(self.unfinished())
        self.writer.update(notes=(*self.writer.run.notes, *self.remarks(), *unfinished))
        folder = self.writer.finish(complete)
        done = {"event": "done", "folder": str(folder), "run": self.writer.run.id, "complete": complete}
        self.emit({**done, "why": "; ".join(unfinished)} if unfinished else done)
        return folder

    def remarks(self) -> Iterator[str]:
        """What is to be said of the whole run at its end."""
        for (collector, message), cases in self.skipped.items():
            impls = ", ".join(dict.fromkeys(case.impl for case in cases))
            yield f"{collector} skipped {len(cases)} of {impls}: {message}"
        yield from _counted_otherwise(self.functions, self.writer.run.settings["target"])

    def unfinished(self) -> Iterator[str]:
        """A line for each collector that has cases left, with what kept it from them and how to go on."""
        for name in self.job.collectors:
            if left := len(self.left(name)):
                why = "; ".join(self.obstacles[name]) or "it did not come to them"
                go_on = f"go on with 'tilescope resume {self.writer.run.id}'"
                yield f"{OUTSTANDING}{left} of {len(self.job.cases)} cases of {name} are outstanding ({why}): {go_on}"

    async def off_gpu(self, names: Sequence[str]) -> None:
        """Collectors that do not contend: as many processes at once as the machine has processors."""

        async def share(name: str, cases: Sequence[Case]) -> None:
            async with self.slots:
                await self.collect(name, cases)

        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    if self.left(name) and await self.available(name):
                        for cases in shares(self.left(name), self.sizes, processors()):
                            group.create_task(share(name, cases))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def with_gpu(self, names: Sequence[str]) -> None:
        """Collectors that measure: one after the other, and no other job's at the same time."""
        if not any(map(self.left, names)):
            return
        name = await asyncio.to_thread(device.lock_name)
        waiting = {"event": "waiting", "doing": "waiting for another job on this GPU"}
        async with gpu_lock(name, lambda: self.emit(waiting)):
            known = self.writer.run.device
            measured = any(ceiling.origin == "measured" for ceiling in known.ceilings)
            if self.job.settings.get("measure_ceilings", True) and known.measured and not measured:
                await self.ceilings()
            for collector in names:
                if self.left(collector) and await self.available(collector):
                    await self.collect(collector, self.left(collector))

    async def ceilings(self) -> None:
        """Measures how fast the device is at its best."""
        self.emit({"event": "waiting", "doing": "measuring the device's ceilings"})
        try:
            answer = await ask({"action": "ceilings"}, "ceilings", self.patience)
        except WorkerError as error:
            self.writer.note(f"the device's ceilings could not be measured: {error}")
            return
        measured = tuple(Ceiling(**ceiling) for ceiling in answer["ceilings"])
        known = self.writer.run.device
        self.writer.update(device=dataclasses.replace(known, ceilings=(*known.ceilings, *measured)))

    @property
    def patience(self) -> float:
        """Longest silence of a worker."""
        return float(self.job.settings.get("timeout", TIMEOUT))

    async def available(self, name: str) -> bool:
        """Whether the collector can run here; its reason is a failure of the collector, not of the job."""
        reason = await asyncio.to_thread(collectors.load(name).unavailable)
        if reason:
            self.leave(name, reason)
        return not reason

    async def collect(self, name: str, cases: Sequence[Case]) -> None:
        """The cases through one collector, in as many processes as it takes, unless ``TRIES`` in a row get nowhere."""
        module = collectors.load(name)
        size = int(self.job.settings.get("batch", BATCH)) if hasattr(module, "command") else len(cases)
        left, tries = list(cases), 0
        while left:
            outcome = await Attempt(self, name, module, left[:size]).run()
            if outcome.settled:
                self.fail(None, name, outcome.obstacle, outcome.detail)
                self.outstanding.difference_update((name, case.id) for case in cases)
                return
            remaining = [*outcome.first, *left[size:], *outcome.last]
            tries = 0 if len(remaining) < len(left) or outcome.counted else tries + 1
            if outcome.hopeless or tries == TRIES:
                times = f" ({tries} times)" if tries > 1 else ""
                self.leave(name, f"{outcome.obstacle or 'its worker settled no case'}{times}", outcome.detail)
                return
            left = remaining

    def leave(self, name: str, obstacle: str, detail: str = "") -> None:
        """The collector's cases that are not settled stay outstanding, for the obstacle that it failed at."""
        self.obstacles[name][obstacle] = None
        self.fail(None, name, obstacle, detail)

    async def keep(self, name: str, module: ModuleType, case: Case) -> bool:
        """Parses a case's artefact into the table. False when the collector left none."""
        artefact = self.writer.artefact_path(name, case, module.SUFFIX)
        if not artefact.is_file():
            return False
        try:
            frame = await asyncio.to_thread(module.parse, artefact, case)
            self.writer.append(frame, name, case)
            self.functions[case.id] |= _functions(frame)
            if parse_lines := getattr(module, "parse_lines", None):
                found = await asyncio.to_thread(parse_lines, artefact, case)
                foreign = (case.kernel, case.impl) in self.foreign
                self.writer.append_lines(case.name, *(line_values.of_another(case.impl, *found) if foreign else found))
            if name in SOURCES:
                self.writer.append_configs(await asyncio.to_thread(launch_configs.beside, artefact, case, name))
        except store.StoreError:
            raise
        except Exception as error:
            self.fail(case, name, f"what {name} wrote cannot be read: {one_line(error)}")
        else:
            self.productive.add(name)
            self.settle("result", case, name)
        return True

    def fail(self, case: Case | None, name: str, message: str, detail: str = "") -> None:
        """Notes a failure of one case, or with None of the collector as a whole."""
        failure = Failure(case.id if case else "", name, message, detail)
        if case is None and any((f.collector, f.message) == (name, message) for f in self.writer.run.failures):
            return  # another process of the same collector met the same obstacle
        self.writer.fail(failure)
        self.settle("error", case, name, message=message, detail=detail)

    def skip(self, case: Case, name: str, message: str) -> None:
        """Notes that the collector has nothing to say of a case."""
        self.skipped[name, message].append(case)
        self.settle("skipped", case, name, message=message)

    def settle(self, event: str, case: Case | None, name: str, **more: Any) -> None:
        """Notes that a case needs no more of a collector, and tells it."""
        if case:
            self.outstanding.discard((name, case.id))
            self.writer.settle(journal.Settled(name, case.id, event, more.get("message", "")))
        self.emit({"event": event, "case": case.id if case else "", "collector": name, **more})


def shares(cases: Sequence[Case], sizes: Mapping[str, float], processes: int) -> list[Sequence[Case]]:
    """The cases dealt out to at most that many processes, each worth its start; small ones first.

    Implementations differ in what they cost a collector more than workloads do, so each process gets some of each.
    """
    count = max(1, min(processes, math.ceil(len(cases) / SHARE)))
    ordered = sorted(cases, key=lambda case: (case.kernel, case.impl, sizes.get(case.id, 0)))
    dealt = [ordered[start::count] for start in range(count)]
    return [sorted(share, key=lambda case: sizes.get(case.id, 0)) for share in dealt]


def cost_of(case: Case, catalog: Catalog) -> Mapping[str, Any]:
    """The case's cost as its kernel declares it; empty for a case that the catalog does not have."""
    costs: Mapping[str, Any] = next((entry["cost"] for entry in catalog if entry["kernel"] == case.kernel), {})
    found: Mapping[str, Any] = costs.get(case.workload, {}).get(case.direction, {})
    return found


def processors() -> int:
    """How many processes are worth starting here."""
    return len(os.sched_getaffinity(0))


def _functions(rows: pd.DataFrame) -> dict[str, set[str]]:
    """The functions that each source names."""
    return {str(source): set(names) - {""} for source, names in rows.groupby("source")["function"]}


def _counted_otherwise(functions: Mapping[str, Mapping[str, set[str]]], target: str) -> Iterator[str]:
    """A line for each case of which the interpreter counted other kernels than a GPU of that target would run."""
    for case, named in functions.items():
        compiled, counted = named.get("compiler", set()), named.get("interpreter", set())
        if counted and compiled - counted:
            operators = {name for name in counted if name.startswith("aten.")}
            instead = ", ".join(sorted(counted - compiled - operators)) or "no kernel"
            run = ", ".join(sorted(compiled - counted))
            yield f"interpreter counted {instead} where {target} runs {run}: {case}"


def _needs_gpu(name: str, here: Device | None) -> bool:
    return name in ON_GPU or (name == "check" and here is not None)


def _sizes(cases: Iterable[Case], catalog: Catalog) -> dict[str, float]:
    """Bytes that each case must move, by id."""
    costs = {case.id: cost_of(case, catalog) for case in cases}
    return {case: cost.get("bytes_read", 0) + cost.get("bytes_written", 0) for case, cost in costs.items()}
