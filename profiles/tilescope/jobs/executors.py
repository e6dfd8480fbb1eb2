"""Executors: GPUs of other processes or machines, and races on them. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tilescope.hardware import device
from tilescope.jobs import supervisor
from tilescope.jobs.job import Job, WorkerError
from tilescope.jobs.versions import versions
from tilescope.runs import artefacts, store
from tilescope.table.case import Case
from tilescope.table.run import Device
from tilescope.tuning import problems


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


class Executor(Protocol):
    """A set of GPUs that kernels can be timed on."""

    async def gpus(self, kernels: Sequence[str]) -> Sequence[Gpu]:
        """The GPUs, with the code of these kernels on each. Raises WorkerError where it cannot be asked."""
        ...

    async def race(self, gpu: Gpu, collector: str, cases: Sequence[Case], settings: Mapping[str, Any]) -> Heat:
        """Races the cases on that GPU. Raises WorkerError where it is lost."""
        ...


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
            found[kernel] = problems.library_digest()
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
