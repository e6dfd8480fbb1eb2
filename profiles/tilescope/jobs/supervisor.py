"""The supervisor: runs a job's cases through worker processes and writes what they say into one run, and goes on with it.

A process that dies, hangs or loses its device costs at most the case it was at: the finished cases are on disk, the others
go on in a fresh process, and what was never tried is outstanding. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope import collectors
from tilescope.collectors.conditions import conditions
from tilescope.hardware import device, ptxas
from tilescope.jobs import scratch
from tilescope.jobs.question import WorkerError, ask
from tilescope.jobs.running_job import BATCH, ON_GPU, OUTSTANDING, TIMEOUT, Catalog, Job, OnEvent, Session, cost_of
from tilescope.runs import journal, staleness, store
from tilescope.runs.provenance import git_revision
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.schema import Device, Run

__all__ = [
    "BATCH", "ON_GPU", "TIMEOUT", "Catalog", "Job", "OnEvent", "WorkerError", "describe", "model_rows", "resume", "run",
]  # fmt: skip


async def describe(
    kernels: Iterable[str] = (), workloads: Iterable[str] = (), timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """What the kernels declare (none: the whole catalog), as ``tilescope.worker.describe.catalog`` gives it.

    ``timeout``: longest time in seconds that their own code may take, once the worker has imported what every kernel
    needs. Cancelling it ends the worker. Raises WorkerError for a kernel or a workload that is not known or does not load.
    """
    job = {"action": "describe", "kernels": list(kernels), "workloads": list(workloads)}
    answer = await ask(job, "catalog", patience=timeout)
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
    await asyncio.to_thread(scratch.sweep, job.runs_dir)
    patience = float(job.settings.get("timeout", TIMEOUT))
    catalog = job.catalog or await describe(dict.fromkeys(c.kernel for c in job.cases), workloads, patience)
    here = await asyncio.to_thread(device.detect)
    about = await asyncio.to_thread(_about, job, catalog, here)
    writer = store.RunWriter(job.runs_dir, about)
    writer.plan(job.cases)
    writer.keep_sources({Case(entry["kernel"], "", "", "").name: _declaring(entry) for entry in catalog})
    writer.append(model_rows(job.cases, catalog), store.MODEL)
    return await Session(job, writer, on_event).run(catalog, here)


async def resume(folder: Path, on_event: OnEvent = lambda event: None) -> Path:
    """Goes on with the interrupted run in ``folder``, as ``run`` would have: what is settled stays as it is.

    Failures of single cases are settled, those of a whole collector are not: it may have been installed, and there may be
    room on the disk now. The run gets a note of when it went on. Raises
    WorkerError when the run is whole, says not what was to be done, or the rest would be of another device, other versions
    or other code than what it has; StoreError when it cannot be read or is still being written.
    """
    run, known = store.read_run(folder), journal.read(folder)
    if run.complete:
        raise WorkerError(f"{run.id} is whole: there is nothing to go on with")
    if known is None:
        raise WorkerError(f"{run.id} does not say what was to be done: profile it anew")
    job = Job(known.cases, run.settings["collectors"], run.settings, folder.parent, run.title)
    for name in job.collectors:
        collectors.load(name)
    await asyncio.to_thread(scratch.sweep, folder.parent)
    kernels, workloads = (dict.fromkeys(getattr(c, name) for c in job.cases) for name in ("kernel", "workload"))
    catalog = await describe(kernels, workloads, float(job.settings.get("timeout", TIMEOUT)))
    here = await asyncio.to_thread(device.detect)
    if changed := _changed(run, await asyncio.to_thread(_about, job, catalog, here)):
        raise WorkerError(f"{run.id} cannot go on, for {changed}: profile it anew")
    if stale := staleness.stale_kernels(store.LoadedRun(run, schema.frame([]), folder)):
        raise WorkerError(f"{run.id} cannot go on, for the code of {', '.join(stale)} has changed: profile it anew")
    writer = store.RunWriter.reopen(folder)
    session = Session(job, writer, on_event)
    rows = writer.rows
    # Read anew: another process may have gone on with it meanwhile, and what a damaged part held is outstanding again.
    known = journal.read(writer.folder) or known
    session.recall(known.settled, rows)
    if not (rows["source"] == store.MODEL).any():
        writer.append(model_rows(job.cases, catalog), store.MODEL)
    said = set(session.remarks())
    writer.update(
        failures=tuple(failure for failure in writer.run.failures if failure.case),
        notes=tuple(note for note in writer.run.notes if note not in said and not note.startswith(OUTSTANDING)),
    )
    writer.note(f"interrupted, and gone on with at {datetime.now(UTC).isoformat(timespec='seconds')}")
    return await session.run(catalog, here)


def model_rows(cases: Iterable[Case], catalog: Catalog) -> pd.DataFrame:
    """What the algorithm cannot avoid, for every case: flops and bytes as the kernels' ``cost`` declares them."""
    rows = []
    for case in cases:
        cost = cost_of(case, catalog)
        if cost:
            rows += [
                case.row(f"algorithm_{name}", cost[name], "model") for name in ("flops", "bytes_read", "bytes_written")
            ]
    return schema.frame(rows)


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
        settings={
            **job.settings,
            "target": target,
            "collectors": list(job.collectors),
            "conditions": conditions(job.collectors, job.settings),
        },
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
