"""Every kernel that some run speaks of: its headline, and the run that it comes from. Runs to frame."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pandas as pd
from tilescope import store, summary

from tilescope_dashboard import frames
from tilescope_dashboard.state import open_cached, telling


def library(runs: list[store.Summary]) -> pd.DataFrame:
    """One row a kernel, by name of first appearance in the runs' order from the oldest on.

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
            changed = (run.path / "run.json").stat().st_mtime
            found = _headline(run.path, changed, name)
        except (store.StoreError, OSError):
            continue
        if found is not None:
            kind = "recorded" if run.recorded else "measured" if run.measured else "predicted"
            rows.append({**found, "run": run.id, "from_run": f"{kind} {run.started[:10]}, {run.device}"})
    return pd.DataFrame(rows, columns=[*summary.COLUMNS, "run", "from_run"])


@functools.lru_cache(maxsize=256)
def _headline(path: Path, changed: float, kernel: str) -> dict[str, Any] | None:
    """The kernel's headline in the run at ``path``; ``changed`` makes the cache see a run that was written anew."""
    loaded = open_cached(path)
    rows = frames.default_configs(loaded.table[loaded.table["kernel"] == kernel])
    return frames.headline(summary.summarise(rows, loaded.run.device, loaded.run.kernels))
