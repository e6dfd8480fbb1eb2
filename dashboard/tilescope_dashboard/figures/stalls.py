"""The states of a launch's warps as bars, the longest first."""

from __future__ import annotations

import pandas as pd
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, heading, hover, write_on

#: Most bars that are drawn; the table has all.
_MOST = 12


def stalls(waited: pd.DataFrame, look: Theme) -> figure:
    """A bar for each of ``topics.counters.stalls``' first rows with cycles; the state in which warps issue has another colour."""
    drawn = waited[waited["cycles"] > 0].head(_MOST)
    names = drawn["name"].tolist()
    # Leave room for the longest bar's label, half of the width on a phone.
    end = (1.7 if look.narrow else 1.3) * float(drawn["cycles"].max())
    plot = blank(
        look, "stalls", 470, x="cycles per issued instruction", x_unit="count", named_rows=True, x_range=Range1d(0, end),
        y_range=names[::-1],
    )  # fmt: skip
    source = ColumnDataSource({
        "name": names, "cycles": drawn["cycles"], "meaning": drawn["meaning"],
        "colour": [look.muted if reason == "selected" else look.accent for reason in drawn["reason"]],
        "text": [f"{write(row.cycles, 'count')}  ({write(row.share, 'ratio')})" for row in drawn.itertuples()],
    })  # fmt: skip
    bars = plot.hbar(y="name", right="cycles", height=0.62, color="colour", source=source, name="stalls")
    write_on(plot, look, "cycles", "name", "text", source=source, x_offset=6)
    hover(plot, bars, [("", "@name: @text"), ("", "@meaning")])
    heading(plot, look, "Warp states, by Nsight's names")
    return plot
