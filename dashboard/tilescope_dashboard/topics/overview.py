"""Overview: how fast a case is, how close to its roof, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd
from tilescope.models import faults
from tilescope.runs import store
from tilescope.table.units import several

from tilescope_dashboard.data.columns import GPU_TIME, IMPL, KERNEL, PASS, WORKLOAD, Column
from tilescope_dashboard.data.units import ABSENT, ranged, times, write
from tilescope_dashboard.topics.sentence import Sentence

_OF_ROOFLINE = Column("floor_fraction", "of roofline", "ratio")
_ROOF = Column("roof", "roof")
_SPEEDUP, _VS = Column("speedup_baseline", "speedup", "speedup"), Column("baseline", "vs")
_VS_LIBRARY = Column("speedup_library", "vs the fastest library", "speedup")
_LIBRARY, _WHY = Column("library", "library"), Column("why", "why")
_TRAFFIC = Column("bytes_ratio", "HBM traffic vs minimum", "times")
#: Columns of ``tilescope.models.summary.summarise``'s frame.
CASES = (
    KERNEL, IMPL, PASS, WORKLOAD, GPU_TIME, _OF_ROOFLINE, _ROOF, _SPEEDUP, _VS, _VS_LIBRARY, _LIBRARY, _TRAFFIC,
    Column("registers", "registers", "count"), Column("theoretical_occupancy", "occupancy", "ratio"), _WHY,
)  # fmt: skip
#: Columns of ``listing``'s frame.
RUNS = (
    Column("started", "started (UTC)"), Column("title", "run"), Column("device", "GPU"), Column("what", "kind"),
    Column("kernels", "kernels"), Column("sources", "collectors"), Column("cases", "cases", "count"),
    Column("state", "state"),
)  # fmt: skip
#: Columns of ``timed`` where there are no tooltips: a time has its spread and clock beside it.
TIMES = (
    KERNEL, PASS, WORKLOAD, IMPL, Column("time", "GPU time (5 to 95 %)", "spread"), Column("time_source", "clock"),
    _OF_ROOFLINE, _SPEEDUP, _VS, _VS_LIBRARY, _LIBRARY,
)  # fmt: skip
TRAFFIC = (_TRAFFIC, Column("bytes_source", "bytes from"))
IN_FULL = (
    *TIMES, Column("floor", "floor", "second"), Column("floor_origin", "roof"), *TRAFFIC,
    Column("chosen", "chosen config"), _WHY,
)  # fmt: skip
#: Legend of the figure's line and marks.
READING = "The dashed line is the floor: the time that the algorithm's bytes or operations need at the device's roofs."
#: What a row of the app's table does.
CHOOSING = "Click a row to choose its case for every view."
NOTHING = "This run has no data on it."


def of_run(cases: pd.DataFrame) -> Sentence:
    """The headline of all of a run's ``cases``, of ``summary.summarise``: their number, and Triton's median share of the roofline."""
    own = cases.loc[cases["impl"].eq("triton"), "floor_fraction"].median() if len(cases) else float("nan")
    reached = f": triton reaches a median of {write(own, 'ratio')} of roofline" if own > 0 else ""
    reading = READING if has_marks(cases) else "Nothing was timed or counted in this run."
    return Sentence(f"{several(len(cases), 'case')} in this run{reached}", f"{reading} {CHOOSING}")


def has_marks(cases: pd.DataFrame) -> bool:
    """Whether the figure has anything to draw."""
    return len(cases) > 0 and bool(cases[["floor_fraction", "bytes_ratio"]].notna().any(axis=None))


class Stat(NamedTuple):
    """A large number and a note on its source."""

    label: str
    value: str
    note: str


def listing(runs: Iterable[store.Summary]) -> pd.DataFrame:
    """One row a run, in their order.

    Columns are ``started`` (UTC, or the id where it is not known), ``title``, ``device``, ``what`` (recorded, measured or
    predicted), ``kernels`` and ``sources`` as text, the number of ``cases``, and ``state``, a problem or empty.
    """
    rows = []
    for run in runs:
        what = "" if run.error else "recorded" if run.recorded else "measured" if run.measured else "predicted"
        problems = ["" if run.complete else "not complete", f"{run.failures} failed" if run.failures else ""]
        started = run.started[:16].replace("T", " ") or run.id
        kernels = "a model's step" if run.of_step else ", ".join(run.kernels)
        sources = ", ".join(run.sources)
        state = run.error or ", ".join(filter(None, problems))
        rows.append((started, run.title or run.id, run.device, what, kernels, sources, run.cases, state))
    return pd.DataFrame(rows, columns=[column.name for column in RUNS])


def timed(cases: pd.DataFrame) -> pd.DataFrame:
    """``summary.summarise``'s frame with ``time``: the median and its 5 to 95 % range as text, a dash where not timed."""
    told = [
        ranged("second", row.gpu_time, row.gpu_time_low, row.gpu_time_high) if row.measured else ABSENT
        for row in cases.itertuples()
    ]
    return cases.assign(time=pd.Series(told, index=cases.index, dtype="object"))


