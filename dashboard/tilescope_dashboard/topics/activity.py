"""Activity: how much of the SMs, the tensor cores and HBM a launch uses over its time."""

from __future__ import annotations

import pandas as pd
from tilescope.collectors.ncu import activity
from tilescope.runs import artefacts
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case

from tilescope_dashboard.topics.sentence import Sentence

COLLECTOR = "ncu_activity"
#: A tail is the time at the end in which fewer SMs are active.
_FEW = 0.75


def of_case(loaded: LoadedRun, case: Case) -> pd.DataFrame:
    """The samples of a case's longest launch (``activity.samples``); empty where the run has none. Raises Unreadable."""
    path = artefacts.find(loaded.folder, COLLECTOR, case)
    found = activity.samples(path) if path else pd.DataFrame(columns=list(activity.COLUMNS))
    return found[found["launch"] == found.loc[found["time"].idxmax(), "launch"]] if len(found) else found


def sentence(samples: pd.DataFrame) -> Sentence:
    """The mean share of each unit, and the tail."""
    means = samples.groupby("unit", sort=False)["share"].mean()
    used = ", ".join(f"{unit} {100 * share:.0f} %" for unit, share in means.items())
    busy = samples[(samples["unit"] == "SMs") & (samples["share"] >= _FEW)]["time"]
    whole = samples["time"].max()
    tail = 1 - busy.max() / whole if len(busy) and whole else 0.0
    last = (
        f"Fewer than {100 * _FEW:.0f} % of the SMs are active in the last {100 * tail:.0f} % of the time. "
        if tail >= 0.02
        else ""
    )
    return Sentence(
        f"{samples['function'].iloc[0]} keeps busy on average: {used}",
        f"{last}Sampled by Nsight Compute on the whole chip, in a launch of its own.",
    )
