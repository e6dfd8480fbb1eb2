"""Choice of a run: the most complete one of a kernel, and the first that a visitor sees."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilescope.hardware import device
from tilescope.runs import store

#: What a visitor without a GPU sees first: every view has something to say of it.
SHOWN_FIRST = "softmax"


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
    """The most complete run of the kernel: measured before predicted, the person's own before a recording,
    by most collectors, whole, of recordings the one of most cases, then the newest."""
    holding = [s for s in runs if not s.error and kernel in s.kernels]
    return _fullest(holding) if holding else None


def _fullest(runs: Sequence[store.Summary]) -> store.Summary:
    def worth(run: store.Summary) -> tuple[float, ...]:
        cases = run.cases / max(1, len(run.kernels)) if run.recorded else 0
        return run.measured, not run.recorded, len(run.sources), run.complete and not run.failures, cases

    # Runs come newest first, and max() keeps the first of equals.
    return max(runs, key=worth)


@functools.cache
def no_gpu() -> str | None:
    """Why no kernel can run on a GPU here, or None."""
    return device.unavailable()
