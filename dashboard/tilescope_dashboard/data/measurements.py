"""Every measurement of a kernel, joined from the recordings of it: a row a case and run."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pandas as pd
from tilescope.models import summary
from tilescope.runs import store

from tilescope_dashboard.data import recordings, run_cache
from tilescope_dashboard.data.recordings import Recording

#: What is said of the run beside ``tilescope.models.summary.summarise``'s columns.
OF_RUN = ("started", "title", "revision", "origin")
#: What a measurement is of, whatever run it is in.
_CASE = ["impl", "pass", "workload", "dtype"]


def measurements(every: Iterable[Recording], kernel: str) -> pd.DataFrame:
    """The kernel's timed cases in the order of ``every`` recording, with the run's ``OF_RUN``. What was not timed has no row."""
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


def of_kernel(runs: Iterable[store.Summary], kernel: str, device: str) -> pd.DataFrame:
    """``measurements`` of every recording of the kernel on the GPU called ``device`` (all GPUs where it is empty).

    Made once for the same runs, for all views: the caller must not change it.
    """
    return _of_kernel(tuple(runs), kernel, device)


@functools.lru_cache(maxsize=8)
def _of_kernel(runs: tuple[store.Summary, ...], kernel: str, device: str) -> pd.DataFrame:
    return measurements(recordings.every(runs, kernel, device), kernel)


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """One of ``measurements``' rows a case: an implementation's own config before one of a sweep, the newest of those."""
    order = rows.assign(own=rows["config"].eq("")).sort_values(["own", "started"], ascending=False, kind="stable")
    kept = order.drop_duplicates(_CASE).index
    return rows.loc[sorted(kept)].reset_index(drop=True)
