"""Sizes: bandwidth or operation rate of each implementation over the problem size."""

from __future__ import annotations

import pandas as pd
from tilescope.hardware import ceilings, roofs
from tilescope.table.run import Device
from tilescope.table.units import several

from tilescope_dashboard.data.columns import GPU_TIME, IMPL, WORKLOAD, Column
from tilescope_dashboard.data.measurements import newest
from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.sizes import Rate
from tilescope_dashboard.topics.sentence import Sentence

NOTHING = Sentence("Sizes", "No run on this GPU timed this kernel and pass at a size whose work is known.")
_READING = (
    "Bars are the 5 to 95 % range over repetitions. The line joins the fastest of the sizes that move the same bytes. "
    "Each point is from the newest run of its case on this GPU."
)
#: What each rate column of ``tilescope.models.summary`` counts.
_WORK = {"bandwidth": "bytes the algorithm must move", "performance": "operations the algorithm needs"}


#: The rate with the widest values in a table.
WIDEST = Rate("performance", "flop/second", _WORK["performance"])


def rate(rows: pd.DataFrame) -> Rate:
    """The rate that bounds the largest problem: bytes a second, or operations where those take longer at the roofs."""
    known = rows[rows["floor"].notna()]
    largest = known.loc[known["floor"].idxmax()] if len(known) else None
    if largest is not None and largest["performance_fraction"] > largest["bandwidth_fraction"]:
        return Rate("performance", ceilings.unit(str(largest["pipe"])), _WORK["performance"])
    return Rate("bandwidth", "byte/second", _WORK["bandwidth"])


def columns(of: Rate) -> tuple[Column, ...]:
    size = "size (B)" if of.unit_of_size == "byte" else "size"
    return (
        IMPL, WORKLOAD, Column("size", size, of.unit_of_size), Column("rate", "rate", of.unit),
        Column("rate_low", "5 %", of.unit), Column("rate_high", "95 %", of.unit),
        Column("floor_fraction", "of roofline", "ratio"), GPU_TIME, Column("relative_error", "error", "ratio"),
        Column("origin", "from"),
    )  # fmt: skip


def sizes(rows: pd.DataFrame, direction: str, of: Rate) -> pd.DataFrame:
    """One row an implementation and workload of that pass, smallest first, with ``size``, ``rate``, ``rate_low``, ``rate_high``.

    ``rows`` are ``measurements``; those without work of that kind are left out.
    """
    found = newest(rows[rows["pass"].eq(direction)])
    # Multiply by the time again to get the amount.
    work = (found[of.column] * found["gpu_time"]).round()
    found = found.assign(
        size=work, rate=found[of.column], rate_low=work / found["gpu_time_high"], rate_high=work / found["gpu_time_low"]
    )
    found = found[found["rate"].gt(0) & found["size"].gt(0)]
    return found.sort_values(["size", "workload", "impl"], kind="stable").reset_index(drop=True)


def roof(rows: pd.DataFrame, device: Device | None, of: Rate) -> tuple[float, str] | None:
    """The roof of most of these sizes and its name; None if unknown."""
    if device is None or rows.empty:
        return None
    name = "memory_roof" if of.column == "bandwidth" else "pipe"
    names = rows.loc[rows[name].ne(""), name].mode()
    found = roofs.roof(device, str(names[0])) if len(names) else None
    if found is None:
        return None
    said = roofs.bandwidth(device, found.name) if of.column == "bandwidth" else f"{found.origin} {found.name} rate"
    return found.value, said


def sentence(rows: pd.DataFrame, of: Rate) -> Sentence:
    """The headline: where Triton is fastest, its highest rate, and the highest of all if it is another's."""
    if rows.empty:
        return NOTHING
    own = rows[rows["impl"].eq("triton")]
    top, best = ((some if len(some) else rows).nlargest(1, "rate").iloc[0] for some in (own, rows))
    won, asked = _won(rows)
    title = f"triton is fastest on {won} of {several(asked, 'size')} and" if asked else str(top["impl"])
    title += f" reaches {write(top['rate'], of.unit)} on {top['workload']}"
    # One that is faster by less than what is written is not told: the two numbers would be the same.
    if write(best["rate"], of.unit) != write(top["rate"], of.unit):
        title += f"; {best['impl']} reaches {write(best['rate'], of.unit)}" + (
            f" on {best['workload']}" if best["workload"] != top["workload"] else ""
        )
    return Sentence(title, _READING)


def _won(rows: pd.DataFrame) -> tuple[int, int]:
    """On how many workloads Triton is fastest, of those with another implementation."""
    others = rows.groupby("workload")["impl"].transform("nunique") > 1
    shared = rows[others & rows["workload"].isin(rows.loc[rows["impl"].eq("triton"), "workload"])]
    best = shared.loc[shared.groupby("workload")["rate"].idxmax()] if len(shared) else shared
    return int(best["impl"].eq("triton").sum()), len(best)
