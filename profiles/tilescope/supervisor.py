"""The supervisor: runs a job's cases through worker processes and writes what they say into one run.

One process a collector (several where they do not contend for the GPU). A process that dies, hangs or loses its device
costs the case it was at: the finished cases are on disk, the others go on in a fresh process. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from tilescope import collectors, device, lines, progress, ptxas, schema, staleness, store
from tilescope.case import Case
from tilescope.gpu_lock import gpu_lock
from tilescope.process import StartError, WorkerProcess
from tilescope.provenance import git_revision
from tilescope.schema import Ceiling, Device, Failure, Run

#: Collectors that need the GPU to themselves. ``check`` uses it where there is one.
ON_GPU = frozenset({"events", "torch_profiler", "ncu", "ncu_rules", "ncu_source"})
#: Longest silence of a worker, in seconds, before it is taken for hung (setting ``timeout``).
TIMEOUT = 600.0
#: Cases a wrapped worker (ncu) does before its wrapper writes what it counted (setting ``batch``).
BATCH = 24
#: Fewest cases worth the start of one more process.
SHARE = 4

OnEvent = Callable[[dict[str, Any]], None]
Catalog = Sequence[Mapping[str, Any]]


class WorkerError(ValueError):
    """The worker refused, or could not answer at all. The message is one line for a person."""


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


async def describe(kernels: Iterable[str] = (), workloads: Iterable[str] = ()) -> list[dict[str, Any]]:
    """What the kernels declare (none: the whole catalog), as ``tilescope.describe.catalog`` gives it.

    Raises WorkerError for a kernel or a workload that is not known or does not load.
    """
    job = {"action": "describe", "kernels": list(kernels), "workloads": list(workloads)}
    answer = await _ask(job, "catalog", patience=TIMEOUT)
    return list(answer["kernels"])


async def run(job: Job, on_event: OnEvent = lambda event: None) -> Path:
    """Does the job and returns the run's folder. ``on_event`` hears what happens, in the worker's words, and at the
    end ``{"event": "done", "folder": …, "complete": …}``.

    Each event of a case has ``collector``, ``case``, ``index`` (how many are settled) and ``of`` (how many there are in
    all). Cancelling the task stops the workers, keeps the finished cases in a run that is not complete, and raises
    CancelledError after the ``done`` event. Raises WorkerError or StoreError where nothing can be run or written.
    """
    for name in job.collectors:
        collectors.load(name)
    store.check_writable(job.runs_dir)
    workloads = dict.fromkeys(case.workload for case in job.cases)
    catalog = job.catalog or await describe(dict.fromkeys(c.kernel for c in job.cases), workloads)
    here = await asyncio.to_thread(device.detect)
    about = await asyncio.to_thread(_about, job, catalog, here)
    writer = store.RunWriter(job.runs_dir, about)
    writer.plan(job.cases)
    writer.keep_sources({Case(entry["kernel"], "", "", "").name: _declaring(entry) for entry in catalog})
    writer.append(model_rows(job.cases, catalog))
    return await _Session(job, writer, on_event).run(catalog, here)


async def resume(folder: Path, on_event: OnEvent = lambda event: None) -> Path:
    """Goes on with the interrupted run in ``folder``, as ``run`` would have: what is settled stays as it is.

    Failures of single cases are settled, those of a whole collector are not. The run gets a note of when it went on. Raises
    WorkerError when the run is whole, says not what was to be done, or the rest would be of another device, other versions
    or other code than what it has; StoreError when it cannot be read or is still being written.
    """
    run, known = store.read_run(folder), progress.read(folder)
    if run.complete:
        raise WorkerError(f"{run.id} is whole: there is nothing to go on with")
    if known is None:
        raise WorkerError(f"{run.id} does not say what was to be done: profile it anew")
    job = Job(known.cases, run.settings["collectors"], run.settings, folder.parent, run.title)
    for name in job.collectors:
        collectors.load(name)
    catalog = await describe(dict.fromkeys(c.kernel for c in job.cases), dict.fromkeys(c.workload for c in job.cases))
    here = await asyncio.to_thread(device.detect)
    if changed := _changed(run, await asyncio.to_thread(_about, job, catalog, here)):
        raise WorkerError(f"{run.id} cannot go on, for {changed}: profile it anew")
    if stale := staleness.stale_kernels(store.LoadedRun(run, schema.frame([]), folder)):
        raise WorkerError(f"{run.id} cannot go on, for the code of {', '.join(stale)} has changed: profile it anew")
    writer = store.RunWriter.reopen(folder)
    session = _Session(job, writer, on_event)
    session.recall(known.settled, writer.rows)
    said = set(session.remarks())
    writer.update(
        failures=tuple(failure for failure in run.failures if failure.case),
        notes=tuple(note for note in run.notes if note not in said),
    )
    writer.note(f"interrupted, and gone on with at {datetime.now(UTC).isoformat(timespec='seconds')}")
    return await session.run(catalog, here)


class _Session:
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
        self.slots = asyncio.Semaphore(_processors())

    def recall(self, settled: Iterable[progress.Settled], rows: pd.DataFrame) -> None:
        """What an interrupted session knew of these cases, whose ``rows`` are written already."""
        cases = {case.id: case for case in self.job.cases}
        for done in settled:
            self.outstanding.discard((done.collector, done.case))
            if done.event == "skipped":
                self.skipped[done.collector, done.message].append(cases[done.case])
            elif done.event == "result":
                self.productive.add(done.collector)
        named = {(case.name, case.impl, case.direction, case.workload, case.config): case.id for case in cases.values()}
        for key, of_case in rows.groupby(["kernel", "impl", "pass", "workload", "config"], sort=False):
            case_id = named[key]
            self.functions[case_id] = _functions(of_case)
            # Rows are written before it is noted that they are.
            for name in self.functions[case_id].keys() & set(self.job.collectors):
                self.outstanding.discard((name, case_id))
                self.productive.add(name)

    def left(self, name: str) -> list[Case]:
        """The cases that this collector has not settled."""
        return [case for case in self.job.cases if (name, case.id) in self.outstanding]

    async def run(self, catalog: Catalog, here: Device | None) -> Path:
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
            self.close(complete=False)
            raise
        return self.close(complete=True)

    def emit(self, event: Mapping[str, Any]) -> None:
        self.on_event({**event, "index": self.of - len(self.outstanding), "of": self.of})

    def close(self, complete: bool) -> Path:
        self.writer.update(notes=(*self.writer.run.notes, *self.remarks()))
        if not complete and not self.productive:
            self.writer.discard()
            self.emit({"event": "done", "folder": "", "run": self.writer.run.id, "complete": False})
            return self.writer.folder
        folder = self.writer.finish(complete)
        self.emit({"event": "done", "folder": str(folder), "run": self.writer.run.id, "complete": complete})
        return folder

    def remarks(self) -> Iterator[str]:
        """What is to be said of the whole run at its end."""
        for (collector, message), cases in self.skipped.items():
            impls = ", ".join(dict.fromkeys(case.impl for case in cases))
            yield f"{collector} skipped {len(cases)} of {impls}: {message}"
        yield from _counted_otherwise(self.functions, self.writer.run.settings["target"])

    async def off_gpu(self, names: Sequence[str]) -> None:
        """Collectors that do not contend: as many processes at once as the machine has processors."""

        async def share(name: str, cases: Sequence[Case]) -> None:
            async with self.slots:
                await self.collect(name, cases)

        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    if self.left(name) and await self.available(name):
                        for cases in _shares(self.left(name), self.sizes, _processors()):
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
        self.emit({"event": "waiting", "doing": "measuring the device's ceilings"})
        try:
            answer = await _ask({"action": "ceilings"}, "ceilings", self.patience)
        except WorkerError as error:
            self.writer.note(f"the device's ceilings could not be measured: {error}")
            return
        measured = tuple(Ceiling(**ceiling) for ceiling in answer["ceilings"])
        known = self.writer.run.device
        self.writer.update(device=dataclasses.replace(known, ceilings=(*known.ceilings, *measured)))

    @property
    def patience(self) -> float:
        return float(self.job.settings.get("timeout", TIMEOUT))

    async def available(self, name: str) -> bool:
        """Whether the collector can run here; its reason is a failure of the collector, not of the job."""
        reason = await asyncio.to_thread(collectors.load(name).unavailable)
        if reason:
            self.fail(None, name, reason)
            self.give_up(name, self.job.cases)
        return not reason

    async def collect(self, name: str, cases: Sequence[Case]) -> None:
        """The cases through one collector, in as many processes as it takes."""
        module = collectors.load(name)
        size = int(self.job.settings.get("batch", BATCH)) if hasattr(module, "command") else len(cases)
        left = list(cases)
        while left:
            again = await _Attempt(self, name, module, left[:size]).run()
            if again is None:
                self.give_up(name, cases)
                return
            left = again + left[size:]

    def give_up(self, name: str, cases: Sequence[Case]) -> None:
        """None of these cases is to come from this collector any more."""
        self.outstanding.difference_update((name, case.id) for case in cases)

    async def keep(self, name: str, module: ModuleType, case: Case) -> bool:
        """Parses a case's artefact into the table. False when the collector left none."""
        artefact = self.writer.artefact_path(name, case, module.SUFFIX)
        if not artefact.is_file():
            return False
        try:
            frame = await asyncio.to_thread(module.parse, artefact, case)
            self.writer.append(frame)
            self.functions[case.id] |= _functions(frame)
            if parse_lines := getattr(module, "parse_lines", None):
                found = await asyncio.to_thread(parse_lines, artefact, case)
                foreign = (case.kernel, case.impl) in self.foreign
                self.writer.append_lines(case.name, *(lines.of_another(case.impl, *found) if foreign else found))
        except store.StoreError:
            raise
        except Exception as error:
            self.fail(case, name, f"what {name} wrote cannot be read: {_one_line(error)}")
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
        self.skipped[name, message].append(case)
        self.settle("skipped", case, name, message=message)

    def settle(self, event: str, case: Case | None, name: str, **more: Any) -> None:
        if case:
            self.outstanding.discard((name, case.id))
            self.writer.settle(progress.Settled(name, case.id, event, more.get("message", "")))
        self.emit({"event": event, "case": case.id if case else "", "collector": name, **more})


