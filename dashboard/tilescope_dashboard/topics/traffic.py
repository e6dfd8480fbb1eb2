"""What the traffic says of a kernel: how many bytes it moves, and what fusing them gains."""

from __future__ import annotations

import pandas as pd
from tilescope.table.schema import MEASURED

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import times, write
from tilescope_dashboard.figures.traffic import MOST

#: The view in a run without bytes.
NOTHING = html_text.heading("HBM traffic", "No bytes are counted in this run: the interpreter or ncu counts them.")


def headline(bars: pd.DataFrame, gains: pd.DataFrame, floor: float | None) -> str:
    """Bytes of the Triton implementation, or else of the one with the fewest, against ``floor`` in bytes; its speed-up.

    ``bars`` are rows of ``tilescope.models.traffic.traffic`` and ``gains`` of its ``speedup``, both of one workload and pass.
    """
    totals = (bars["read"] + bars["written"]).groupby(bars["impl"]).sum()
    ours = "triton" if "triton" in totals else totals.idxmin()
    together = ", the last one all that move least" if bars["impl"].value_counts().max() > MOST else ""
    said = f"Solid bars were measured by ncu, pale ones predicted; each segment is one launch{together}."
    measured = set(bars.loc[bars["impl"] == ours, "source"]) <= MEASURED
    verb = "moves" if measured else "has to move"
    title = f"{ours} {verb} {write(totals[ours], 'byte')}"
    if floor:
        title += f", {times(totals[ours] / floor)} the minimum"
    gain = gains[gains["impl"] == ours]
    if len(gain) and pd.notna(gain["predicted"].iloc[0]):
        actual = gain["actual"].iloc[0]
        timed = f" Measured: {times(actual)}." if pd.notna(actual) else ""
        said = f"Its bytes predict a speedup of {times(gain['predicted'].iloc[0])} vs eager.{timed} {said}"
    return html_text.heading(title, said)
