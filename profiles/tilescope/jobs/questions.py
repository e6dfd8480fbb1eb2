"""Questions to a worker: the kernels' declarations, and the device's peak rates. Answers are cached on disk.

Declarations hold while the library's code, Tilescope's code that describes it, and the versions are unchanged; those of kernels in
a person's own files are not cached, because they may import from anywhere. Rates depend on the device, its versions and the
measuring code. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilescope.files import installed, json_shape, user_cache
from tilescope.hardware import device
from tilescope.hardware.ceilings import MEASURED, unit
from tilescope.jobs.job import TIMEOUT, WorkerError
from tilescope.jobs.process import StartError, WorkerProcess
from tilescope.jobs.worker_output import last_line
from tilescope.table.run import Ceiling
from tilescope.version import VERSION

#: The kinds of cached answers.
_CEILINGS, _DECLARATIONS = "ceilings", "declarations"
#: Versions that a rate depends on.
_VERSIONS = ("driver", "torch", "triton", "cublas", "ptxas")
#: Files that measure rates.
_MEASURING = ("measured_rates.py", "cold.py")
#: Files of Tilescope that make a description.
_MAKERS = ("execution/describe.py", "execution/execute.py", "files/installed.py")


async def describe(
    kernels: Iterable[str] = (), workloads: Iterable[str] = (), timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """The declarations of the kernels (none: the whole catalog), as ``tilescope.execution.describe.catalog`` gives them.

    ``timeout`` is for the kernels' own code, in seconds, after the common imports. Cancelling ends the worker. Raises
    WorkerError for a kernel or a workload that is unknown or does not load.
    """
    names, texts = list(kernels), list(workloads)
    kept = await asyncio.to_thread(known_declarations, names, texts)
    if kept is not None:
        return kept
    job = {"action": "describe", "kernels": names, "workloads": texts}
    entries = list((await ask(job, "catalog", timeout))["kernels"])
    await asyncio.to_thread(keep_declarations, names, texts, entries)
    return entries


async def ceilings(timeout: float) -> tuple[Ceiling, ...]:
    """The device's measured peak rates. Raises WorkerError where one cannot be measured within ``timeout`` seconds."""
    answer = await ask({"action": "ceilings"}, "ceilings", timeout)
    return tuple(Ceiling(**ceiling) for ceiling in answer["ceilings"])


async def ask(job: Mapping[str, Any], wanted: str, patience: float) -> dict[str, Any]:
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


def known_ceilings(device: str, versions: Mapping[str, str]) -> tuple[Ceiling, ...]:
    """The cached rates of the device (its UUID) with these versions; empty where there are none."""
    kept = user_cache.read(_CEILINGS, ceilings_key(device, versions)) if device else None
    try:
        found = json_shape.fit(kept, tuple[Ceiling, ...], "")
        return tuple(one for one in found if one.origin == MEASURED and one.unit == unit(one.name) and one.value > 0)
    except json_shape.Misfit:
        return ()


def keep_ceilings(device: str, versions: Mapping[str, str], found: Iterable[Ceiling]) -> tuple[Ceiling, ...]:
    """Caches rates that were just measured. Returns them with their driver and date."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    dated = tuple(dataclasses.replace(roof, driver=versions.get("driver", ""), date=now) for roof in found)
    if device and dated:
        user_cache.write(_CEILINGS, ceilings_key(device, versions), [dataclasses.asdict(ceiling) for ceiling in dated])
    return dated


def ceilings_key(device: str, versions: Mapping[str, str]) -> str:
    execution = Path(__file__).resolve().parents[1] / "execution"
    code = [user_cache.digest_of_code(execution / name) for name in _MEASURING]
    return user_cache.digest([device, {name: versions.get(name, "") for name in _VERSIONS}, code])


def known_declarations(kernels: Sequence[str], workloads: Sequence[str]) -> list[dict[str, Any]] | None:
    """The cached answer to ``questions.describe`` with these arguments; None where there is none."""
    key = _declarations_key(kernels, workloads)
    if key is None:
        return None
    entries: list[dict[str, Any]] | None = user_cache.read(_DECLARATIONS, key)
    if not (isinstance(entries, list) and all(isinstance(one, dict) and "implementations" in one for one in entries)):
        entries = None
    if entries is None and kernels and not workloads:
        # Without other workloads, the answer is part of the whole catalog's.
        whole = {entry["kernel"]: entry for entry in known_declarations((), ()) or ()}
        entries = [whole[kernel] for kernel in kernels] if all(kernel in whole for kernel in kernels) else None
    for entry in entries or ():
        for declared in entry["implementations"].values():
            declared["available"] = not installed.not_installed(declared["requires"])
    return entries


def keep_declarations(kernels: Sequence[str], workloads: Sequence[str], entries: Sequence[Any]) -> None:
    """Caches an answer, unless a kernel is in a person's own file."""
    key = _declarations_key(kernels, workloads)
    if key is not None:
        user_cache.write(_DECLARATIONS, key, list(entries))


def _declarations_key(kernels: Sequence[str], workloads: Sequence[str]) -> str | None:
    roots = installed.folders_of("tilescope_kernels")
    if not roots or any(".py" in kernel for kernel in kernels):
        return None
    here = Path(__file__).resolve().parents[1]
    try:
        code = [user_cache.digest_of_code(path) for path in (*roots, *(here / name for name in _MAKERS))]
    except OSError:
        return None
    versions = {"python": sys.version, "tilescope": VERSION, **device.installed()}
    return user_cache.digest([[str(root) for root in roots], code, versions, list(kernels), list(workloads)])
