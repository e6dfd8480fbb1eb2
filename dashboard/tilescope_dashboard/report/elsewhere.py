"""Recordings that know of a kernel what the reported run does not."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilescope.runs import store
from tilescope.runs.store import LoadedRun, StoreError

#: Whether a run has what is sought of the kernel of that name.
Found = Callable[[LoadedRun, str], bool]


def newest(run: LoadedRun, kernel: str, found: Found) -> LoadedRun | None:
    """The newest recording other than ``run`` in which ``found`` finds what is sought of the kernel; None without one."""
    return _newest(run.run.id, kernel, found)


@functools.lru_cache(maxsize=64)
def _newest(but: str, kernel: str, found: Found) -> LoadedRun | None:
    for summary in store.list_runs([store.recorded_dir()]):
        if kernel in summary.kernels and summary.id != but and not summary.error:
            try:
                loaded = _opened(summary)
                if found(loaded, kernel):
                    return loaded
            except (StoreError, OSError):
                continue  # a damaged recording has none to show
    return None


@functools.lru_cache(maxsize=8)
def _opened(summary: store.Summary) -> LoadedRun:
    return store.open_run(summary.path)


def said(other: LoadedRun) -> str:
    """Whose values follow, and of which GPU."""
    run = other.run
    return f"From another run, {run.title or run.id} ({run.id}, {run.device.name})."
