"""The supervisor: runs a job, or resumes an interrupted one, to its end.

Its collectors run in worker processes (``attempt``): those without a GPU in parallel, the others one after the other beside them. A
process that has launched the cases may collect first (``Early``), because it needs no other start. The results go into one run (``ledger``). A process that dies, hangs or loses its device costs at most its current case. Imports neither torch
nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tilescope import collectors
from tilescope.collectors import check, interpreter
from tilescope.collectors.ncu import counters
from tilescope.hardware import device
from tilescope.hardware.gpu_lock import gpu_lock
from tilescope.jobs import attempt, kept_standby, process, questions, triton_setup, warm, worker_output
from tilescope.jobs.job import IN_TURN, ON_GPU, TIMED, Catalog, Job, OnEvent, WorkerError, declared_cost, patience
from tilescope.jobs.ledger import Ledger
from tilescope.jobs.versions import git_revision, versions
from tilescope.runs import changes, device_roofs, journal, store
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device, Run
from tilescope.table.sources import COUNTERS, KNOWN

#: A resumed run's limit, as a multiple of the limit that left cases out.
MORE = 10.0
#: Fewest cases worth the start of one more process, if it is not forked from a warm one.
SHARE = 4
#: Fewest processors with which some are free while something is measured, and how many stay free then.
_ROOMY, _FREE = 4, 2
#: Most processes that check at a time on a GPU, and the cases that are worth one.
_ABREAST, _MANY = 8, 16
#: Implementations that choose among programs by timing them.
_TUNED = frozenset({"max-autotune"})
#: Fields of a kernel's declaration that its run keeps.
_KEPT = ("summary", "file", "sha256", "dims", "passes", "implementations", "tolerance", "cost", "workloads")
_CLOCKS = "left as they are"


class Early(NamedTuple):
    """The ``events`` of a process that collects a job's cases by itself, with these collectors. ``end`` ends the process."""

    collectors: Collection[str]
    events: AsyncIterator[Mapping[str, Any]]
    end: Callable[[], Awaitable[None]]


async def run(
    job: Job,
    on_event: OnEvent = lambda event: None,
    early: Early | None = None,
    standing: Mapping[str, process.Standby] | None = None,
) -> Path:
    """Runs the job and returns the run's folder. ``on_event`` is called with every event, at last with
    ``{"event": "done", "folder": …, "complete": …}``. What ``early`` does not settle is collected as usual. ``standing`` are
    the workers of ``standing_by``, if they were started before.

    Each event of a case has ``collector``, ``case``, ``index`` (the number of settled cases) and ``of`` (the number of all).
    Cancelling the task stops the workers, keeps the finished cases in a run that is not complete, and raises
    CancelledError after the ``done`` event. Raises WorkerError or StoreError where nothing can be run or written.
    """
    store.check_writable(job.runs_dir)
    job, here, about = await _described(job)
    writer = store.RunWriter(job.runs_dir, about)
    writer.plan(job.cases)
    return await _collect_all(Ledger(job, writer, on_event), here, early, standing)


async def resume(folder: Path, on_event: OnEvent = lambda event: None, limit: float = 0.0) -> Path:
    """Resumes the run in ``folder`` as ``run`` would have continued. Settled cases stay as they are.

    Cases that a limit left out are counted with a ``limit`` in seconds of work, or without one with ``MORE`` times theirs. Failures of
    single cases are settled. Those of a whole collector are not, because it may have been installed since, or the
    disk may have room now. The run gets a note with the time. Raises WorkerError when the run is complete, when it does not
    record its cases, or when device, versions or code have changed; StoreError when it cannot be read or is still being written.
    """
    run, known = store.read_run(folder), journal.read(folder)
    limited = any(one.limited for one in run.skipped)
    if run.complete and not limited:
        raise WorkerError(f"{run.id} is complete: there is nothing to resume")
    if known is None:
        raise WorkerError(f"{run.id} does not record its cases: profile it again")
    limits = {"interpreter_limit": interpreter.LIMIT, "check_limit": check.LIMIT} if limited else {}
    raised = {name: limit or MORE * run.settings.get(name, usual) for name, usual in limits.items()}
    settings = {**run.settings, **raised}
    asked = Job(known.cases, run.settings["collectors"], settings, folder.parent, run.title)
    job, here, about = await _described(asked)
    changed = _changed(run, about)
    if not changed and (kernels := changes.changed_files(run)):
        changed = f"the code of {', '.join(kernels)} has changed"
    if changed:
        raise WorkerError(f"{run.id} cannot be resumed: {changed}: profile it again")
    ledger = Ledger(job, store.RunWriter.reopen(folder), on_event)
    ledger.recall()
    return await _collect_all(ledger, here)


