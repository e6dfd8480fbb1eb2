"""The list of all runs as a frame."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from tilescope.runs import store

_RUNS = ("started", "title", "device", "what", "kernels", "sources", "cases", "state")


def listing(runs: Iterable[store.Summary]) -> pd.DataFrame:
    """One row a run, in their order.

    Columns are ``started`` (UTC, or the id where it is not known), ``title``, ``device``, ``what`` (recorded, measured or
    predicted), ``kernels`` and ``sources`` as text, the number of ``cases``, and ``state``, a problem or empty.
    """
    rows = []
    for run in runs:
        what = "" if run.error else "recorded" if run.recorded else "measured" if run.measured else "predicted"
        problems = ["" if run.complete else "not complete", f"{run.failures} failed" if run.failures else ""]
        started = run.started[:16].replace("T", " ") or run.id
        kernels, sources = ", ".join(run.kernels), ", ".join(run.sources)
        state = run.error or ", ".join(filter(None, problems))
        rows.append((started, run.title or run.id, run.device, what, kernels, sources, run.cases, state))
    return pd.DataFrame(rows, columns=list(_RUNS))
