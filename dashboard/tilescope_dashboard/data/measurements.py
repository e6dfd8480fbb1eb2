"""Every measurement of a kernel, joined from its recordings: a row for each case and run."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pandas as pd
from tilescope.models import summary
from tilescope.runs import store

from tilescope_dashboard.data import recordings, run_cache
from tilescope_dashboard.data.recordings import Recording

#: Columns about the run, beside those of ``tilescope.models.summary.summarise``.
OF_RUN = ("started", "title", "revision", "origin")
#: Columns that identify a measurement across runs.
_CASE = ["impl", "pass", "workload", "dtype"]


def measurements(every: Iterable[Recording], kernel: str) -> pd.DataFrame:
    """The kernel's timed cases in the order of the recordings, with ``OF_RUN`` of each. Untimed cases have no row."""
    frames = []
    for recording in every:
        rows = run_cache.summaries(recording.loaded)
        rows = rows[rows["kernel"].eq(kernel) & rows["measured"] & rows["gpu_time"].gt(0)]
        if len(rows):
            run = recording.summary
            about = (run.started[:16].replace("T", " "), run.title or run.id, recording.loaded.run.git_revision[:10])
            frames.append(rows.assign(**dict(zip(OF_RUN, (*about, recording.origin), strict=True))))
    if not frames:
        return pd.DataFrame(columns=[*summary.COLUMNS, *OF_RUN])
    return pd.concat(frames, ignore_index=True)


@functools.lru_cache(maxsize=8)
def of_kernel(runs: tuple[store.Summary, ...], kernel: str, device: str) -> pd.DataFrame:
    """``measurements`` of every recording of the kernel on the GPU named ``device`` (all GPUs where it is empty).

    Cached for the same runs, so the caller must not change it.
    """
    return measurements(recordings.every(runs, kernel, device), kernel)


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """The newest of ``measurements``' rows for each case, of the default config before a sweep's."""
    order = rows.assign(own=rows["config"].eq("")).sort_values(["own", "started"], ascending=False, kind="stable")
    kept = order.drop_duplicates(_CASE).index
    return rows.loc[sorted(kept)].reset_index(drop=True)
