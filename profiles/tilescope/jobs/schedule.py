"""The order of a job's collectors: those without a GPU run in parallel, the others one after the other.

Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence

from tilescope import collectors
from tilescope.hardware import device
from tilescope.hardware.gpu_lock import gpu_lock
from tilescope.jobs import kept_ceilings, questions, standby
from tilescope.jobs.attempt import TRIES, Attempt
from tilescope.jobs.job import BATCH, ON_GPU, Job, WorkerError
from tilescope.jobs.ledger import Ledger
from tilescope.table.case import Case
from tilescope.table.run import Device

#: Fewest cases worth the start of one more process.
SHARE = 4


async def collect_all(ledger: Ledger, here: Device | None) -> None:
    """Runs the outstanding cases as far as possible. ``here`` is this machine's GPU."""
    on_gpu = [name for name in ledger.job.collectors if name in ON_GPU or (name == "check" and here is not None)]
    await _side_by_side(ledger, [name for name in ledger.job.collectors if name not in on_gpu])
    if any(map(ledger.left, on_gpu)):
        await _one_by_one(ledger, on_gpu)


async def _side_by_side(ledger: Ledger, names: Sequence[str]) -> None:
    """Runs collectors that need no GPU, in as many processes as the machine has processors."""
    slots, sizes = asyncio.Semaphore(processors()), _sizes(ledger.job)

    async def collect(name: str, cases: Sequence[Case]) -> None:
        async with slots:
            await _collect(ledger, name, cases, leaving=True)

    try:
        async with asyncio.TaskGroup() as group:
            for name in names:
                if ledger.left(name) and await _available(ledger, name):
                    for cases in deal(ledger.left(name), sizes, processors()):
                        group.create_task(collect(name, cases))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def _one_by_one(ledger: Ledger, names: Sequence[str]) -> None:
    """Runs collectors that measure, one after the other, while no other job measures."""
    waiting = {"event": "waiting", "doing": "waiting for another job on this GPU"}
    async with gpu_lock(await asyncio.to_thread(device.lock_name), lambda: ledger.emit(waiting)):
        _stand_by(ledger, names)
        await _measure_ceilings(ledger)
        for number, name in enumerate(names, 1):
            if ledger.left(name) and await _available(ledger, name):
                # The next collector must wait until this worker has ended and freed the GPU; after the last nothing waits.
                await _collect(ledger, name, ledger.left(name), leaving=not any(map(ledger.left, names[number:])))


def _stand_by(ledger: Ledger, names: Sequence[str]) -> None:
    """Starts the first wrapped worker in advance, if other collectors run before it and a processor is free."""
    outstanding = [name for name in names if ledger.left(name)]
    wrapped = [name for name in outstanding if hasattr(collectors.load(name), "command")]
    if wrapped and wrapped[0] != outstanding[0] and standby.roomy():
        collector = collectors.load(wrapped[0])
        if collector.unavailable() is None:
            standby.begin(collector.command, getattr(collector, "environment", dict)())


async def _measure_ceilings(ledger: Ledger) -> None:
    """Adds the device's measured peak rates to the run, unless it has them or the job leaves them out.

    They are measured once for a device and its versions, and again if the job asks for it (``renew_ceilings``).
    """
    known = ledger.writer.run.device
    measured = any(ceiling.origin == "measured" for ceiling in known.ceilings)
    if measured or not known.measured or not ledger.job.settings.get("measure_ceilings", True):
        return
    uuid, versions = await asyncio.to_thread(device.uuid), ledger.writer.run.versions
    renew = ledger.job.settings.get("renew_ceilings", False)
    found = () if renew else await asyncio.to_thread(kept_ceilings.known, uuid, versions)
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


async def _collect(ledger: Ledger, name: str, cases: Sequence[Case], leaving: bool) -> None:
    """Runs the cases with one collector, in as many processes as needed; gives up after ``TRIES`` without progress."""
    collector = collectors.load(name)
    size = int(ledger.job.settings.get("batch", BATCH)) if hasattr(collector, "command") else len(cases)
    left, tries, killed = list(cases), 0, Counter[str]()
    while left:
        outcome = await Attempt(ledger, name, collector, left[:size], killed, leaving=leaving).run()
        if outcome.settled:
            ledger.give_up(name, cases, outcome.obstacle, outcome.detail)
            return
        remaining = [*outcome.first, *left[size:], *outcome.last]
        tries = 0 if len(remaining) < len(left) or outcome.counted else tries + 1
        if outcome.hopeless or tries == TRIES:
            times = f" ({tries} times)" if tries > 1 else ""
            ledger.leave(name, f"{outcome.obstacle or 'its worker settled no case'}{times}", outcome.detail)
            return
        left = remaining


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


def _sizes(job: Job) -> dict[str, float]:
    """Bytes that each case must move, by the case's id."""
    costs = {case.id: job.cost(case) for case in job.cases}
    return {case: cost.get("bytes_read", 0) + cost.get("bytes_written", 0) for case, cost in costs.items()}
