"""A job: its cases, its collectors and its settings. Imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tilescope.runs.places import runs_dir
from tilescope.table.case import Case
from tilescope.table.run import Device, Failure, Skipped
from tilescope.table.sources import KNOWN

#: Collectors that need the GPU to themselves. ``check`` uses it where there is one.
ON_GPU = frozenset(name for name, collector in KNOWN.items() if collector.on_gpu)
#: Collectors that time calls, so that the CPU rests beside them.
TIMED = frozenset(name for name, collector in KNOWN.items() if collector.timed)
#: Collectors that may use the GPU one after the other in one process, in this order: CUPTI counts before torch.profiler has used it,
#: but not afterwards, and those that time wait for the CPU to rest, so they come last.
IN_TURN = ("check", "cupti", "events", "torch_profiler")
#: Seconds of silence after which a worker counts as hung (setting ``timeout``).
TIMEOUT = 600.0
#: Number of cases that a wrapped worker (ncu) runs before its wrapper writes its counts (setting ``batch``).
BATCH = 48

#: Listens to a job's events: dictionaries with the key ``event`` and others.
OnEvent = Callable[[dict[str, Any]], None]
#: Declarations of kernels, a dictionary each, from ``tilescope.execution.describe.catalog``.
Catalog = Sequence[Mapping[str, Any]]


class WorkerError(ValueError):
    """A job or a question that cannot be served. The message is one line."""


class Given(NamedTuple):
    """An existing artefact of a case, which no worker needs to make."""

    collector: str
    case: Case
    artefact: Path


@dataclass(frozen=True)
class Job:
    """Every case by every collector.

    ``settings``: ``target`` (``sm_90``), ``repetitions``, ``warmup``, ``timeout`` in seconds, ``interpreter_limit`` in seconds of CPU
    time, ``lanes_slowdown`` (1.15), ``measure_ceilings`` (default True), ``renew_ceilings`` (measure them even if they are known, default
    False), ``one_pass`` (CUPTI counts what one pass counts, default False).
    ``catalog`` has the kernels' declarations; a worker is asked if it is empty. ``notes`` are the run's first notes, ``skipped``
    the cases left out and why, ``given`` existing artefacts. ``device`` and ``versions`` are of the machine that made these, if
    it is another one.
    """

    cases: Sequence[Case]
    collectors: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    runs_dir: Path = field(default_factory=runs_dir)
    title: str = ""
    catalog: Catalog = ()
    notes: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    warnings: Sequence[Failure] = ()
    given: Sequence[Given] = ()
    device: Device | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON data; ``Job.from_json`` reverses it."""
        data: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Job:
        """The job in the data of ``to_json``. Raises ValueError for other data."""
        return msgspec.convert(data, cls, dec_hook=lambda kind, text: kind(text))

    def names(self, field: str) -> list[str]:
        """The distinct values of a field of the cases (``kernel``, ``workload``), in order."""
        return list(dict.fromkeys(getattr(case, field) for case in self.cases))


def patience(settings: Mapping[str, Any]) -> float:
    """Seconds of silence after which a worker counts as hung."""
    return float(settings.get("timeout", TIMEOUT))


def declared_cost(case: Case, catalog: Catalog) -> Mapping[str, Any]:
    """The case's cost as its kernel declares it; empty for a case that is not in the catalog."""
    costs: Mapping[str, Any] = next((entry["cost"] for entry in catalog if entry["kernel"] == case.kernel), {})
    found: Mapping[str, Any] = costs.get(case.workload, {}).get(case.direction, {})
    return found


def is_foreign(case: Case, catalog: Catalog) -> bool:
    """Whether the case's implementation comes from another library."""
    declared = (entry["implementations"].get(case.impl) for entry in catalog if entry["kernel"] == case.kernel)
    return any(known and known["requires"] for known in declared)
