"""The GPUs of a Dask cluster's workers. Needs ``pip install 'tilescope[dask]'``.

A worker has the first GPU of its CUDA_VISIBLE_DEVICES, so start one worker a GPU. Races run in Tilescope's own processes beside
it, so that a faulting kernel harms neither the worker nor the cluster. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tilescope.jobs import executors
from tilescope.jobs.executors import Gpu, Heat
from tilescope.jobs.job import WorkerError
from tilescope.jobs.ledger import one_line
from tilescope.table.case import Case

#: Seconds to wait for an answer of the scheduler.
PATIENCE = 10.0


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[Dask]:
    """Connects to a scheduler; yields its executor. Raises WorkerError where none answers or Dask is not installed."""
    try:
        from distributed import Client  # noqa: PLC0415 - optional
    except ImportError as error:
        raise WorkerError("--scheduler needs Dask: pip install 'tilescope[dask]'") from error
    try:
        client = await Client(address, asynchronous=True, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerError(f"no Dask scheduler answers at {address}: {type(error).__name__}") from error
    async with client:
        yield Dask(client)


class Dask:
    """An executor (``executors.Executor``) on the workers of ``client``."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def gpus(self, kernels: Sequence[str]) -> list[Gpu]:
        """The workers' GPUs. Raises WorkerError where a worker cannot answer, for example without Tilescope."""
        try:
            asked: Mapping[str, Any] = await self._client.run(executors.here, list(kernels), on_error="return")
        except Exception as error:
            raise WorkerError(f"the Dask workers cannot be asked: {one_line(error)}") from error
        if not asked:
            raise WorkerError("the Dask scheduler has no workers")
        found = []
        for place, answer in asked.items():
            if isinstance(answer, BaseException):
                raise WorkerError(f"the Dask worker {place} cannot say which GPU it has: {one_line(answer)}")
            if answer is not None:
                found.append(Gpu(place, answer.uuid, answer.device, answer.versions, answer.code))
        return found

    async def race(self, gpu: Gpu, collector: str, cases: Sequence[Case], settings: Mapping[str, Any]) -> Heat:
        """Races the cases on the GPU's worker. Raises WorkerError where it is lost."""
        future = self._client.submit(
            executors.race_here, collector, list(cases), dict(settings),
            workers=[gpu.place], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip
        try:
            found: Heat = await future
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise WorkerError(one_line(error)) from error
        return found
