"""A job: which cases go through which collectors, and how. Imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.runs import store
from tilescope.table.case import Case
from tilescope.table.run import Device, Skipped
from tilescope.table.sources import KNOWN

#: Collectors that need the GPU to themselves. ``check`` uses it where there is one.
ON_GPU = frozenset(name for name, collector in KNOWN.items() if collector.on_gpu)
#: Longest silence of a worker, in seconds, before it is taken for hung (setting ``timeout``).
TIMEOUT = 600.0
#: Cases a wrapped worker (ncu) does before its wrapper writes what it counted (setting ``batch``).
BATCH = 24

#: Hears a job's events: dictionaries with ``event`` and what belongs to it.
OnEvent = Callable[[dict[str, Any]], None]
#: What kernels declare, a dictionary each, as ``tilescope.execution.describe.catalog`` gives it.
Catalog = Sequence[Mapping[str, Any]]


class WorkerError(ValueError):
    """A job or a question that cannot be served. The message is one line for a person."""


class Given(NamedTuple):
    """An artefact of a case that there is already, so that no worker has to make it."""

    collector: str
    case: Case
    artefact: Path


@dataclass(frozen=True)
class Job:
    """What is to be run: every case by every collector.

    ``settings``: ``target`` (``sm_90``), ``repetitions``, ``warmup``, ``timeout`` and ``interpreter_limit`` in seconds,
    ``measure_ceilings`` (default True), ``renew_ceilings``: measure them although they are known (default False).
    ``catalog`` is what the kernels declare; empty means that a worker is asked. ``notes`` are remarks that the run begins
    with, ``skipped`` the cases left out and why, ``given`` artefacts that exist already. ``device`` and ``versions`` say where
    those were made, if not here.
    """

    cases: Sequence[Case]
    collectors: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    runs_dir: Path = field(default_factory=store.runs_dir)
    title: str = ""
    catalog: Catalog = ()
    notes: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    given: Sequence[Given] = ()
    device: Device | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def patience(self) -> float:
        """Longest silence of a worker, in seconds."""
        return float(self.settings.get("timeout", TIMEOUT))

    def names(self, field: str) -> list[str]:
        """The different values of a field of the cases (``kernel``, ``workload``), in order."""
        return list(dict.fromkeys(getattr(case, field) for case in self.cases))

    def cost(self, case: Case) -> Mapping[str, Any]:
        """The case's cost as its kernel declares it; empty for a case that the catalog does not have."""
        costs: Mapping[str, Any] = next((e["cost"] for e in self.catalog if e["kernel"] == case.kernel), {})
        found: Mapping[str, Any] = costs.get(case.workload, {}).get(case.direction, {})
        return found

    def is_foreign(self, case: Case) -> bool:
        """Whether the case's implementation comes from another library."""
        declared = (e["implementations"].get(case.impl) for e in self.catalog if e["kernel"] == case.kernel)
        return any(known and known["requires"] for known in declared)
