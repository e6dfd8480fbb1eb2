"""One question to a worker: what the kernels declare, or how fast the device is. Imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilescope.jobs.bounded_log import last_line
from tilescope.jobs.process import StartError, WorkerProcess


class WorkerError(ValueError):
    """The worker refused, or could not answer at all. The message is one line for a person."""


async def ask(job: Mapping[str, Any], wanted: str, patience: float) -> dict[str, Any]:
    """The one event of a worker that answers a question. Raises WorkerError with the reason when it does not.

    It may be silent for ``patience`` seconds once it has imported what it needs.
    """
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
                silence = f" for {patience:g} s" if worker.silent else ""
                ending = worker.ending().replace("answer", f"answer{silence}")
                raise WorkerError(f"the worker {ending}" + (f": {last}" if last else ""))
            return answer
    except StartError as error:
        raise WorkerError(str(error)) from error
