"""Questions to a worker: the kernels' declarations, and the device's peak rates. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from tilescope.jobs import declarations
from tilescope.jobs.job import TIMEOUT, WorkerError
from tilescope.jobs.process import StartError, WorkerProcess
from tilescope.jobs.worker_output import last_line
from tilescope.table.run import Ceiling


async def describe(
    kernels: Iterable[str] = (), workloads: Iterable[str] = (), timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """The declarations of the kernels (none: the whole catalog), as ``tilescope.execution.describe.catalog`` gives them.

    ``timeout`` is for the kernels' own code, in seconds, after the common imports. Cancelling ends the worker. Raises
    WorkerError for a kernel or a workload that is unknown or does not load.
    """
    names, texts = list(kernels), list(workloads)
    kept = await asyncio.to_thread(declarations.known, names, texts)
    if kept is not None:
        return kept
    job = {"action": "describe", "kernels": names, "workloads": texts}
    entries = list((await _ask(job, "catalog", timeout))["kernels"])
    await asyncio.to_thread(declarations.keep, names, texts, entries)
    return entries


async def ceilings(timeout: float) -> tuple[Ceiling, ...]:
    """The device's measured peak rates. Raises WorkerError where one cannot be measured within ``timeout`` seconds."""
    answer = await _ask({"action": "ceilings"}, "ceilings", timeout)
    return tuple(Ceiling(**ceiling) for ceiling in answer["ceilings"])


async def _ask(job: Mapping[str, Any], wanted: str, patience: float) -> dict[str, Any]:
    """The worker's event of the kind ``wanted``. Raises WorkerError with the reason where none comes."""
    try:
        async with WorkerProcess(job) as worker:
            answer: dict[str, Any] | None = None
            async for event in worker.events(patience):
                if event["event"] == wanted:
                    answer = event
                elif event["event"] == "error":
                    raise WorkerError(event["message"])
            if answer is None:
                last = last_line(worker.log())
                raise WorkerError(f"the worker {worker.ending()}" + (f": {last}" if last else ""))
            return answer
    except StartError as error:
        raise WorkerError(str(error)) from error
