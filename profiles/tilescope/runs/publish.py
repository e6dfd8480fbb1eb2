"""Publishes runs as recordings: some kernels, with their table, source lines and description.

A recording keeps a model's step, the artefacts that views draw, and the compiler's listings of each kernel's largest case. Other artefacts
are left out because they are megabytes.
Tracebacks are left out because they name folders of the machine. Imports neither torch nor triton.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.files import bounded_reading, names
from tilescope.runs import artefacts, changes, listings, parquet, steps
from tilescope.runs.reader import CONFIGS, LINES, damaged
from tilescope.runs.store import LoadedRun, RunWriter, StoreError, list_runs, open_run, read_run
from tilescope.table import suggest
from tilescope.table.case import Case, readable
from tilescope.table.description import Workload
from tilescope.table.run import Run, Skipped
from tilescope.table.schema import NAMED, named

#: Collectors whose artefacts views draw.
_DRAWN = ("lanes", "ncu_activity")
#: The note of a run that a collector skipped cases.
_LEFT_OUT = re.compile(r"[\w.]+ skipped \d+ of ")


def publish(
    loaded: LoadedRun, folder: Path, kernels: Sequence[str] = (), title: str = "", workloads: Sequence[str] = ()
) -> Path:
    """Writes the run into ``folder`` under its own id, in place of an older copy, and returns the new folder.

    ``kernels`` and ``workloads`` (ids or labels) choose what is written, by default everything. An interrupted run can be
    published if no chosen kernel is cut off (``cut_off``); it then counts as complete.

    Raises StoreError when the run lacks a kernel or a workload, when a kernel is cut off, and for another folder in the way.
    """
    run = loaded.run
    for name in kernels:
        if name not in run.kernels:
            raise StoreError(suggest.unknown("kernel of this run", name, run.kernels))
    table = loaded.table[loaded.table["kernel"].isin(kernels)] if kernels else loaded.table
    sizes = _ids(run, workloads) if workloads else None
    if sizes is not None:
        table = table[table["workload"].isin(sizes)]
    if not run.complete and (broken := cut_off(table)):
        raise StoreError(f"{run.id} was interrupted amid {', '.join(broken)}: publish its other kernels")
    kept = {name: _declared(loaded, name, table) for name in run.kernels if not kernels or name in kernels}
    skipped = tuple(_skipped(run.skipped, kept, sizes))
    by_line = _of_cases(loaded.lines, table)
    try:
        target = folder / names.file_name(run.id, "a run's id")
    except ValueError as error:
        raise StoreError(f"{loaded.folder}: {error}") from error
    _check_replaceable(target, loaded)
    about = dataclasses.replace(
        run,
        title=title or run.title,
        kernels=kept,
        failures=tuple(
            dataclasses.replace(failure, detail="")
            for failure in run.failures
            if not failure.case
            or (
                any(failure.concerns(name) for name in kept)
                and (sizes is None or not sizes.isdisjoint(readable(failure.case).split("/")))
            )
        ),
        notes=_notes(run, kept, skipped),
        skipped=skipped,
    )
    with RunWriter(folder, about) as scratch:
        scratch.append(table)
        for name in kept:
            scratch.append_lines(name, by_line[by_line["kernel"] == name], loaded.sources.get(name, {}))
        configs = _of_cases(loaded.configs, table)
        scratch.append_configs(configs)
        if table["config"].eq("").all():  # else it is of sweeps
            listings.keep(loaded.folder, listings.largest(run, table), scratch.folder)
        _keep_drawn(loaded, table, scratch.folder)
        if target.is_dir():
            shutil.rmtree(target)
        published = scratch.finish()
        for name, frame in {"table.parquet": table, LINES: by_line, CONFIGS: configs}.items():
            if (published / name).is_file():
                parquet.pack(frame.assign(run_id=run.id) if "run_id" in frame else frame, published / name)
        return published


def _keep_drawn(loaded: LoadedRun, table: pd.DataFrame, target: Path) -> None:
    """Copies the run's step, and the artefacts of the table's cases that views draw, into the folder ``target``.

    Raises StoreError for a damaged one.
    """
    if step := steps.read(loaded.folder):
        steps.write(target, step)
    for case in (Case(*values) for values in dict.fromkeys(named(table))):
        for collector in _DRAWN:
            if path := artefacts.find(loaded.folder, collector, case):
                try:
                    bounded_reading.data_of(path, loaded.folder)
                except ValueError as error:
                    raise damaged(path, error) from error
                place = target / path.parent.relative_to(loaded.folder)
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)


def _declared(loaded: LoadedRun, kernel: str, table: pd.DataFrame) -> dict[str, Any]:
    """The kernel's declaration with the digests of the functions that it launched."""
    launched = set(table.loc[table["kernel"] == kernel, "function"])
    digests = {name: digest for name, digest in changes.recorded(loaded, kernel).items() if name in launched}
    return {**loaded.run.kernels[kernel], "functions": digests}


