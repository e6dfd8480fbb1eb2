"""Every measurement of a kernel, joined from the recordings of it: a row a case and run."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from tilescope.models import summary

from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.recordings import Recording

#: What is said of the run beside ``tilescope.models.summary.summarise``'s columns.
OF_RUN = ("started", "title", "revision", "origin")
#: What a measurement is of, whatever run it is in.
_CASE = ["impl", "pass", "workload", "dtype"]


def measurements(recordings: Iterable[Recording], kernel: str) -> pd.DataFrame:
    """The kernel's timed cases in the order of the ``recordings``, with the run's ``OF_RUN``. What was not timed has no row."""
    frames = []
    for recording in recordings:
        rows = run_cache.summaries(recording.loaded)
        rows = rows[rows["kernel"].eq(kernel) & rows["measured"] & rows["gpu_time"].gt(0)]
        if len(rows):
            run = recording.summary
            about = (run.started[:16].replace("T", " "), run.title or run.id, recording.loaded.run.git_revision[:10])
            frames.append(rows.assign(**dict(zip(OF_RUN, (*about, recording.origin), strict=True))))
    if not frames:
        return pd.DataFrame(columns=[*summary.COLUMNS, *OF_RUN])
    return pd.concat(frames, ignore_index=True)


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """One of ``measurements``' rows a case: an implementation's own config before one of a sweep, the newest of those."""
    order = rows.assign(own=rows["config"].eq("")).sort_values(["own", "started"], ascending=False, kind="stable")
    kept = order.drop_duplicates(_CASE).index
    return rows.loc[sorted(kept)].reset_index(drop=True)
