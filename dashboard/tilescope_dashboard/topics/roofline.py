"""What the roofline says of a kernel: how much of its roof it reaches."""

from __future__ import annotations

import pandas as pd
from tilescope.hardware import ceilings

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.roofline import LEVELS

#: Whose bytes a headline speaks of: the algorithm's first, as every other view does.
_KINDS = ("algorithm", "moved", "requested")


def headline(points: pd.DataFrame) -> str:
    """The largest timed case of ``tilescope.models.roofline.points`` in words, or what can be said without a clock."""
    text = "Hollow marks are predicted, filled ones measured; a dotted line joins the points of one launch."
    timed = points[points["fraction"].notna()]
    if len(timed):
        case = _telling(timed)
        return html_text.heading(
            f"{write(case['fraction'], 'ratio')} of roofline at {write(case['intensity'], 'flop/byte')}",
            f"{case['impl']} on {case['workload']} reaches {write(case['performance'], ceilings.unit(case['pipe']))} "
            f"({case['kind']} bytes through {LEVELS[case['level']]}). {text}",
        )
    if points.empty:
        return html_text.heading("Roofline", "No point fits these choices.")
    return html_text.heading("Nothing was timed here", f"Marks stand where the roofs would allow them, dashed. {text}")


def _telling(timed: pd.DataFrame) -> pd.Series:
    """The point a headline speaks of: the Triton implementation's on its largest problem, forward where there is one."""
    chosen = timed.assign(rank=timed["kind"].map(_KINDS.index), floor=timed["gpu_time"] * timed["fraction"])
    chosen = chosen[chosen["rank"] == chosen["rank"].min()]
    for column, wanted in (("impl", "triton"), ("pass", "forward")):
        preferred = chosen[chosen[column] == wanted]
        chosen = preferred if len(preferred) else chosen
    return chosen.loc[chosen["floor"].idxmax()]
