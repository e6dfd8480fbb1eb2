"""Lists of every kernel in some run, and of every run. Runs to frames."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pandas as pd
from tilescope.models import summary
from tilescope.runs import store

from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.run_cache import open_cached, summaries

_RUNS = ("started", "title", "device", "what", "kernels", "sources", "cases", "state")


def library(runs: Iterable[store.Summary]) -> pd.DataFrame:
    """One row a kernel, in the order in which the runs, from the oldest on, name them.

    Columns are those of ``tilescope.models.summary.summarise`` and ``run`` (id), ``from_run`` (what it is, in words). A kernel
    whose run cannot be read any more is left out. Made once for the same runs: the caller must not change it.
    """
    return _library(tuple(runs))


@functools.lru_cache(maxsize=8)
def _library(runs: tuple[store.Summary, ...]) -> pd.DataFrame:
    names = dict.fromkeys(name for found in reversed(runs) for name in found.kernels if not found.error)
    rows: list[dict[str, Any]] = []
    for name in names:
        run = best_run(runs, name)
        if run is None:
            continue
        try:
            every = summaries(open_cached(run.path))
        except (store.StoreError, OSError):
            continue
        found = summary.representative(every[every["kernel"] == name])
        if found is not None:
            rows.append(
                {
                    **found,
                    "run": run.id,
                    "from_run": f"{_kind(run)} {run.started[:10]}, {run.device.removeprefix('NVIDIA ')}",
                }
            )
    return pd.DataFrame(rows, columns=[*summary.COLUMNS, "run", "from_run"])


def listing(runs: Iterable[store.Summary]) -> pd.DataFrame:
    """One row a run, in their order: when it ``started`` (UTC, else its id), its ``title``, ``device``, ``what`` it is,
    its ``kernels`` and ``sources`` in words, how many ``cases``, and what is wrong with it, if anything (``state``)."""
    rows = [
        {
            "started": run.started[:16].replace("T", " ") or run.id,
            "title": run.title or run.id,
            "device": run.device,
            # Nothing is known of one that cannot be read.
            "what": "" if run.error else _kind(run),
            "kernels": ", ".join(run.kernels),
            "sources": ", ".join(run.sources),
            "cases": run.cases,
            "state": run.error or _shortcomings(run),
        }
        for run in runs
    ]
    return pd.DataFrame(rows, columns=list(_RUNS))


def _kind(run: store.Summary) -> str:
    return "recorded" if run.recorded else "measured" if run.measured else "predicted"


def _shortcomings(run: store.Summary) -> str:
    return ", ".join(
        filter(None, ["" if run.complete else "not complete", f"{run.failures} failed" if run.failures else ""])
    )
