"""History: one case's GPU time over the runs that timed it, with the noise of each."""

from __future__ import annotations

import pandas as pd
from tilescope.table.units import several

from tilescope_dashboard.data.columns import IMPL, Column
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.units import times, write
from tilescope_dashboard.topics.sentence import Sentence

#: Columns of ``history``'s frame.
COLUMNS = (
    Column("started", "started (UTC)"), IMPL, Column("gpu_time", "GPU time", "second"),
    Column("gpu_time_low", "5 %", "second"), Column("gpu_time_high", "95 %", "second"),
    Column("change", "vs run before", "times"), Column("config", "config"), Column("revision", "commit"),
    Column("title", "run"),
)  # fmt: skip
_READING = "A bar is the 5 to 95 % range over repetitions. A small mark is the fastest config of a sweep."
_UNTIMED = "Compare says what changed without times: registers, bytes, findings and code."
_ONCE = "Profile it again after a change: the next run stands beside this one."
_APART = "No two of them timed the same implementation and config, so none can be compared."
#: The most steps that the sentence names.
_STEPS = 4


def history(rows: pd.DataFrame, case: KernelCase | None) -> pd.DataFrame:
    """The timed rows of the case's workload and pass (``measurements``), oldest first.

    ``swept`` marks the fastest config of a sweep. ``change`` is the time over that of the last run of the same implementation and
    kind.
    """
    if case is None:
        return rows.head(0).assign(swept=False, change=float("nan"))
    found = rows[rows["workload"].eq(case.workload) & rows["pass"].eq(case.direction)]
    found = found.assign(swept=found["config"].ne(""))
    found = found.sort_values("started", kind="stable").reset_index(drop=True)
    before = found.groupby(["impl", "swept"])["gpu_time"].shift()
    return found.assign(change=found["gpu_time"] / before)


def sentence(kernel: str, rows: pd.DataFrame, case: KernelCase | None, gpu: str = "") -> Sentence:
    """The latest change in time of the case's implementation on that ``gpu``, and whether it exceeds the noise."""
    if case is None or rows.empty:
        return Sentence(f"No run on {gpu or 'this GPU'} timed this case of {kernel or 'a kernel'}", _UNTIMED)
    where = f"{case.workload}, {case.direction}{gpu and ', on ' + gpu}"
    own = rows[rows["impl"].eq(case.impl) & ~rows["swept"]]
    runs = rows["run_id"].nunique()
    if len(own) < 2:
        timed = f"{case.impl} on {where}" if len(own) else where
        return Sentence(f"{several(runs, 'run')} timed {timed}", f"{_ONCE if runs == 1 else _APART} {_READING}")
    last, stepped = own.iloc[-1], _stepped(own)
    apart = bool(stepped.iloc[-1])
    noise = "more than the noise" if apart else "within the noise"
    less = 1 - last["change"]
    change = f"{write(abs(less), 'ratio', 2)} {'less' if less > 0 else 'more'} than"
    title = f"{case.impl} takes {write(last['gpu_time'], 'second')}, {change if less else 'the same as'} in the run before ({noise})"
    ranges = "do not overlap" if apart else "overlap"
    said = f"{where}, {len(own)} runs. The ranges of the last two {ranges}. Runs also differ in clocks and temperature."
    earlier = [
        f"{times(row.change)} on {row.started[:10]}" + (f" at {row.revision[:7]}" if row.revision else "")
        for row in own[:-1][stepped[:-1]].itertuples()
    ]
    steps = f" Earlier steps beyond the noise: {', '.join(earlier[-_STEPS:])}." if earlier else ""
    return Sentence(title, f"{said}{steps} {_READING}")


def _stepped(rows: pd.DataFrame) -> pd.Series:
    """Whether each row's range of times lies apart from that of the row before."""
    before = rows.shift()
    return (rows["gpu_time_low"] > before["gpu_time_high"]) | (rows["gpu_time_high"] < before["gpu_time_low"])