async def _described(job: Job) -> tuple[Job, Device | None, Run]:
    """The job with its kernels' declarations, this machine's GPU, and the run's description before anything has run.

    Removes folders of dead jobs.
    """
    for name in job.collectors:
        collectors.load(name)
    if not {"compiler", *ON_GPU}.isdisjoint(job.collectors):
        await asyncio.to_thread(triton_setup.check_cache)
    await asyncio.to_thread(process.sweep, job.runs_dir)
    catalog = job.catalog or await questions.describe(
        job.names("kernel"), job.names("workload"), patience(job.settings)
    )
    here = await asyncio.to_thread(device.detect)
    target = str(job.settings.get("target") or (here.target if here else "sm_90"))
    kernels = await asyncio.to_thread(_kernels, catalog)
    assembler = await asyncio.to_thread(triton_setup.assembler_version, target)
    measured = {
        "target": target,
        "collectors": list(job.collectors),
        "conditions": conditions(job.collectors, job.settings),
    }
    about = Run(
        id=store.new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=job.device or (here if here and here.target == target else device.for_target(target)),
        kernels=kernels,
        versions=dict(job.versions or await asyncio.to_thread(versions)) | ({"ptxas": assembler} if assembler else {}),
        settings={**job.settings, **measured},
        git_revision=await asyncio.to_thread(_revision, [entry["path"] for entry in catalog]),
        title=job.title or ", ".join(kernels),
        notes=tuple(job.notes),
        skipped=tuple(job.skipped),
        warnings=tuple(job.warnings),
    )
    return dataclasses.replace(job, catalog=catalog), here, about


