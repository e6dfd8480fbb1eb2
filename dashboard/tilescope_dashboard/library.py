"""Every kernel that some run speaks of: its headline, and the run that it comes from. Runs to frame."""

from __future__ import annotations

from typing import Any

import pandas as pd
from tilescope import store, summary

from tilescope_dashboard.opened import headlines, open_cached
from tilescope_dashboard.state import telling


def library(runs: list[store.Summary]) -> pd.DataFrame:
    """One row a kernel, in the order in which the runs, from the oldest on, name them.

    Columns are those of ``tilescope.summary.summarise`` and ``run`` (id), ``from_run`` (what it is, in words). A kernel
    whose run cannot be read any more is left out.
    """
    names = dict.fromkeys(name for found in reversed(runs) for name in found.kernels if not found.error)
    rows: list[dict[str, Any]] = []
    for name in names:
        run = telling(runs, name)
        if run is None:
            continue
        try:
            every = headlines(open_cached(run.path))
        except (store.StoreError, OSError):
            continue
        found = summary.headline(every[every["kernel"] == name])
        if found is not None:
            kind = "recorded" if run.recorded else "measured" if run.measured else "predicted"
            rows.append({**found, "run": run.id, "from_run": f"{kind} {run.started[:10]}, {run.device}"})
    return pd.DataFrame(rows, columns=[*summary.COLUMNS, "run", "from_run"])
