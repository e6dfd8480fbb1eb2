"""Turns a request into a job: checks names, chooses defaults, lists the cases.

The command line, ``tilescope.profile`` and the app all plan here. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.hardware import ceilings, device
from tilescope.jobs import questions
from tilescope.jobs.job import ON_GPU, Catalog, Given, Job, patience
from tilescope.runs import store
from tilescope.table.case import Case, config_text, parse_config
from tilescope.table.run import Skipped
from tilescope.table.sources import KNOWN
from tilescope.table.suggest import unknown

AUTO, ALL = "auto", "all"
#: Seconds of work that ``auto`` gives the interpreter for a case whose bytes a GPU counts.
BRIEF = 5.0
#: Architecture to compile for where there is no GPU.
DEFAULT_TARGET = "sm_90"


class RequestError(ValueError):
    """A request that cannot be served. The message is one line with the accepted values."""


@dataclass(frozen=True)
class Request:
    """A person's choice of cases and collectors. An empty field means the default: every kernel of the catalog, every
    available implementation, the kernel's own workloads, all its passes.

    ``collectors`` are names, or ``("auto",)`` for all that this machine can run. ``configs`` are texts such as
    ``BLOCK_M=64,num_warps=4``, or ``("all",)`` for every declared one and the implementation's default; without any, the
    implementation chooses. ``target`` is an architecture (``sm_90``), by default this machine's GPU or an H200. ``notes`` are the
    run's first notes, ``skipped`` the cases left out and why, ``given`` existing artefacts.
    """

    kernels: Sequence[str] = ()
    implementations: Sequence[str] = ()
    workloads: Sequence[str] = ()
    directions: Sequence[str] = ()
    collectors: Sequence[str] = (AUTO,)
    configs: Sequence[str] = ()
    target: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    notes: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    given: Sequence[Given] = ()


async def plan(request: Request, runs_dir: Path | None = None, catalog: Catalog = ()) -> Job:
    """The job that serves the request. ``catalog`` has the kernels' declarations; a worker is asked if it is empty.

    Raises RequestError, WorkerError or StoreError, each in one line, before anything has been run.
    """
    folder = runs_dir or store.runs_dir()
    store.check_writable(folder)
    target, here = await asyncio.to_thread(choose_target, request.target)
    chosen = await asyncio.to_thread(choose_collectors, request.collectors, target, here)
    catalog = catalog or await questions.describe(request.kernels, request.workloads, patience(request.settings))
    return Job(
        cases=choose_cases(request, catalog),
        collectors=chosen,
        settings={**shortened(request.collectors, chosen), **request.settings, "target": target},
        runs_dir=folder,
        title=request.title,
        catalog=catalog,
        notes=request.notes,
        skipped=request.skipped,
        given=request.given,
    )


def choose_target(asked: str) -> tuple[str, str]:
    """The architecture to compile for, and that of this machine's GPU, empty where there is none.

    Raises RequestError for an unknown architecture.
    """
    found = device.detect()
    here = found.target if found else ""
    target = asked or here or DEFAULT_TARGET
    if target not in (here, *ceilings.targets()):
        raise RequestError(unknown("target", target, ceilings.targets()))
    return target, here


def choose_collectors(names: Iterable[str], target: str, here: str) -> tuple[str, ...]:
    """The collectors in the order they run. ``here`` is the target of this machine's GPU, empty where there is none.

    ``auto`` is every collector that can run here, besides those that are named; ``check`` only on a GPU, where it is fast; ``ncu``
    only where CUPTI cannot count in the kernel's process. Raises RequestError for an unknown collector, and for a named one that
    cannot run here, with its reason.
    """
    asked = list(dict.fromkeys(names)) or [AUTO]
    named = [name for name in asked if name != AUTO]
    foreign = bool(here) and here != target
    for name in named:
        if name not in KNOWN and ("." not in name or not all(part.isidentifier() for part in name.split("."))):
            raise RequestError(unknown("collector", name, [*KNOWN, AUTO]))
        if foreign and name in ON_GPU:
            raise RequestError(f"{name} measures this machine's GPU ({here}), not {target}: leave out one of the two")
        try:
            reason = collectors.load(name).unavailable()
        except ImportError as error:
            raise RequestError(f"collector {name} does not import: {error}") from error
        if reason:
            raise RequestError(f"{name} cannot run here: {reason}")
    known = [n for n in collectors.COLLECTORS if n in named or (AUTO in asked and _can_run(n, here, foreign))]
    if "cupti" in known and "ncu" not in named:
        known = [name for name in known if name != "ncu"]
    return (*known, *(name for name in named if name not in known))


def shortened(asked: Iterable[str], chosen: Collection[str]) -> dict[str, Any]:
    """Settings that keep ``auto`` short where a GPU counts bytes: no case is interpreted long."""
    return {"interpreter_limit": BRIEF} if AUTO in ({*asked} or {AUTO}) and "cupti" in chosen else {}


def _can_run(name: str, here: str, foreign: bool) -> bool:
    if (name == "check" or name in ON_GPU) and (not here or foreign):
        return False
    return collectors.load(name).unavailable() is None


def choose_cases(request: Request, catalog: Catalog) -> tuple[Case, ...]:
    """Every requested combination. Raises RequestError for a name that none of the kernels has."""
    _check_names(request, catalog)
    cases: list[Case] = []
    for entry in catalog:
        implementations = entry["implementations"]
        wanted = [name for name in implementations if _wanted(name, request.implementations, implementations)]
        directions = [name for name in entry["passes"] if not request.directions or name in request.directions]
        workloads = entry["selected"] if request.workloads else [w["id"] for w in entry["workloads"]]
        cases += [
            Case(entry["kernel"], impl, direction, workload, config)
            for workload in workloads
            for direction in directions
            for impl in wanted
            for config in choose_configs(request.configs, f"{entry['name']}/{impl}", implementations[impl]["configs"])
        ]
    if not cases:
        raise RequestError("nothing to run: no kernel has that implementation in that direction")
    return tuple(cases)


def choose_configs(asked: Sequence[str], owner: str, declared: Sequence[Mapping[str, int]]) -> list[str]:
    """Config texts for one implementation; ``[""]`` leaves the choice to it. Raises RequestError for an undeclared one."""
    if not asked:
        return [""]
    if list(asked) == [ALL]:
        return ["", *(config_text(config) for config in declared)] if declared else []
    for text in asked:
        try:
            given = parse_config(text)
        except ValueError as error:
            raise RequestError(str(error)) from error
        if not any(given.keys() == config.keys() for config in declared):
            accepted = f"it takes {', '.join(declared[0])}" if declared else "it has none"
            raise RequestError(f"{owner} has no config {text!r}: {accepted}")
    return list(asked)


def _wanted(name: str, asked: Sequence[str], implementations: Mapping[str, Mapping[str, Any]]) -> bool:
    if not asked or list(asked) == [ALL]:
        return bool(implementations[name]["available"])
    return name in asked


def _check_names(request: Request, catalog: Catalog) -> None:
    names = [Case(entry["kernel"], "", "", "").name for entry in catalog]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"two kernels are called {name!r} and would share a table: profile them one at a time")
    known = {name: declared for entry in catalog for name, declared in entry["implementations"].items()}
    for name in request.implementations:
        if name != ALL and name not in known:
            raise RequestError(unknown("implementation", name, [*known, ALL]))
        if name != ALL and not known[name]["available"]:
            packages = " ".join(known[name]["requires"])
            raise RequestError(f"implementation {name} is not available: pip install {packages}")
    directions = dict.fromkeys(direction for entry in catalog for direction in entry["passes"])
    for direction in request.directions:
        if direction not in directions:
            raise RequestError(unknown("pass", direction, directions))
