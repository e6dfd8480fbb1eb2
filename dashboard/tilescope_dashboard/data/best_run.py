"""Choice of a run: the best one for a kernel, and the one that opens first."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime

from tilescope.hardware import device
from tilescope.runs import store
from tilescope.table.sources import COUNTERS

from tilescope_dashboard.data.run_cache import changed_kernels, changed_sizes, open_cached, representative

#: Kernel that opens first without a GPU: its recording has data for every view.
SHOWN_FIRST = "softmax"
#: Newest runs of a kernel whose code is compared with the present code.
_COMPARED = 8
#: Seconds above which a run was copied later rather than made.
_LONGEST = 3600.0


def first_shown(runs: Sequence[store.Summary], kernel: str = "") -> tuple[str, str]:
    """The id of the run to open and the kernel: a recording without a GPU here, else the newest readable run.

    An empty id means no run, an empty kernel the run's first. A ``kernel`` that was asked for stays, and no run of others is opened.
    """
    readable = [s for s in runs if not s.error]
    recorded = [s for s in readable if s.recorded and s.measured]
    if recorded and no_gpu():
        first = best_run(readable if kernel else recorded, kernel or SHOWN_FIRST)
        return (first.id, kernel or SHOWN_FIRST) if first else ("" if kernel else _fullest(recorded).id, kernel)
    held = [run for run in readable if not kernel or kernel in run.kernels]
    return (held[0].id if held else ""), kernel


def best_run(runs: Sequence[store.Summary], kernel: str) -> store.Summary | None:
    """The best run of the kernel.

    Measured before predicted, the user's own before a recording, a recording with counters before a sweep. Among equals one of the
    present code, then the most complete (``_fullest``).
    """
    holding = [s for s in runs if not s.error and kernel in s.kernels]
    first = max(map(_rank, holding), default=None)
    alike = [run for run in holding if _rank(run) == first]
    if len(alike) > 1:
        # Comparing code takes time, and older runs seldom have the present one.
        alike = [run for run in alike[:_COMPARED] if _is_current(run, kernel)] or alike
    return _fullest(alike) if alike else None


def _rank(run: store.Summary) -> tuple[bool, ...]:
    counted = run.recorded and not set(COUNTERS).isdisjoint(run.sources)
    return run.measured, not run.recorded, counted


def _is_current(run: store.Summary, kernel: str) -> bool:
    """Whether the kernel's GPU code is still the run's, at least where its representative case is; False for a damaged run."""
    try:
        loaded = open_cached(run.path)
        if kernel not in changed_kernels(loaded):
            return True
        sizes, case = changed_sizes(loaded, kernel), representative(loaded, kernel)
        return bool(sizes) and case is not None and case.workload not in sizes
    except (store.StoreError, OSError):
        return False


def _fullest(runs: Sequence[store.Summary]) -> store.Summary:
    """The run with the most collectors; then a complete one; of recordings the one with the most cases; then the newest."""

    def worth(run: store.Summary) -> tuple[float, ...]:
        cases = run.cases / max(1, len(run.kernels)) if run.recorded else 0
        return *_rank(run), len(run.sources), run.complete and not run.failures, cases

    # Runs come newest first, and max() keeps the first of equals.
    return max(runs, key=worth)


def took(run: store.Summary) -> float | None:
    """Seconds from the run's start to its end, when its description was written; None where that is not known."""
    try:
        spent = (run.path / "run.json").stat().st_mtime - datetime.fromisoformat(run.started).timestamp()
    except (OSError, ValueError):
        return None
    return spent if run.complete and 0 < spent < _LONGEST else None


@functools.cache
def no_gpu() -> str | None:
    """The reason why no kernel can run on a GPU here, or None."""
    return device.unavailable()
