"""GPUs that are not this process's to use: which there are, and races on them.

An executor knows GPUs by what they are, not by where: one that two workers see is one. Imports neither torch nor triton.
"""

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
    """One GPU and what compiles and launches beside it. ``place`` is how its executor reaches it, ``code`` the digest of each
    kernel's code there.
    """

    place: str
    uuid: str
    device: Device
    versions: Mapping[str, str]
    code: Mapping[str, str]

    @property
    def kind(self) -> tuple[str, ...]:
        """What must be alike for times to mean the same: the GPU's name, and what compiles."""
        return self.device.name, *(self.versions.get(name, "") for name in ("triton", "torch", "driver"))


@dataclasses.dataclass(frozen=True)
class Heat:
    """What a race came to: the artefact of each case by its id, as text, and why a case has none."""

    artefacts: Mapping[str, str]
    failures: Mapping[str, str]


class Executor(Protocol):
    """Somewhere that kernels can be timed."""

    async def gpus(self, kernels: Sequence[str]) -> Sequence[Gpu]:
        """Its GPUs, each once, with the code of these kernels there. Raises WorkerError where it cannot be asked."""
        ...

    async def race(self, gpu: Gpu, collector: str, cases: Sequence[Case], settings: Mapping[str, Any]) -> Heat:
        """The cases raced on that GPU. Raises WorkerError where it is lost."""
        ...


def here(kernels: Sequence[str], place: str = "") -> Gpu | None:
    """The GPU of the process that asks; None where none can be timed on."""
    found = None if device.unavailable() else device.detect()
    return Gpu(place, device.uuid(), found, versions(), code(kernels)) if found else None


def code(kernels: Sequence[str]) -> dict[str, str]:
    """Digest of what each kernel is here: the library's code, or a person's own file; empty where there is none."""
    found = {}
    for kernel in kernels:
        path = Path(kernel.rpartition(":")[0]) if ".py:" in kernel else None
        if path is None:
            found[kernel] = problems.library_digest()
        else:
            found[kernel] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


def race_here(collector: str, cases: Sequence[Case], settings: Mapping[str, Any]) -> Heat:
    """The cases raced on the GPU of the process that asks, in a worker process of Tilescope's. Raises WorkerError."""
    with tempfile.TemporaryDirectory(prefix="tilescope-heat-") as folder:
        job = Job(cases, (collector,), settings, runs_dir=Path(folder))
        loaded = store.open_run(asyncio.run(supervisor.run(job)))
        failures = {failure.case: failure.message for failure in loaded.run.failures}
        paths = {case.id: artefacts.find(loaded.folder, collector, case) for case in cases}
        found = {case: path.read_text(encoding="utf-8") for case, path in paths.items() if path}
        if not found:
            raise WorkerError(next(iter(failures.values()), "its worker settled no case"))
        return Heat(found, failures)
