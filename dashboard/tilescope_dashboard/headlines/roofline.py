"""What the roofline says of a kernel: how much of its roof it reaches."""

from __future__ import annotations

import pandas as pd

from tilescope_dashboard import words
from tilescope_dashboard.figures.roofline import LEVELS
from tilescope_dashboard.units import write

#: Whose bytes a headline speaks of, the most telling first.
_KINDS = ("moved", "algorithm", "requested")


def headline(points: pd.DataFrame) -> str:
    """The largest timed case of ``tilescope.roofline.points`` in words, or what can be said without a clock."""
    text = "Hollow marks are predicted, filled ones measured; a dotted line joins the points of one launch."
    timed = points[points["fraction"].notna()]
    if len(timed):
        case = _telling(timed)
        return words.heading(
            f"{write(case['fraction'], 'ratio')} of the roof at {write(case['intensity'], 'flop/byte')}",
            f"{case['impl']} on {case['workload']} reaches {write(case['performance'], 'flop/second')} "
            f"({case['kind']} bytes through {LEVELS[case['level']]}). {text}",
        )
    if points.empty:
        return words.heading("Roofline", "No point fits these choices.")
    return words.heading("Nothing was timed here", f"Marks stand where the roofs would allow them, dashed. {text}")


def _telling(timed: pd.DataFrame) -> pd.Series:
    """The point a headline speaks of: the Triton implementation's on the largest problem, by the bytes that moved."""
    ours = timed[timed["impl"] == "triton"]
    ours = ours if len(ours) else timed
    needed = ours[ours["kind"] == "algorithm"]
    if len(needed):
        largest = needed.loc[needed["flops"].idxmax()]
        ours = ours[(ours["workload"] == largest["workload"]) & (ours["pass"] == largest["pass"])]
    return ours.loc[ours["kind"].map(_KINDS.index).idxmin()]
