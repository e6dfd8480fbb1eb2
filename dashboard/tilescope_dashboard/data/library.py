"""The list of all runs as a frame."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from tilescope.runs import store

_RUNS = ("started", "title", "device", "what", "kernels", "sources", "cases", "state")


def listing(runs: Iterable[store.Summary]) -> pd.DataFrame:
    """A row for each run, in order: ``started`` (UTC, else its id), ``title``, ``device``, ``what`` kind it is, ``kernels``, ``sources``,
    the number of ``cases``, and its ``state``, empty if nothing is wrong.
    """
    rows = [
        {
            "started": run.started[:16].replace("T", " ") or run.id,
            "title": run.title or run.id,
            "device": run.device,
            "what": "" if run.error else _kind(run),
            "kernels": ", ".join(run.kernels),
            "sources": ", ".join(run.sources),
            "cases": run.cases,
            "state": run.error
            or ", ".join(
                filter(None, ["" if run.complete else "not complete", f"{run.failures} failed" if run.failures else ""])
            ),
        }
        for run in runs
    ]
    return pd.DataFrame(rows, columns=list(_RUNS))