def _kernels(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Each kernel's declaration as its run keeps it, with the digests of its file's GPU functions."""
    return {
        Case(entry["kernel"], "", "", "").name: {field: entry[field] for field in _KEPT}
        | {"variable": entry["kernel"].rpartition(":")[2], "functions": changes.today(Path(entry["path"]))}
        for entry in catalog
    }


def _revision(paths: Sequence[str]) -> str:
    """The commit that the first of these files in a repository is from."""
    return next(filter(None, (git_revision(Path(path)) for path in paths)), "")


def _changed(run: Run, now: Run) -> str:
    """The difference in device or versions that forbids resuming the run; empty where there is none."""
    if run.device.measured and not now.device.measured:
        return f"it was measured on {run.device.name}, which is not here"
    if (run.device.name, run.device.measured) != (now.device.name, now.device.measured):
        return f"it is of {run.device.name} and this is {now.device.name}"
    for name in sorted({*run.versions, *now.versions}):
        if run.versions.get(name) != now.versions.get(name):
            return f"{name} is {now.versions.get(name, 'absent')} and was {run.versions.get(name, 'absent')}"
    return ""


async def _collect_all(
    ledger: Ledger,
    here: Device | None,
    early: Early | None = None,
    standing: Mapping[str, process.Standby] | None = None,
) -> Path:
    """Runs the outstanding cases as far as possible, and closes the run in any case. ``here`` is this machine's GPU."""
    ledger.emit({"event": "start", "run": ledger.writer.run.id})
    try:
        if ledger.job.given:
            await ledger.take_given()
        left = {name: cases for name in ledger.job.collectors if (cases := ledger.left(name))}
        for name in list(left):
            if reason := await asyncio.to_thread(ledger.collectors[name].unavailable):
                ledger.leave(name, reason)
                del left[name]
        on_gpu = {name for name in left if name in ON_GPU or (name == "check" and here is not None)}
        wrapped = () if standing is not None else left.keys() & on_gpu
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            standing = stack.enter_context(standing_by(wrapped)) if standing is None else standing
            first = group.create_task(_take(ledger, early)) if early else None
            others = [name for name in left if name not in on_gpu]
            apart = group.create_task(_collect_apart(ledger, others, early, first))
            if on_gpu:
                group.create_task(_measure(ledger, [name for name in left if name in on_gpu], standing, apart, first))
    except BaseException as error:
        ledger.close(interrupted=True)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error
    return ledger.close()


async def _collect_apart(
    ledger: Ledger, names: Collection[str], early: Early | None, first: asyncio.Task[None] | None
) -> None:
    """Collects what needs no GPU. Its processes share the processors; what ``first`` leaves comes last.

    The cheapest collector begins, and answers soon. Where there are processors for many cases at once, the dearest does: its longest
    case then does not begin last.
    """
    slots = asyncio.Semaphore(processors() - _FREE if roomy() else processors())
    taken = [name for name in names if early and name in early.collectors]
    for now in ([name for name in names if name not in taken], taken):
        async with asyncio.TaskGroup() as group:
            for name in reversed(now) if roomy() else now:
                for share in deal(ledger.left(name), ledger.job.catalog, processors()):
                    group.create_task(attempt.collect(ledger, name, share, leaving=True, slots=slots))
        if first:
            await first


async def _measure(
    ledger: Ledger,
    names: Sequence[str],
    standing: Mapping[str, process.Standby],
    apart: asyncio.Task[None],
    first: asyncio.Task[None] | None,
) -> None:
    """Collects on the GPU, one collector after the other, while no other job does.

    Those that count begin beside the collectors that need no GPU, if processors are free; those that time come last and wait for
    them. Those that may share a process do, since the imports, a CUDA context and the first launch of each kernel take a second a
    process.
    """
    waiting = {"event": "waiting", "doing": "waiting for another job on this GPU"}
    if first:
        await first
    if not roomy():
        await apart
    lock = gpu_lock(await asyncio.to_thread(device.lock_name), lambda: ledger.emit(waiting))
    async with lock:
        await measure_ceilings(ledger)  # while others compile what is checked
        outstanding = sorted((name for name in names if ledger.left(name)), key=TIMED.__contains__)
        await _check_ahead(ledger)
        for now in _shares(outstanding):
            # The next collector must wait until this worker has ended and freed the GPU; after the last nothing waits.
            last = now[-1] == outstanding[-1]
            together = {name: ledger.left(name) for name in IN_TURN if name in now}
            if len(together) > 1:
                await attempt.ahead(ledger, together, leaving=last and together.keys() == {*now}, quiet=apart)
            for name in now:
                if name in TIMED:
                    await apart
                leaving = name == outstanding[-1]
                await attempt.collect(ledger, name, ledger.left(name), leaving=leaving, standby=standing.get(name))


def _shares(names: Sequence[str]) -> list[Sequence[str]]:
    """The collectors that may share a process, in order: a process that waits holds memory of the GPU from others that count."""
    counting, timing = ([name for name in names if (name in TIMED) is timed] for timed in (False, True))
    shares = [names] if {*counting} <= {*IN_TURN} else [counting, timing]
    return [share for share in shares if share]


async def _check_ahead(ledger: Ledger) -> None:
    """Checks many cases in processes beside one another, which also compile them for the collectors that follow.

    A process gets all implementations of a workload, whose reference they share. Cases that choose among programs by timing them
    are left out, and choices that were made beside others are forgotten.
    """
    cases = [case for case in ledger.left("check") if case.impl not in _TUNED]
    count = min(_ABREAST, processors() // 2, len(cases) // _MANY)
    if count < 2:
        return
    alike: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        alike.setdefault((case.kernel, case.workload), []).append(case)
    ordered = sorted(alike.values(), key=lambda cases: moved(cases[0], ledger.job.catalog))
    begun = time.time()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            # Every other one begins with large workloads, so that not all need much memory at a time.
            share = [case for cases in ordered[number::count][:: -1 if number % 2 else 1] for case in cases]
            group.create_task(attempt.ahead(ledger, {"check": share}, beside=True))
    for chosen in worker_output.inductor_cache().glob("*/*.best_config"):
        with contextlib.suppress(OSError):
            if chosen.stat().st_mtime > begun:
                chosen.unlink()


async def _take(ledger: Ledger, early: Early) -> None:
    """Settles what the process of ``early`` collects, until it has ended.

    A case stays outstanding after trouble with the machine, and on a GPU after any: the process may hold memory or another profiler.
    """
    cases = {case.id: case for case in ledger.job.cases}
    try:
        async for event in early.events:
            kind, name, case = event["event"], event.get("collector", ""), cases.get(event.get("case", ""))
            if case is None or (name, case.id) not in ledger.outstanding or event.get("environment"):
                continue
            if name in ON_GPU and kind in ("error", "skipped"):
                continue
            if kind == "result":
                made = Path(event["artefact"])
                for file in made.parent.glob(f"{case.slug}*"):
                    shutil.move(file, ledger.writer.artefact_folder(name) / file.name)
            await ledger.take(name, case, event)
    finally:
        await early.end()


@contextlib.contextmanager
def standing_by(names: Iterable[str]) -> Iterator[dict[str, process.Standby]]:
    """Standby workers of the wrapped collectors among these. They start at once, and end with the block unless a job took them."""
    with contextlib.ExitStack() as stack:
        standing = {name: standby for name in names if (standby := stand_by(name))}
        for standby in standing.values():
            stack.callback(standby.end)
        yield standing


def stand_by(name: str) -> process.Standby | None:
    """A standby worker for a wrapped collector; None for another one, and where no processor is free for it.

    It is the one that an earlier command has left, or a new one.
    """
    if not may_stand_by() or not hasattr(collectors.load(name), "command"):
        return None
    with contextlib.suppress(OSError, RuntimeError):  # also where there is no GPU or no ncu
        return kept_standby.take(name) or process.Standby(*kept_standby.wrapping(name))
    return None


async def measure_ceilings(ledger: Ledger) -> None:
    """Adds the device's measured peak rates to the run, unless it has them or the job leaves them out.

    They are those of the recordings, which an opened run shows in any case. Otherwise they are measured once for a device and its
    versions. They are measured now if the job asks for it (``renew_ceilings``).
    """
    known, settings = ledger.writer.run.device, ledger.job.settings
    measured = any(ceiling.origin == "measured" for ceiling in known.ceilings)
    if measured or not known.measured or not settings.get("measure_ceilings", True):
        return
    uuid, versions = await asyncio.to_thread(device.uuid), ledger.writer.run.versions
    found: tuple[Ceiling, ...] = ()
    if not settings.get("renew_ceilings"):
        found = device_roofs.shared(known, versions.get("driver", ""), store.recorded_dir())
        found = found or await asyncio.to_thread(questions.known_ceilings, uuid, versions)
    if not found:
        ledger.emit({"event": "waiting", "doing": "measuring the device's ceilings"})
        try:
            measured_now = await questions.ceilings(patience(settings))
        except WorkerError as error:
            ledger.writer.note(f"the device's ceilings could not be measured: {error}")
            return
        found = await asyncio.to_thread(questions.keep_ceilings, uuid, versions, measured_now)
    ledger.writer.update(device=dataclasses.replace(known, ceilings=(*known.ceilings, *found)))


def deal(cases: Sequence[Case], catalog: Catalog, processes: int) -> list[Sequence[Case]]:
    """The cases of each process, at most ``processes`` and with cold starts at least ``SHARE`` cases each; those with few bytes first.

    Implementations differ more in their cost to a collector than workloads do, so each process gets some of each.
    """
    sizes = {case: moved(case, catalog) for case in cases}
    count = max(1, min(processes, math.ceil(len(cases) / (SHARE if _is_cold() else 1))))
    ordered = sorted(cases, key=lambda case: (case.kernel, case.impl, sizes[case]))
    return [sorted(ordered[start::count], key=sizes.__getitem__) for start in range(count)]


def moved(case: Case, catalog: Catalog) -> float:
    """Bytes that the case's declared cost reads and writes; 0 without one."""
    cost = declared_cost(case, catalog)
    return float(cost.get("bytes_read", 0) + cost.get("bytes_written", 0))


def may_stand_by() -> bool:
    """Whether a processor is free for a worker that waits for its job."""
    return roomy() and not _is_cold()


def _is_cold() -> bool:
    return os.environ.get(warm.SWITCH, "1") == "0"


def roomy() -> bool:
    """Whether some processors stay free for others while something is measured."""
    return processors() >= _ROOMY


def processors() -> int:
    return len(os.sched_getaffinity(0))


def conditions(names: Iterable[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Conditions of each measuring collector: ``cache_control``, ``clock_control``, and from the settings or the collector's
    defaults ``warmup``, ``repetitions`` (a long call has fewer) and ``rotate`` (sets of inputs taken in turn).
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if name not in KNOWN or not KNOWN[name].caches:
            continue
        if name in COUNTERS:
            numbers = {"warmup": counters.warmup(settings)}
        else:
            module = collectors.load(name)
            numbers = {
                key: int(settings.get(key, getattr(module, key.upper())))
                for key in ("warmup", "repetitions", "rotate")
                if hasattr(module, key.upper())
            }
        found[name] = {"cache_control": KNOWN[name].caches, "clock_control": _CLOCKS, **numbers}
    return found
