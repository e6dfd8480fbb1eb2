"""List of every run. Runs to a frame."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from tilescope.runs import store

_RUNS = ("started", "title", "device", "what", "kernels", "sources", "cases", "state")


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
