"""Choice of a run: the best one of a kernel, and the first that a visitor sees."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilescope.hardware import device
from tilescope.runs import store
from tilescope.table.sources import COUNTERS

from tilescope_dashboard.data.run_cache import open_cached, stale_on_gpu

#: What a visitor without a GPU sees first: every view has something to say of it.
SHOWN_FIRST = "softmax"
#: Runs of a kernel whose code is compared with the code that is here.
_COMPARED = 8


def first_shown(runs: Sequence[store.Summary], kernel: str = "") -> tuple[str, str]:
    """The run and the kernel to open on, empty for none and for the run's first: with no GPU a recording from a real one,
    else the newest that can be read. A ``kernel`` that was asked for stays."""
    readable = [s for s in runs if not s.error]
    recorded = [s for s in readable if s.recorded and s.measured]
    if recorded and no_gpu():
        first = best_run(recorded, kernel or SHOWN_FIRST)
        return (first.id, kernel or SHOWN_FIRST) if first else (_fullest(recorded).id, kernel)
    return (readable[0].id if readable else ""), kernel


def best_run(runs: Sequence[store.Summary], kernel: str) -> store.Summary | None:
    """The best run of the kernel: measured before predicted, the person's own before a recording, of recordings one with counters
    before a sweep. Of those one of the code that is here before one of other code, then the most complete (``_fullest``).
    """
    holding = [s for s in runs if not s.error and kernel in s.kernels]
    first = max(map(_rank, holding), default=None)
    alike = [run for run in holding if _rank(run) == first]
    if len(alike) > 1:
        # Code that was changed seldom comes back: of many runs only the newest are looked at.
        alike = [run for run in alike[:_COMPARED] if _is_current(run, kernel)] or alike
    return _fullest(alike) if alike else None


def _rank(run: store.Summary) -> tuple[bool, ...]:
    counted = run.recorded and not set(COUNTERS).isdisjoint(run.sources)
    return run.measured, not run.recorded, counted


def _is_current(run: store.Summary, kernel: str) -> bool:
    """Whether a GPU runs today what it ran then; False where the run is damaged."""
    try:
        return kernel not in stale_on_gpu(open_cached(run.path))
    except (store.StoreError, OSError):
        return False


def _fullest(runs: Sequence[store.Summary]) -> store.Summary:
    """The run by most collectors, whole, of recordings the one of most cases, then the newest."""

    def worth(run: store.Summary) -> tuple[float, ...]:
        cases = run.cases / max(1, len(run.kernels)) if run.recorded else 0
        return *_rank(run), len(run.sources), run.complete and not run.failures, cases

    # Runs come newest first, and max() keeps the first of equals.
    return max(runs, key=worth)


@functools.cache
def no_gpu() -> str | None:
    """Why no kernel can run on a GPU here, or None."""
    return device.unavailable()