def _other_library(case: Mapping[str, Any]) -> bool:
    """Whether the fastest library is another than the baseline."""
    return bool(case["library"]) and case["speedup_library"] != case["speedup_baseline"]


def known(found: Iterable[Stat]) -> list[Stat]:
    """The numbers that have a value."""
    return [stat for stat in found if stat.value != ABSENT]


def gpu_time(case: Mapping[str, Any]) -> Stat:
    """A row's GPU time, with its range and its clock."""
    spread = f"{write(case['gpu_time_low'], 'second')} – {write(case['gpu_time_high'], 'second')}"
    return Stat("GPU time", write(case["gpu_time"], "second"), f"{spread}, {case['time_source']}")


def of_roof(case: Mapping[str, Any]) -> Stat:
    """A row's share of the roofline, and of which roof."""
    note = f"of the {case['roof']}: {write(case['floor'], 'second')}"
    return Stat("of roofline", write(case["floor_fraction"], "ratio"), note)


def resources(case: Mapping[str, Any], was: Callable[[str, str], str] = lambda *_: "") -> list[Stat]:
    """A row's traffic, registers and occupancy. ``was`` gives a remark on a column's value in a baseline, by its name and unit."""
    registers, occupancy = "registers", "theoretical_occupancy"
    limited = f"limited by {case['limiter']}{was(occupancy, 'ratio')}"
    return [
        Stat("HBM traffic vs minimum", times(case["bytes_ratio"]), counted(case)),
        *requested_of_sample(case),
        Stat("registers", write(case[registers], "count"), f"per thread{was(registers, 'count')}"),
        *([Stat("spills", write(case["spill_bytes"], "byte"), "per thread")] if case["spill_bytes"] > 0 else []),
        Stat("theoretical occupancy", write(case[occupancy], "ratio"), limited),
    ]


def requested_of_sample(case: Mapping[str, Any]) -> list[Stat]:
    """Requested bytes of a row with sampled programs; nothing for other rows."""
    read, written, programs = (
        case[name] for name in ("sampled_bytes_read", "sampled_bytes_written", "sampled_programs")
    )
    if not read + written > 0:
        return []
    of = f" of {programs:,.0f} of {case['programs']:,.0f} programs" if programs > 0 else ""
    note = f"{write(read, 'byte')} read, {write(written, 'byte')} written; estimated from a sample{of}"
    return [Stat("bytes requested", f"≈ {write(read + written, 'byte')}", note)]


def counted(case: Mapping[str, Any]) -> str:
    """Source of a row's bytes, and whether they may far exceed what the call moves."""
    return f"{case['bytes_source']}{', at most: caches are cold before each launch' if case['bytes_cold'] else ''}"


def place(case: Mapping[str, Any]) -> str:
    """``triton, 8192x16384-bf16, forward, BLOCK=1024, num_warps=4``."""
    config = re.sub(",(?! )", ", ", case["config"] or case["chosen"])  # else a line ends within a name
    return ", ".join(filter(None, [case["impl"], case["workload"], case["pass"], config]))


def sentence(case: Mapping[str, Any] | None) -> Sentence:
    """``81.2 % of roofline (measured copy bandwidth), 3.57× vs F.softmax (triton, 8192x16384-bf16, forward)``, and the sentence on the bound."""
    if case is None:
        return Sentence(NOTHING)
    if case["fault"]:
        return Sentence(f"{faults.LABELS[case['fault']].capitalize()} ({place(case)})", str(case["why"]))
    predicted = any(case[name] == case[name] for name in ("floor", "bytes", "registers", "interval"))
    untimed = "Predicted, not measured" if predicted else "Not timed"
    reached = [
        f"{write(case['gpu_time'], 'second')} of GPU time" if case["measured"] else untimed,
        *(
            [f"{write(case['floor_fraction'], 'ratio')} of roofline ({case['roof']})"]
            if case["floor_fraction"] > 0
            else []
        ),
        *([f"{times(case['speedup_baseline'])} vs {case['baseline']}"] if case["baseline"] else []),
        *([f"{times(case['speedup_library'])} vs {case['library']}"] if _other_library(case) else []),
    ]
    return Sentence(f"{', '.join(reached)} ({place(case)})", str(case["why"]))
