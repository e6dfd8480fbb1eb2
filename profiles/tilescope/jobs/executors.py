"""GPUs of other processes or machines, and races on them: those of a Dask cluster (``pip install 'tilescope[dask]'``).

A worker of the cluster has the first GPU of its CUDA_VISIBLE_DEVICES, so start one worker a GPU. Races run in Tilescope's own processes
beside it, so that a faulting kernel harms neither the worker nor the cluster. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tilescope.hardware import device
from tilescope.jobs import supervisor
from tilescope.jobs.job import Job, WorkerError
from tilescope.jobs.ledger import one_line
from tilescope.jobs.versions import versions
from tilescope.runs import artefacts, store
from tilescope.table.case import Case
from tilescope.table.run import Device
from tilescope.tuning import memory

#: Seconds to wait for an answer of the scheduler.
PATIENCE = 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class Gpu:
    """One GPU with the versions and the code of its machine.

    ``place`` is its address within the executor, ``code`` the digest of each kernel's code there.
    """

    place: str
    uuid: str
    device: Device
    versions: Mapping[str, str]
    code: Mapping[str, str]

    @property
    def kind(self) -> tuple[str, ...]:
        """The properties that must be equal for times to be comparable: the GPU's name and the compiler's versions."""
        return self.device.name, *(self.versions.get(name, "") for name in ("triton", "torch", "driver"))


@dataclasses.dataclass(frozen=True)
class Heat:
    """A race's results: the artefact of each case as text, by the case's id, or the reason why it has none."""

    artefacts: Mapping[str, str]
    failures: Mapping[str, str]


def here(kernels: Sequence[str], place: str = "") -> Gpu | None:
    """This process's GPU; None where nothing can be timed."""
    found = None if device.unavailable() else device.detect()
    return Gpu(place, device.uuid(), found, versions(), code(kernels)) if found else None


def code(kernels: Sequence[str]) -> dict[str, str]:
    """The digest of each kernel's code here: the library's, or a person's own file's; empty where that is missing."""
    found = {}
    for kernel in kernels:
        path = Path(kernel.rpartition(":")[0])
        if ".py:" not in kernel:
            found[kernel] = memory.library_digest()
        else:
            found[kernel] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


def race_here(collector: str, cases: Sequence[Case], settings: Mapping[str, Any]) -> Heat:
    """Races the cases on this process's GPU, in a worker process. Raises WorkerError where no case was settled."""
    with tempfile.TemporaryDirectory(prefix="tilescope-heat-") as folder:
        job = Job(cases, (collector,), settings, runs_dir=Path(folder))
        loaded = store.open_run(asyncio.run(supervisor.run(job)))
        failures = {failure.case: failure.message for failure in loaded.run.failures}
        paths = {case.id: artefacts.find(loaded.folder, collector, case) for case in cases}
        found = {case: path.read_text(encoding="utf-8") for case, path in paths.items() if path}
        if not found:
            raise WorkerError(next(iter(failures.values()), "its worker settled no case"))
        return Heat(found, failures)


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[Dask]:
    """Connects to a scheduler; yields its executor. Raises WorkerError where none answers or Dask is not installed."""
    try:
        from distributed import Client, comm  # noqa: PLC0415 - optional
    except ImportError as error:
        raise WorkerError("--scheduler needs Dask: pip install 'tilescope[dask]'") from error
    try:
        comm.get_address_host_port(address if "://" in address else f"tcp://{address}", strict=True)
    except ValueError as error:
        raise WorkerError(f"{address!r} is no address of a Dask scheduler: write tcp://host:8786") from error
    try:
        client = await Client(address, asynchronous=True, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerError(
            f"no Dask scheduler answers at {address} within {PATIENCE:g} s: 'dask scheduler' starts one"
        ) from error
    async with client:
        yield Dask(client)


class Dask:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def gpus(self, kernels: Sequence[str]) -> list[Gpu]:
        """The workers' GPUs. Raises WorkerError where a worker cannot answer, for example without Tilescope."""
        try:
            asked: Mapping[str, Any] = await self._client.run(here, list(kernels), on_error="return")
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
            race_here, collector, list(cases), dict(settings),
            workers=[gpu.place], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip
        try:
            found: Heat = await future
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise WorkerError(one_line(error)) from error
        return found
