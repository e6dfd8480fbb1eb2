"""Finds the recordings of a kernel. Imports neither torch nor triton."""

from __future__ import annotations

from tilescope.runs import store
from tilescope.runs.summaries import Summary

#: Sources of GPU times and of counters. A recording that has both tells the most of a kernel.
WHOLE = frozenset({"torch_profiler", "ncu"})


def of_kernel(kernel: str) -> list[Summary]:
    """The recordings of a kernel, newest first; those with GPU times and counters before the others.

    Raises StoreError where there is none.
    """
    every = [run for run in store.list_runs([store.recorded_dir()]) if not run.error]
    found = [run for run in every if kernel in run.kernels]
    if not found:
        raise store.StoreError(f"no recording of {kernel!r}: 'tilescope show' lists the recordings and their kernels")
    return sorted(found, key=lambda run: not {*run.sources} >= WHOLE)
