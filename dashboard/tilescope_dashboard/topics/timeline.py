"""Timeline: the GPU's busy share during a call, and its longest gap."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from tilescope.models import timeline as model
from tilescope.models.function_names import said as function_said

from tilescope_dashboard.data.columns import IMPL, Column
from tilescope_dashboard.data.frames import with_first
from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.timeline import MOST
from tilescope_dashboard.topics.sentence import Sentence

#: A run has a timeline if it has one of these metrics.
NEEDED = frozenset({"launch_start"})
#: Columns of ``listed``'s frame, and of ``tilescope.models.timeline.totals``.
LAUNCHES = (
    IMPL, Column("number", "launch", "count"), Column("start", "start", "second"),
    Column("duration", "duration", "second"), Column("gap", "gap before", "second"),
    Column("late", "waiting on CPU", "second"), Column("source", "source"), Column("function", "function"),
)  # fmt: skip
TOTALS = (
    IMPL, Column("sample", "repetition", "count"), Column("launches", "launches", "count"),
    Column("window", "window", "second"), Column("busy", "GPU busy", "second"), Column("gaps", "gaps", "second"),
    Column("late", "waiting on CPU", "second"), Column("busy_share", "share", "ratio"), Column("source", "source"),
)  # fmt: skip
#: The typical repetition: each implementation's median one.
TYPICAL = -1
NOTHING = Sentence("Timeline", "There are no start times of this kernel's launches.")


def repetitions(samples: Iterable[int]) -> dict[str, int]:
    """The repetitions by their labels, the typical one first."""
    return {"median": TYPICAL, **{str(sample): int(sample) for sample in sorted(set(samples))}}


def chosen(sums: pd.DataFrame, workload: str, direction: str, sample: int) -> pd.DataFrame:
    """A repetition for each implementation of one problem, Triton's first."""
    here = sums[(sums["workload"] == workload) & (sums["pass"] == direction)]
    found = model.typical(here) if sample == TYPICAL else here[here["sample"] == sample]
    return with_first(found, {"impl": "triton"}).reset_index(drop=True)


def listed(launches: pd.DataFrame) -> pd.DataFrame:
    """The launches for the table, numbered from 1."""
    return launches.assign(number=launches["launch"].astype("float64") + 1)


def sentence(launches: pd.DataFrame, sums: pd.DataFrame) -> Sentence:
    """The headline: the first of ``sums`` (``chosen``), and the cause of its longest gap in ``launches``."""
    if sums.empty:
        return NOTHING
    first = sums.iloc[0]
    title = f"{first['impl']}: GPU busy {write(first['busy_share'], 'ratio')} of {write(first['window'], 'second')}"
    gaps = launches.loc[(launches["impl"] == first["impl"]) & (launches["gap"] > 0)]
    said = [
        "The call is one launch, so it has no gaps."
        if first["launches"] == 1
        else "There are no gaps between its launches."
    ]
    if len(gaps):
        longest = gaps.loc[gaps["gap"].idxmax()]
        name = short(function_said(longest["function"]), 60)
        said = [f"Its longest gap, {write(longest['gap'], 'second')}, is before {name}: {_cause(longest)}"]
    if len(launches) > MOST:
        said.append(f"The figure draws the longest of {len(launches):,} launches one by one, and the others together.")
    if len(gaps):
        said.append("torch.profiler slows the CPU down. Without it, gaps that wait for the CPU are shorter.")
    return Sentence(title, " ".join(said))


def _cause(launch: pd.Series) -> str:
    if pd.isna(launch["late"]):
        return "its cause is unknown, because this run has no CPU calls. Profile the kernel again to record them."
    if launch["late"] > 0:
        return f"the GPU waited on the CPU for {write(launch['late'], 'second')}."
    return "the CPU had called before the GPU became idle, so this is a launch gap."
