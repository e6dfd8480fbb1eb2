"""Repetitions of a case, and doubts about small differences between them. Pure."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case_table import CaseValues

#: The largest difference of two processes' times of equal code, as a share.
DRIFT = 0.01


def repetitions(case: CaseValues, clock: tuple[str, str], loaded: LoadedRun) -> np.ndarray:
    """The times of the case by that metric and source, in seconds, one for each repetition.

    Every launch in another tool's file is a repetition: a warm-up does not count more than the others.
    """
    launched = [value for launch, value in case.values.get(clock, {}).items() if launch is not None]
    return np.array(launched if launched and of_file(loaded) else case.totals.get(clock, []))


def of_file(loaded: LoadedRun) -> bool:
    """Whether the run was made of another tool's file."""
    return "file_sha256" in loaded.run.settings


def doubts(baseline: LoadedRun, candidate: LoadedRun, rows: pd.DataFrame) -> list[str]:
    """Reasons to doubt differences of ``compare.compare``'s ``rows``, a line each: runs of different processes drift apart."""
    different = rows[rows["verdict"].isin(["slower", "faster"])]
    if baseline.run.id == candidate.run.id or different.empty:
        return []
    small = int(different["speedup"].between(1 - DRIFT, 1 + DRIFT).sum())
    return [
        f"the runs are from different processes, whose times of equal code differ by up to {DRIFT * 100:g} %: "
        f"{small} of {units.several(len(different), 'difference')} {'is' if small == 1 else 'are'} within that"
    ]
