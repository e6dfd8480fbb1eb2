"""What the timeline says of a call: how busy the GPU was, and what it waited for longest."""

from __future__ import annotations

import pandas as pd
from tilescope.models.timeline import plain_name

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.timeline import MOST

_NOTHING = (
    "No launch of this kernel has a start in this run. torch.profiler sees when launches begin: profile the kernel on a "
    "GPU with the torch_profiler collector."
)


def headline(launches: pd.DataFrame, sums: pd.DataFrame) -> str:
    """The first of ``sums`` (``tilescope.models.timeline.totals``) in words, and why its longest gap in ``launches`` is there."""
    if sums.empty:
        return html_text.heading("Timeline", _NOTHING)
    first = sums.iloc[0]
    title = f"{first['impl']}: GPU busy {write(first['busy_share'], 'ratio')} of {write(first['window'], 'second')}"
    gaps = launches.loc[(launches["impl"] == first["impl"]) & (launches["gap"] > 0)]
    said = ["It is one launch." if first["launches"] == 1 else "Its launches leave no gap."]
    if len(gaps):
        longest = gaps.loc[gaps["gap"].idxmax()]
        name = short(plain_name(longest["function"]), 60)
        said = [f"Its longest gap, {write(longest['gap'], 'second')}, lies before {name}: {_blame(longest)}"]
    if len(launches) > MOST:
        said.append(f"Of {len(launches):,} launches the figure draws the longest one by one and the others together.")
    if len(gaps):
        said.append("torch.profiler slows the CPU down: without it, gaps that wait for the CPU are shorter.")
    return html_text.heading(title, " ".join(said))


def _blame(launch: pd.Series) -> str:
    if pd.isna(launch["late"]):
        return (
            "why is not known, for this run was recorded without the CPU's calls; profile the kernel anew to have them."
        )
    if launch["late"] > 0:
        return f"the CPU was late, by {write(launch['late'], 'second')}."
    return "the CPU had called in time."
