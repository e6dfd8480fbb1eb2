"""GPUs behind a Dask scheduler: each worker of its cluster that has one. Needs ``pip install 'tilescope[dask]'``.

A worker has the GPU that its CUDA_VISIBLE_DEVICES names first: start one a GPU. What it is asked for runs in processes of
Tilescope's own beside it, so that a kernel that faults costs neither the worker nor its cluster. Imports neither torch nor
triton.
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

#: Seconds until a scheduler or a worker that does not answer is given up.
PATIENCE = 10.0


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[Dask]:
    """The cluster's executor while the connection lasts. Raises WorkerError where there is no such scheduler."""
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
    """An executor on the workers that ``client`` reaches."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def gpus(self, kernels: Sequence[str]) -> list[Gpu]:
        """The workers' GPUs. Raises WorkerError where a worker cannot answer, for want of Tilescope for one."""
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
        """The cases raced on the worker that has the GPU. Raises WorkerError where it is lost."""
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