def _notes(run: Run, kept: Collection[str], skipped: Iterable[Skipped]) -> tuple[str, ...]:
    """The run's notes without those of other kernels than the ``kept``."""
    others = run.kernels.keys() - set(kept)
    if not others:
        return run.notes
    own = [note for note in run.notes if not _LEFT_OUT.match(note) and not others.issuperset(_kernels_of(note) or {""})]
    return (*own, *(one.note for one in skipped if one.cases))


def _kernels_of(note: str) -> set[str]:
    """The kernels whose cases a note begins or ends with; none for a note on the whole run."""
    cases = [note.partition(" ")[0], *note.rpartition(": ")[2].split(", ")]
    return {case.partition("/")[0] for case in cases if "/" in case and " " not in case}


def _skipped(skipped: Iterable[Skipped], kernels: Container[str], sizes: Container[str] | None) -> Iterator[Skipped]:
    """The skipped cases of these kernels at these workloads (None: all workloads)."""
    for one in skipped:
        cases = tuple(case for case in one.cases if case.name in kernels and (sizes is None or case.workload in sizes))
        if cases or not one.cases:
            yield dataclasses.replace(one, cases=cases)


def _check_replaceable(target: Path, loaded: LoadedRun) -> None:
    """Raises StoreError unless ``target`` is free or holds an older copy of the run."""
    if not target.exists() and not target.is_symlink():
        return
    if target.resolve() == loaded.folder.resolve():
        raise StoreError(f"{target} is the run itself: publish it into another folder")
    try:
        same = not target.is_symlink() and read_run(target).id == loaded.run.id
    except StoreError:
        same = False
    if not same:
        raise StoreError(f"{target} is there and is no copy of this run: move it away, or publish into another folder")


def _ids(run: Run, asked: Sequence[str]) -> set[str]:
    """Ids of the workloads ``asked`` for by id or label. Raises StoreError for one that no kernel of the run has."""
    known: list[Workload] = [workload for facts in run.kernels.values() for workload in facts.get("workloads", ())]
    called = [(workload.get("id", ""), workload.get("label", "")) for workload in known]
    for name in asked:
        if not any(name in names_of for names_of in called):
            raise StoreError(suggest.unknown("workload of this run", name, sorted({b or a for a, b in called})))
    return {a for a, b in called if a in asked or b in asked}


def replaced_by(published: Path) -> list[Path]:
    """The runs that ``published`` replaces: others in the same folder with the same title."""
    title = open_run(published).run.title
    return [
        summary.path
        for summary in list_runs([published.parent])
        if title and summary.path != published and not summary.error and summary.title == title
    ]


def cut_off(table: pd.DataFrame) -> list[str]:
    """Kernels of an interrupted run for which a collector has results of some cases of an implementation and not of others."""
    measured = table[~table["source"].isin(["model", "interpreter"])]
    broken = set()
    for (kernel, impl), rows in table.groupby(["kernel", "impl"]):
        own = measured[(measured["kernel"] == kernel) & (measured["impl"] == impl)]
        broken |= {kernel for _, seen in own.groupby("source") if {*named(seen)} != {*named(rows)}}
    return [kernel for kernel in dict.fromkeys(table["kernel"]) if kernel in broken]


def _of_cases(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    return rows[pd.MultiIndex.from_frame(rows[NAMED]).isin(list({*named(table)}))]
