"""The supervisor: runs a job, or resumes an interrupted one, to its end.

Its collectors run in worker processes (``attempt``): those without a GPU in parallel, the others one after the other. The results
go into one run (``ledger``). A process that dies, hangs or loses its device costs at most its current case. Imports neither torch
nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tilescope import collectors
from tilescope.collectors.conditions import conditions
from tilescope.hardware import device
from tilescope.hardware.gpu_lock import gpu_lock
from tilescope.jobs import attempt, kept_ceilings, process, ptxas, questions, warm
from tilescope.jobs.job import ON_GPU, Job, OnEvent, WorkerError
from tilescope.jobs.ledger import Ledger
from tilescope.jobs.versions import versions
from tilescope.runs import changes, journal, store
from tilescope.runs.provenance import git_revision
from tilescope.table.case import Case
from tilescope.table.run import Device, Run

#: Fewest cases worth the start of one more process.
SHARE = 4
#: Fewest processors with which one is free while something is measured.
_ROOMY = 4
#: Fields of a kernel's declaration that its run keeps.
_KEPT = ("summary", "file", "sha256", "dims", "passes", "implementations", "tolerance", "cost", "workloads")


async def run(job: Job, on_event: OnEvent = lambda event: None) -> Path:
    """Runs the job and returns the run's folder. ``on_event`` is called with every event, at last with
    ``{"event": "done", "folder": …, "complete": …}``.

    Each event of a case has ``collector``, ``case``, ``index`` (the number of settled cases) and ``of`` (the number of all).
    Cancelling the task stops the workers, keeps the finished cases in a run that is not complete, and raises
    CancelledError after the ``done`` event. Raises WorkerError or StoreError where nothing can be run or written.
    """
    store.check_writable(job.runs_dir)
    job, here = await _prepared(job)
    return await _collect_all(Ledger.begin(job, await asyncio.to_thread(_about, job, here), on_event), here)


async def resume(folder: Path, on_event: OnEvent = lambda event: None) -> Path:
    """Resumes the interrupted run in ``folder`` as ``run`` would have continued. Settled cases stay as they are.

    Failures of single cases are settled. Those of a whole collector are not, because it may have been installed since, or the
    disk may have room now. The run gets a note with the time. Raises WorkerError when the run is complete, when it does not
    record its cases, or when device, versions or code have changed; StoreError when it cannot be read or is still being written.
    """
    run, known = store.read_run(folder), journal.read(folder)
    if run.complete:
        raise WorkerError(f"{run.id} is complete: there is nothing to resume")
    if known is None:
        raise WorkerError(f"{run.id} does not record its cases: profile it again")
    job, here = await _prepared(Job(known.cases, run.settings["collectors"], run.settings, folder.parent, run.title))
    changed = _changed(run, await asyncio.to_thread(_about, job, here))
    if not changed and (kernels := changes.changed_files(run)):
        changed = f"the code of {', '.join(kernels)} has changed"
    if changed:
        raise WorkerError(f"{run.id} cannot be resumed: {changed}: profile it again")
    return await _collect_all(Ledger.reopen(job, folder, on_event), here)


async def _prepared(job: Job) -> tuple[Job, Device | None]:
    """The job with its kernels' declarations, and this machine's GPU. Removes folders of dead jobs."""
    for name in job.collectors:
        collectors.load(name)
    await asyncio.to_thread(process.sweep, job.runs_dir)
    catalog = job.catalog or await questions.describe(job.names("kernel"), job.names("workload"), job.patience)
    return dataclasses.replace(job, catalog=catalog), await asyncio.to_thread(device.detect)


def _about(job: Job, here: Device | None) -> Run:
    """The run's description before anything has run."""
    target = str(job.settings.get("target") or (here.target if here else "sm_90"))
    entries = {Case(entry["kernel"], "", "", "").name: entry for entry in job.catalog}
    assembler = ptxas.version(target)
    settings = {
        "target": target,
        "collectors": list(job.collectors),
        "conditions": conditions(job.collectors, job.settings),
    }
    return Run(
        id=store.new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=job.device or (here if here and here.target == target else device.for_target(target)),
        kernels={
            name: {field: entry[field] for field in _KEPT}
            | {"variable": entry["kernel"].rpartition(":")[2], "functions": changes.today(Path(entry["path"]))}
            for name, entry in entries.items()
        },
        versions=dict(job.versions or versions()) | ({"ptxas": assembler} if assembler else {}),
        settings={**job.settings, **settings},
        git_revision=next(filter(None, (git_revision(Path(entry["path"])) for entry in job.catalog)), ""),
        title=job.title or ", ".join(entries),
        notes=tuple(job.notes),
        skipped=tuple(job.skipped),
    )


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


