"""Inside: what a kernel's warps wait for, how long products are in flight, its critical path, and each line's time."""

from __future__ import annotations

import pandas as pd
from tilescope.collectors.lanes import facts, records, trace
from tilescope.models import lanes as model

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.units import write
from tilescope_dashboard.topics.sentence import Sentence

#: A run has lanes if it has this metric.
NEEDED = frozenset({"lane_wait_share"})
#: Columns of ``listed``'s frame.
LINES = (
    Column("line", "line", "count"), Column("name", "operation"), Column("kind", "kind"), Column("awaits", "waits for"),
    Column("critical", "share of the critical path", "ratio"), Column("share", "share of the warps' time", "ratio"),
    Column("time", "time of a warp", "second"), Column("count", "times a warp", "count"),
    Column("critical_before", "critical path, baseline", "ratio"), Column("time_before", "time of a warp, baseline", "second"),
)  # fmt: skip
NOTHING = Sentence("Inside", "What the warps of this kernel do was not recorded.")
GONE = Sentence("Inside", "This run keeps no lanes: published runs leave out such large files.")


#: The columns of ``LINES`` that have the baseline's values.
BEFORE = ("critical_before", "time_before")
#: Parts of a critical path that the text names.
_PARTS = 3


def listed(found: pd.DataFrame, before: pd.DataFrame | None = None) -> pd.DataFrame:
    """Rows of ``LINES``, ``found`` of ``model.by_line``, with those of a baseline where there is one. A time outside of any line has none."""
    if before is not None:
        names = {"critical": "critical_before", "time": "time_before"}
        found = found.merge(before[[*trace.LINE, *names]].rename(columns=names), "outer", trace.LINE, sort=False)
        found = found.sort_values("share", ascending=False, ignore_index=True)
    return found.assign(line=found["line"].where(found["line"] > 0).astype("Float64"))


def sentence(lanes: model.Lanes, launch: int, found: pd.DataFrame) -> Sentence:
    """The headline: the longest wait, and products in flight. The text has the critical path, and how much records slow the kernel down.
    ``found`` are its lines (``model.by_line``).
    """
    own = lanes.spans[lanes.spans["launch"] == launch]
    told = lanes.launches[launch]
    wait = model.longest_wait(found)
    title = "no warp waits"
    if wait:
        title = f"warps wait {write(wait.share, 'ratio')} of their time"
        title += f" for the {wait.awaits}" if wait.awaits else f" ({wait.name})"
        title += f", at line {wait.line}" if wait.line else ""
    if (own["kind"] == records.PRODUCT).any():
        title += f"; products are in flight {write(facts.product_share(own), 'ratio')} of the time"
    first = found.nlargest(_PARTS, "critical")
    path = (
        f"{write(row.critical, 'ratio')} {row.name}{f' at line {row.line}' if row.line else ''}"
        for row in first.itertuples(index=False, name="Row")
    )
    parts = [f"The critical path is {', '.join(path)}."]
    plain, slow = told.get("plain"), told.get("recorded")
    if isinstance(plain, float) and isinstance(slow, float):
        parts.append(
            f"The kernel takes {write(plain, 'second')} without records and {slow / plain:.2f}× as long with them, so short spans look longer than they are."
        )
        ran = told.get("longest")
        if isinstance(ran, float) and ran < slow:
            parts.append(
                f"Its programs run for {write(ran, 'second')} of that: the launch starts and ends in the rest."
            )
    without = told.get("without")
    if isinstance(without, list) and without:
        parts.append(
            f"No records are of {', '.join(without)}, which slow it down too much (--lanes-slowdown allows more)."
        )
    count = own["program"].nunique()
    parts.append(f"{count} of the launch's programs {'were' if count > 1 else 'was'} sampled.")
    return Sentence(f"{told['function']}: {title}", " ".join(parts))