class _Attempt:
    """One worker process on some of a collector's cases."""

    def __init__(self, session: _Session, name: str, module: ModuleType, cases: Sequence[Case]) -> None:
        self.session, self.name, self.module = session, name, module
        self.open = {case.id: case for case in cases}
        self.wrapped: list[Case] = []
        self.current: Case | None = None
        self.doing = ""
        self.finished = self.refused = False
        self.folder = session.writer.artefact_folder(name)

    async def run(self) -> list[Case] | None:
        """The cases to be tried again in a fresh process; None when that would be no use."""
        job = {
            "action": "capture",
            "collector": self.name,
            "cases": [case.to_json() for case in self.open.values()],
            "folder": str(self.folder),
            "settings": dict(self.session.job.settings),
        }
        command = getattr(self.module, "command", None)
        wrap = (lambda argv: command(argv, self.folder)) if command else None
        environment: dict[str, str] = getattr(self.module, "environment", dict)()
        count = len(self.open)
        try:
            async with WorkerProcess(job, wrap, environment) as worker:
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
                return await self.conclude(worker, count)
        except StartError as error:
            self.session.fail(None, self.name, str(error))
            return None

    async def hear(self, event: Mapping[str, Any]) -> None:
        kind, case = event["event"], self.open.get(event.get("case", ""))
        if kind == "start":
            self.session.emit({"event": "waiting", "collector": self.name, "doing": "starting the worker"})
        elif kind == "case" and case:
            self.current, self.doing = case, event["doing"]
            about = {"event": "case", "case": case.id, "collector": self.name, "doing": event["doing"]}
            self.session.emit(about)
        elif kind == "done":
            self.finished = True
        elif kind == "error" and not event.get("case"):
            self.refused = True
            self.session.fail(None, self.name, event["message"], event.get("detail", ""))
        elif case:
            del self.open[case.id]
            self.current = None
            if kind == "error":
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

    async def conclude(self, worker: WorkerProcess, count: int) -> list[Case] | None:
        """After the process ended: what its wrapper counted, who is to blame, and which cases deserve another."""
        session, log = self.session, worker.log()
        if self.refused:
            return None
        try:
            missing = await self.unwrap()
        except store.StoreError:
            raise
        except Exception as error:
            missing = list(self.wrapped)
            if self.current is None:
                return self.blame_wrapper(missing, _one_line(error), log)
        if self.current is not None:
            silence = f" for {session.patience:g} s" if worker.silent else ""
            ending = worker.ending().replace("answer", f"answer{silence}")
            text = f"worker {ending} while {self.doing} {self.current.id}; finished cases are kept"
            session.fail(self.current, self.name, text, _tail(log))
            session.writer.artefact_path(self.name, self.current, self.module.SUFFIX).unlink(missing_ok=True)
            del self.open[self.current.id]
            return [*missing, *self.open.values()]
        for case in missing:
            session.skip(case, self.name, "it launches nothing that could be counted")
        if not self.finished and len(self.open) == count:
            explain = getattr(self.module, "explain", None)
            last = (explain(log) if explain else None) or _last_line(log)
            text = f"worker {worker.ending()} before its first case"
            session.fail(None, self.name, f"{text}: {last}" if last else text, _tail(log))
            return None
        return list(self.open.values())

    def blame_wrapper(self, cases: Sequence[Case], reason: str, log: str) -> list[Case] | None:
        """The wrapper gave nothing: for good if it never did, else for these cases only."""
        if self.name not in self.session.productive:
            self.session.fail(None, self.name, reason, _tail(log))
            return None
        for case in cases:
            self.session.fail(case, self.name, reason, _tail(log))
        return list(self.open.values())