async def _collect_all(ledger: Ledger, here: Device | None) -> Path:
    """Runs the outstanding cases as far as possible, and closes the run in any case. ``here`` is this machine's GPU."""
    names = ledger.job.collectors
    on_gpu = [name for name in names if name in ON_GPU or (name == "check" and here is not None)]
    ledger.emit({"event": "start", "run": ledger.writer.run.id})
    try:
        await ledger.take_given()
        await _collect_together(ledger, [name for name in names if name not in on_gpu])
        if any(map(ledger.left, on_gpu)):
            waiting = {"event": "waiting", "doing": "waiting for another job on this GPU"}
            async with gpu_lock(await asyncio.to_thread(device.lock_name), lambda: ledger.emit(waiting)):
                await _measure(ledger, on_gpu)
    except BaseException:
        ledger.close(interrupted=True)
        raise
    return ledger.close()


async def _collect_together(ledger: Ledger, names: Sequence[str]) -> None:
    """Runs collectors that need no GPU, in as many processes as the machine has processors."""
    slots = asyncio.Semaphore(processors())
    costs = {case.id: ledger.job.cost(case) for case in ledger.job.cases}
    sizes = {case: cost.get("bytes_read", 0) + cost.get("bytes_written", 0) for case, cost in costs.items()}

    async def collect(name: str, cases: Sequence[Case]) -> None:
        async with slots:
            await attempt.collect(ledger, name, cases, leaving=True)

    try:
        async with asyncio.TaskGroup() as group:
            for name in names:
                if ledger.left(name) and await _available(ledger, name):
                    for cases in deal(ledger.left(name), sizes, processors()):
                        group.create_task(collect(name, cases))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def _measure(ledger: Ledger, names: Sequence[str]) -> None:
    """Runs collectors that measure, one after the other. A wrapped worker starts while the collectors before it run."""
    outstanding = [name for name in names if ledger.left(name)]
    standing = {name: stand_by(name) for name in outstanding[1:] if hasattr(collectors.load(name), "command")}
    try:
        await measure_ceilings(ledger)
        for number, name in enumerate(outstanding, 1):
            if await _available(ledger, name):
                # The next collector must wait until this worker has ended and freed the GPU; after the last nothing waits.
                leaving = number == len(outstanding)
                await attempt.collect(ledger, name, ledger.left(name), leaving=leaving, standby=standing.get(name))
    finally:
        for standby in filter(None, standing.values()):
            standby.end()


def stand_by(name: str) -> process.Standby | None:
    """A standby worker for this wrapped collector; None where none is to be used, or no processor is free for it."""
    collector = collectors.load(name)
    if os.environ.get(warm.SWITCH, "1") == "0" or processors() < _ROOMY or collector.unavailable():
        return None
    with contextlib.suppress(OSError):
        return process.Standby(collector.command, getattr(collector, "environment", dict)())
    return None


async def measure_ceilings(ledger: Ledger) -> None:
    """Adds the device's measured peak rates to the run, unless it has them or the job leaves them out.

    They are measured once for a device and its versions, and again if the job asks for it (``renew_ceilings``).
    """
    known, settings = ledger.writer.run.device, ledger.job.settings
    measured = any(ceiling.origin == "measured" for ceiling in known.ceilings)
    if measured or not known.measured or not settings.get("measure_ceilings", True):
        return
    uuid, versions = await asyncio.to_thread(device.uuid), ledger.writer.run.versions
    found = () if settings.get("renew_ceilings") else await asyncio.to_thread(kept_ceilings.known, uuid, versions)
    if not found:
        ledger.emit({"event": "waiting", "doing": "measuring the device's ceilings"})
        try:
            measured_now = await questions.ceilings(ledger.job.patience)
        except WorkerError as error:
            ledger.writer.note(f"the device's ceilings could not be measured: {error}")
            return
        found = await asyncio.to_thread(kept_ceilings.keep, uuid, versions, measured_now)
    ledger.writer.update(device=dataclasses.replace(known, ceilings=(*known.ceilings, *found)))


async def _available(ledger: Ledger, name: str) -> bool:
    """Whether the collector can run here; where it cannot, its cases stay outstanding."""
    reason = await asyncio.to_thread(collectors.load(name).unavailable)
    if reason:
        ledger.leave(name, reason)
    return not reason


def deal(cases: Sequence[Case], sizes: Mapping[str, float], processes: int) -> list[Sequence[Case]]:
    """The cases of each process, at most ``processes`` and at least ``SHARE`` cases each; small ones first.

    Implementations differ more in their cost to a collector than workloads do, so each process gets some of each.
    """
    count = max(1, min(processes, math.ceil(len(cases) / SHARE)))
    ordered = sorted(cases, key=lambda case: (case.kernel, case.impl, sizes.get(case.id, 0)))
    dealt = [ordered[start::count] for start in range(count)]
    return [sorted(share, key=lambda case: sizes.get(case.id, 0)) for share in dealt]


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
