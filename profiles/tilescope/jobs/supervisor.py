"""The supervisor: runs a job, or resumes an interrupted one, to its end.

Cases run in worker processes (``schedule``, ``attempt``), and their results go into one run (``ledger``). A process that dies,
hangs or loses its device costs at most its current case. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.collectors.conditions import conditions
from tilescope.hardware import device
from tilescope.jobs import ptxas, questions, schedule, scratch
from tilescope.jobs.job import Job, OnEvent, WorkerError
from tilescope.jobs.ledger import Ledger
from tilescope.jobs.versions import versions
from tilescope.runs import journal, staleness, store
from tilescope.runs.provenance import git_revision
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Run


async def run(job: Job, on_event: OnEvent = lambda event: None) -> Path:
    """Runs the job and returns the run's folder. ``on_event`` is called with every event, at last with
    ``{"event": "done", "folder": …, "complete": …}``.

    Each event of a case has ``collector``, ``case``, ``index`` (the number of settled cases) and ``of`` (the number of all).
    Cancelling the task stops the workers, keeps the finished cases in a run that is not complete, and raises
    CancelledError after the ``done`` event. Raises WorkerError or StoreError where nothing can be run or written.
    """
    store.check_writable(job.runs_dir)
    job, here = await _prepared(job)
    about = await asyncio.to_thread(_about, job, here)
    sources = {Case(entry["kernel"], "", "", "").name: _declaring(entry) for entry in job.catalog}
    return await _finish(Ledger.begin(job, about, sources, on_event), here)


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
    if changed := _changed(run, await asyncio.to_thread(_about, job, here)):
        raise WorkerError(f"{run.id} cannot be resumed: {changed}: profile it again")
    if stale := staleness.stale_kernels(store.LoadedRun(run, schema.frame([]), folder)):
        raise WorkerError(f"{run.id} cannot be resumed: the code of {', '.join(stale)} has changed: profile it again")
    return await _finish(Ledger.reopen(job, folder, on_event), here)


async def _prepared(job: Job) -> tuple[Job, Device | None]:
    """The job with its kernels' declarations, and this machine's GPU. Removes folders of dead jobs."""
    for name in job.collectors:
        collectors.load(name)
    await asyncio.to_thread(scratch.sweep, job.runs_dir)
    catalog = job.catalog or await questions.describe(job.names("kernel"), job.names("workload"), job.patience)
    return dataclasses.replace(job, catalog=catalog), await asyncio.to_thread(device.detect)


async def _finish(ledger: Ledger, here: Device | None) -> Path:
    """Runs the outstanding cases as far as possible, and closes the run in any case."""
    ledger.emit({"event": "start", "run": ledger.writer.run.id})
    try:
        await ledger.take_given()
        await schedule.collect_all(ledger, here)
    except BaseException:
        ledger.close(interrupted=True)
        raise
    return ledger.close()


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


def _about(job: Job, here: Device | None) -> Run:
    """The run's description before anything has run."""
    target = str(job.settings.get("target") or (here.target if here else "sm_90"))
    chosen = job.device or (here if here and here.target == target else device.for_target(target))
    kept = ("summary", "file", "sha256", "dims", "passes", "implementations", "tolerance", "cost", "workloads")
    entries = {Case(entry["kernel"], "", "", "").name: entry for entry in job.catalog}
    revision = next(filter(None, (git_revision(Path(entry["path"])) for entry in job.catalog)), "")
    assembler = ptxas.version(target)
    return Run(
        id=store.new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=chosen,
        kernels={
            name: {field: entry[field] for field in kept} | {"variable": entry["kernel"].rpartition(":")[2]}
            for name, entry in entries.items()
        },
        versions=dict(job.versions or versions()) | ({"ptxas": assembler} if assembler else {}),
        settings={
            **job.settings,
            "target": target,
            "collectors": list(job.collectors),
            "conditions": conditions(job.collectors, job.settings),
        },
        git_revision=revision,
        title=job.title or ", ".join(entries),
        notes=tuple(job.notes),
        skipped=tuple(job.skipped),
    )


def _declaring(entry: Mapping[str, Any]) -> dict[str, str]:
    """The text of the file that declares a kernel, by its name; empty where it has changed since.

    Collectors only keep the files that launch something.
    """
    path = Path(entry["path"])
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if (text := store.text_of(path, entry["sha256"])) is not None:
            return {path.name: text}
    return {}