def model_rows(cases: Iterable[Case], catalog: Catalog) -> pd.DataFrame:
    """What the algorithm cannot avoid, for every case: flops and bytes as the kernels' ``cost`` declares them."""
    rows = []
    for case in cases:
        cost = _cost(case, catalog)
        if cost:
            rows += [
                case.row(f"algorithm_{name}", cost[name], "model") for name in ("flops", "bytes_read", "bytes_written")
            ]
    return schema.frame(rows)


async def _ask(job: Mapping[str, Any], wanted: str, patience: float) -> dict[str, Any]:
    """The one event of a worker that answers a question. Raises WorkerError with the reason when it does not."""
    async with WorkerProcess(job) as worker:
        answer: dict[str, Any] | None = None
        async for event in worker.events(patience):
            if event["event"] == wanted:
                answer = event
            elif event["event"] == "error":
                raise WorkerError(event["message"])
        if answer is None:
            last = _last_line(worker.log())
            raise WorkerError(f"the worker {worker.ending()}" + (f": {last}" if last else ""))
        return answer


def _changed(run: Run, now: Run) -> str:
    """What is no longer as the run had it, device or version; empty when its values and new ones can stand together."""
    if run.device.measured and not now.device.measured:
        return f"it was measured on {run.device.name}, which is not here"
    if (run.device.name, run.device.measured) != (now.device.name, now.device.measured):
        return f"it is of {run.device.name} and this is {now.device.name}"
    for name in sorted({*run.versions, *now.versions}):
        if run.versions.get(name) != now.versions.get(name):
            return f"{name} is {now.versions.get(name, 'absent')} and was {run.versions.get(name, 'absent')}"
    return ""


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


