"""Cache of runs read from disk and of results computed from them, valid while their files do not change."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import pandas as pd
from tilescope.models import advice, claims, claims_text, recorded_claims, summary
from tilescope.models.advice import Finding
from tilescope.runs import changes, store
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data import frames, kernel_cases
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.url_state import leads_out

Result = TypeVar("Result")
#: Folders of runs, with the times when these were last written.
Written = tuple[tuple[Path, float], ...]

#: Results computed from a run, for as long as the run is in memory.
_KEPT: WeakKeyDictionary[LoadedRun, dict[Hashable, Any]] = WeakKeyDictionary()
#: Seconds for which the answer whether a run's code is the present one is kept.
_CURRENT_FOR = 5.0
#: Columns that identify a case within a run.
CASE = ("kernel", "impl", "pass", "workload", "config")
#: Claims by a run's folder and its time of change; a few rows each.
_CLAIMED: dict[tuple[Path, float], tuple[list[dict[str, Any]], str]] = {}


def open_cached(path: Path) -> LoadedRun:
    """``store.open_run`` with a cache of the last runs.

    Raises StoreError, also for a link that leads out of the run's folder, or OSError.
    """
    return _read(path, changed(path))


def kept(loaded: LoadedRun, key: Hashable, make: Callable[[], Result]) -> Result:
    """The result of ``make``, cached by ``key`` while the run is in memory. The caller must not change it."""
    results = _KEPT.setdefault(loaded, {})
    if key not in results:
        results[key] = make()
    return cast("Result", results[key])


def summaries(loaded: LoadedRun) -> pd.DataFrame:
    """``summary.summarise`` of the run without its sweeps. The caller must not change the frame."""
    return kept(loaded, "summaries", lambda: summary.of_run(loaded, frames.default_configs(loaded.table)))


def usual(loaded: LoadedRun, kernel: str) -> pd.DataFrame:
    """The run's rows of one kernel without its sweeps. The caller must not change the frame."""
    rows = loaded.table
    return kept(loaded, ("usual", kernel), lambda: frames.default_configs(rows[rows["kernel"] == kernel]))


def kept_against(loaded: LoadedRun, tokens: Iterable[str], key: Hashable, make: Callable[[], Result]) -> Result:
    """As ``kept``, for a comparison with other runs or ``RUN:IMPLEMENTATION``: until any of them changes."""
    written = []
    for token in tokens:
        run = token.partition(":")[0]
        if run != loaded.run.id:
            try:
                written.append((token, changed(store.find(run))))
            except (store.StoreError, OSError):
                written.append((token, 0.0))  # it may be written later
    return kept(loaded, (key, *written), make)


def cases_of(loaded: LoadedRun, kernel: str) -> list[KernelCase]:
    """The kernel's cases in the run."""
    rows = loaded.table
    return kept(loaded, ("cases", kernel), lambda: list(kernel_cases.cases(rows[rows["kernel"] == kernel]).values()))


def representative(loaded: LoadedRun, kernel: str) -> KernelCase | None:
    """The kernel's representative case (``summary.representative``); None where the run has none."""

    def found() -> KernelCase | None:
        rows = summaries(loaded)
        case = summary.representative(rows[rows["kernel"] == kernel])
        return KernelCase(*(case[name] for name in kernel_cases.OF_KERNEL)) if case else None

    return kept(loaded, ("representative", kernel), found)


def changed_kernels(loaded: LoadedRun) -> list[str]:
    """Kernels of the run that have changed since (``changes.changed_problems``), cached for ``_CURRENT_FOR`` seconds."""
    return list(dict.fromkeys(problem.kernel for problem in _changed_problems(loaded)))


def has_changed(loaded: LoadedRun, kernel: str, case: KernelCase) -> bool:
    """Whether a case of the kernel launches a function that has changed since. Cached likewise."""
    return changes.Problem(kernel, case.direction, case.workload) in _changed_problems(loaded)


def changed_sizes(loaded: LoadedRun, kernel: str) -> list[str]:
    """Workloads at which a kernel has changed since, where it has not at others; else none. Cached likewise."""
    changed = dict.fromkeys(problem.workload for problem in _changed_problems(loaded) if problem.kernel == kernel)
    rows = loaded.table
    return [] if len(changed) == rows.loc[rows["kernel"] == kernel, "workload"].nunique() else list(changed)


def _changed_problems(loaded: LoadedRun) -> list[changes.Problem]:
    now = time.monotonic()
    answers: list[tuple[float, list[changes.Problem]]] = kept(loaded, "changed", list)
    if not answers or now - answers[-1][0] >= _CURRENT_FOR:
        answers[:] = [(now, sorted(changes.changed_problems(loaded)))]
    return answers[-1][1]


def findings(loaded: LoadedRun, case: tuple[str, ...]) -> tuple[Finding, ...]:
    """``advice.findings`` of the case with the values ``case`` of ``CASE``, largest potential speedup first."""
    rows = loaded.table

    def of_sweep() -> tuple[Finding, ...]:
        # Findings compare a case with its other configs.
        swept = rows[(rows[list(CASE[:-1])] == list(case[:-1])).all(axis="columns")]
        return tuple(advice.of_run(loaded, swept))

    return tuple(found for found in kept(loaded, ("findings", case[:-1]), of_sweep) if found.case == case)


def claimed(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """``claims.of_run`` of the run in the folder, and its ``claims_text.provenance``. The caller must not change the rows.

    Raises StoreError or OSError as ``open_cached`` does.
    """
    key = folder, changed(folder)
    if not has_claimed(folder):
        # Not with ``open_cached``: so many runs would evict those that users look at.
        loaded = _open(folder)
        _CLAIMED[key] = claims.of_run(loaded), claims_text.provenance([loaded])
    return _CLAIMED[key]


def read_claims(folders: Iterable[Path]) -> None:
    """Cache ``claimed`` of each folder but those of damaged runs."""
    for folder in folders:
        with contextlib.suppress(store.StoreError, OSError):
            claimed(folder)


def written(folders: Iterable[Path]) -> Written:
    """The folders with the times when their runs were last written."""
    return tuple((folder, changed(folder)) for folder in folders)


@functools.lru_cache(maxsize=16)
def best_claims(runs: Written) -> pd.DataFrame:
    """``claims.best`` of the runs. The caller must not change the frame."""
    return claims.best(row for folder, _ in runs for row in claimed(folder)[0])


def has_claimed(folder: Path) -> bool:
    """Whether ``claimed`` is instant: its result is cached, or shipped with the recording."""
    key = folder, changed(folder)
    if key not in _CLAIMED and folder.parent == store.recorded_dir():
        kept = recorded_claims.kept(folder)
        if kept is not None:
            _CLAIMED[key] = kept
    return key in _CLAIMED


def changed(path: Path) -> float:
    """When the run in the folder was last written, in seconds since the epoch; 0 where there is none."""
    described = path / "run.json"
    return described.stat().st_mtime if described.exists() else 0.0


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed: float) -> LoadedRun:
    return _open(path)


def _open(path: Path) -> LoadedRun:
    # A run may come from elsewhere, and its files can be downloaded.
    link = leads_out(path)
    if link is not None:
        raise store.StoreError(f"{link.relative_to(path)} in this run is a link out of it: put the file itself there")
    return store.open_run(path)
