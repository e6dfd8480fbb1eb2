"""The description of a run: its kernels, device, versions and settings. Imports neither torch nor triton."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilescope.files import json_shape, names
from tilescope.table.case import Case, readable
from tilescope.table.description import DeclaredKernel, Settings

SCHEMA_VERSION = 1

#: Most characters of a run's title, and of a kernel's name.
LONGEST_TITLE, _LONGEST_NAME = 20_000, 4096
#: Most cases that a note names.
_NAMED = 3
#: The note of an older run that a collector skipped cases.
_SKIPPED = re.compile(r"([\w.]+) skipped(?: \d+ of [^:]*)?: (.*)", re.DOTALL)


class SchemaError(ValueError):
    """A table or a run that does not follow the schema. The message says where and what to do."""


@dataclass(frozen=True)
class Ceiling:
    """One roof of a device.

    ``name`` is a memory level (``hbm``, ``l2``, ``l1``; ``value`` in byte/second) or a pipe (``fp32``,
    ``bf16``, …; ``value`` in flop/second, or op/second of integers). ``origin`` is ``measured`` or ``datasheet``; ``note`` says how
    it was measured or which document it comes from. A measured roof has the ``driver`` and the ``date`` of its measurement.
    """

    name: str
    value: float
    unit: str
    origin: str
    note: str = ""
    driver: str = ""
    date: str = ""

    @property
    def provenance(self) -> str:
        """The note with the driver and the date: ``device copy of 1 GB; driver 580.1; measured at 2026-11-26T07:35:30+00:00``."""
        dated = [f"driver {self.driver}" if self.driver else "", f"measured at {self.date}" if self.date else ""]
        return "; ".join(filter(None, [self.note, *dated]))


@dataclass(frozen=True)
class Device:
    """The GPU of a run. ``target`` is its architecture (``sm_90``); ``l2_bytes`` and ``memory_bytes`` are in bytes.

    ``measured`` is False where no such GPU took part and only its published figures are known.
    """

    name: str
    target: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    measured: bool
    ceilings: tuple[Ceiling, ...] = ()

    @property
    def where(self) -> str:
        """The part that it took: ``on NVIDIA H200``, or ``predicted for NVIDIA H200`` where no such GPU took part."""
        return f"{'on' if self.measured else 'predicted for'} {self.name}"

    def ceiling(self, name: str, origin: str) -> Ceiling | None:
        """The roof called ``name`` of that origin, or None."""
        return next((c for c in self.ceilings if c.name == name and c.origin == origin), None)


@dataclass(frozen=True)
class Failure:
    """A case without a result. ``message`` says why; ``detail`` may hold a traceback."""

    case: str
    collector: str
    message: str
    detail: str = ""

    def concerns(self, kernel: str) -> bool:
        """Whether the case is one of the kernel with that name (``Case.name``), wherever the kernel was declared."""
        # An older run calls a user's own kernel by its variable.
        return readable(self.case).startswith(f"{kernel}/") or f".py:{kernel}/" in self.case


@dataclass(frozen=True)
class Skipped:
    """Cases that a collector did not try. ``message`` says why; ``limited`` that a limit of the run left them out.

    An older run did not note which cases: ``cases`` is empty there.
    """

    collector: str
    message: str
    cases: tuple[Case, ...] = ()
    limited: bool = False

    @property
    def note(self) -> str:
        """The run's note about these cases."""
        impls = ", ".join(dict.fromkeys(case.impl for case in self.cases))
        named = [readable(case.id) for case in self.cases[:_NAMED]] if self.limited else []
        others = f" and {len(self.cases) - _NAMED} more" if self.limited and len(self.cases) > _NAMED else ""
        which = f" ({', '.join(named)}{others})" if named else ""
        return f"{self.collector} skipped {len(self.cases)} of {impls}{which}: {self.message}"


@dataclass(frozen=True)
class Run:
    """The description of a run.

    ``started`` is ISO 8601 in UTC. ``kernels`` maps a kernel's name to its declaration (``DeclaredKernel``). ``versions``
    names torch, triton, driver, ncu, ptxas, python. ``settings`` holds clocks, cache control, warm-up, repetitions.
    ``complete`` is False where the run was cancelled or its worker died; its finished cases are in the table. ``warnings`` say what a
    case's code probably does not mean to do (``kernel_faults``), though it has a result.
    """

    id: str
    started: str
    device: Device
    kernels: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    git_revision: str = ""
    failures: tuple[Failure, ...] = ()
    complete: bool = True
    schema_version: int = SCHEMA_VERSION
    title: str = ""
    notes: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[Failure, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; ``Run.from_json`` reverses it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """The run that ``data`` describes. Raises SchemaError for a newer schema, and for an absent or invalid field."""
        version = data.get("schema_version")
        if not isinstance(version, int):
            raise SchemaError("not a run: it has no schema_version")
        if version > SCHEMA_VERSION:
            raise SchemaError(
                f"written with schema {version}, this Tilescope reads up to {SCHEMA_VERSION}: upgrade with "
                "'pip install -U tilescope'"
            )
        try:
            run = json_shape.fit(data, cls, "")
            # Other parts than these are kept as they are.
            json_shape.fit(run.kernels, dict[str, DeclaredKernel], "kernels")
            json_shape.fit(run.settings, Settings, "settings")
            if "skipped" not in data:
                told = filter(None, map(_SKIPPED.fullmatch, run.notes))
                run = dataclasses.replace(run, skipped=tuple(Skipped(found[1], found[2]) for found in told))
            run.check()
        except ValueError as error:
            raise SchemaError(f"the run's description is damaged ({error}): record it again") from error
        return run

    def check(self) -> None:
        """Raises ValueError for an id or a collector that cannot name a folder, and for impossible figures of the device."""
        names.file_name(self.id, "a run's id")
        for collector in self.settings.get("collectors", ()):
            names.file_name(collector, "a collector's name")
        for name in ("multiprocessors", "l2_bytes", "memory_bytes"):
            if getattr(self.device, name) < 0:
                raise ValueError(f"device.{name} is negative")
        for ceiling in self.device.ceilings:
            if not ceiling.value > 0:
                raise ValueError(f"the device's ceiling {ceiling.name!r} is not above 0")
        for text, most in ((self.title, LONGEST_TITLE), *((name, _LONGEST_NAME) for name in self.kernels)):
            if len(text) > most:
                raise ValueError(f"a name or title of more than {most} characters")

    def failures_of(self, kernel: str) -> list[Failure]:
        """The failures of the kernel's cases."""
        return [failure for failure in self.failures if failure.concerns(kernel)]