def _about(job: Job, catalog: Catalog, here: Device | None) -> Run:
    """The run's description before anything has run."""
    target = str(job.settings.get("target") or (here.target if here else "sm_90"))
    chosen = here if here and here.target == target else device.for_target(target)
    facts = ("summary", "file", "sha256", "dims", "passes", "implementations", "tolerance", "cost", "workloads")
    entries = {Case(entry["kernel"], "", "", "").name: entry for entry in catalog}
    revision = next(filter(None, (git_revision(Path(entry["path"])) for entry in catalog)), "")
    assembler = ptxas.version(target)
    return Run(
        id=store.new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=chosen,
        kernels={name: {fact: entry[fact] for fact in facts} for name, entry in entries.items()},
        versions=device.versions() | ({"ptxas": assembler} if assembler else {}),
        settings={**job.settings, "target": target, "collectors": list(job.collectors)},
        git_revision=revision,
        title=job.title or ", ".join(entries),
    )


def _declaring(entry: Mapping[str, Any]) -> dict[str, str]:
    """The text of the file that declares a kernel, by name: where nothing is launched in it, no collector keeps it.

    Nothing where the file is no longer what was described.
    """
    path = Path(entry["path"])
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if (text := store.text_of(path, entry["sha256"])) is not None:
            return {path.name: text}
    return {}


def _needs_gpu(name: str, here: Device | None) -> bool:
    return name in ON_GPU or (name == "check" and here is not None)


def _cost(case: Case, catalog: Catalog) -> Mapping[str, Any]:
    """The case's cost as its kernel declares it; empty for a case that the catalog does not have."""
    costs: Mapping[str, Any] = next((entry["cost"] for entry in catalog if entry["kernel"] == case.kernel), {})
    found: Mapping[str, Any] = costs.get(case.workload, {}).get(case.direction, {})
    return found


def _sizes(cases: Iterable[Case], catalog: Catalog) -> dict[str, float]:
    """Bytes that each case must move, by id."""
    costs = {case.id: _cost(case, catalog) for case in cases}
    return {case: cost.get("bytes_read", 0) + cost.get("bytes_written", 0) for case, cost in costs.items()}


def _shares(cases: Sequence[Case], sizes: Mapping[str, float], processes: int) -> list[Sequence[Case]]:
    """The cases dealt out to at most that many processes, each worth its start; small ones first.

    Implementations differ in what they cost a collector more than workloads do, so each process gets some of each.
    """
    count = max(1, min(processes, math.ceil(len(cases) / SHARE)))
    ordered = sorted(cases, key=lambda case: (case.kernel, case.impl, sizes.get(case.id, 0)))
    shares = [ordered[start::count] for start in range(count)]
    return [sorted(share, key=lambda case: sizes.get(case.id, 0)) for share in shares]


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _one_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _last_line(log: str) -> str:
    return next((text.strip() for text in reversed(log.splitlines()) if text.strip()), "")


def _tail(log: str, lines: int = 40) -> str:
    return "\n".join(log.splitlines()[-lines:])
