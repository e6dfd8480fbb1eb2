"""Summary: the verdict on one case of a kernel, four shares of the hardware's peak, and the comparison with a baseline."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tilescope.hardware import roofs
from tilescope.models import faults, function_names
from tilescope.models import summary as model
from tilescope.models.advice.finding import AT_ROOF, DISTANCE, Finding
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table.case_table import CaseValues, gather
from tilescope.table.run import Device, Failure

from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.units import times, write
from tilescope_dashboard.topics import advice, compare, overview
from tilescope_dashboard.topics.overview import Stat
from tilescope_dashboard.topics.sentence import Sentence

#: Parts of the hardware, in drawing order.
PARTS = ("SM", "HBM", "L2", "tensor cores")
_COLUMNS = ("part", "share", "said")
#: Where no run has the shares.
NOT_COUNTED = "No run on this GPU has hardware counters of this case."
_BOUND = {"memory": "memory-bound", "compute": "compute-bound", "latency": "latency-bound"}
_UNKNOWN = "This run has no data on it."


def verdict(
    kernel: str,
    case: Mapping[str, Any] | None,
    found: Sequence[Finding],
    failed: Sequence[Failure] = (),
    against: Sequence[Mapping[str, Any]] = (),
) -> Sentence:
    """The sentence on a row of ``tilescope.models.summary.summarise``: the most important finding, else its speedup over the first
    baseline of ``against`` and its share of the roof; and the reason.

    A fault replaces the sentence. ``failed`` are the kernel's failures in the run, for a kernel without any case.
    """
    if case is None and (fault := faults.first([faults.of_failure(one) for one in failed])):
        return Sentence(fault.title, fault.text)
    if case is None:
        return Sentence(kernel or "No kernel", _UNKNOWN if kernel else "Choose a kernel.")
    if found and found[0].fault:
        return Sentence(found[0].title, f"{found[0].explanation} {found[0].remedy} ({overview.place(case)})".strip())
    if found and found[0].impossible:
        return Sentence(
            f"{function_names.said(kernel)}: {found[0].title}", f"{advice.IMPOSSIBLE} ({overview.place(case)})"
        )
    parts = [_cause(found), *_standing(case, against)]
    if not found:
        judged = pd.notna(case["floor"]) or pd.notna(case["registers"])
        parts.append("no problem found" if judged else "its floor is not known")
    elif found[0].rule == AT_ROOF[0]:
        parts.append("only fusing it would make it faster")
    if not case["measured"]:
        parts.append("not timed")
    title = ", ".join(filter(None, parts)) or "nothing known"
    return Sentence(f"{function_names.said(kernel)}: {title}", f"{case['why']} ({overview.place(case)})")


def _standing(case: Mapping[str, Any], against: Sequence[Mapping[str, Any]]) -> list[str]:
    """How fast the case is: over the baseline, and of its roof."""
    bound = _BOUND.get(case["bound"], "")
    if not case["measured"]:
        return [f"predicted {bound}" if bound else ""]
    rows = [row for row in against if pd.notna(row["speedup"])]
    faster = [f"{_speed(row)} {row['baseline_name']}{_where(row)}" for row in rows[:1]]
    if case["floor_fraction"] > 0:
        return [*faster, f"{write(case['floor_fraction'], 'ratio')} of the {case['roof']}"]
    return [*faster, f"{write(case['gpu_time'], 'second')} of GPU time", bound]


def _speed(row: Mapping[str, Any]) -> str:
    return "as fast as" if row["verdict"] == "alike" else f"{times(row['speedup'])} the speed of"


def foremost(found: Sequence[Finding]) -> Finding | None:
    """The first finding that something can be done about."""
    return next((one for one in found if one.rule != DISTANCE and (one.bound or one.warning)), None)


def _cause(found: Sequence[Finding]) -> str:
    first = foremost(found)
    if first is None:
        return ""
    title, bound = first.title.removesuffix("."), first.bound.text if first.bound else ""
    return f"{title} ({bound})" if bound and bound not in title else title


def led(said: Sentence, found: Sequence[Finding]) -> Sentence:
    """The sentence with the foremost finding in front."""
    return said._replace(title=". ".join(filter(None, [_cause(found), said.title])))


def _rows(loaded: LoadedRun, kernel: str, case: KernelCase) -> pd.DataFrame:
    table = loaded.table
    return table[table["kernel"].eq(kernel) & (table[OF_KERNEL] == list(case)).all(axis="columns")]


def alone(loaded: LoadedRun, kernel: str, case: KernelCase) -> pd.DataFrame:
    """The case's row of ``tilescope.models.summary.summarise``."""
    return model.of_run(loaded, _rows(loaded, kernel, case))


def values(loaded: LoadedRun, kernel: str, case: KernelCase) -> CaseValues | None:
    """The case's values in the run; None without any."""
    return next(iter(gather(_rows(loaded, kernel, case))), None)


def speed_of_light(case: CaseValues | None, device: Device | None) -> pd.DataFrame:
    """A row for each part of the hardware whose use by the case's longest launch was counted by Nsight Compute or CUPTI.

    Columns are ``part``, its ``share`` of the peak, and a text on the origin (``said``).
    """
    launch = case.main_launch(case.counted_by) if case else None
    if case is None or launch is None:
        return pd.DataFrame(columns=list(_COLUMNS))
    rows = []
    for part, metric in (("SM", "sm_throughput"), ("HBM", "dram_throughput")):
        known = case.at(metric, launch, case.counted_by)
        if known:
            rows.append((part, known.value, f"of the chip's peak at its clock, as {known.source} counted"))
    time = case.at("gpu_time", launch, case.counted_by)
    if device and time and time.value > 0:
        rows += [
            row
            for row in (_of_l2(case, launch, time.value, device), _of_tensors(case, launch, time.value, device))
            if row
        ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _of_l2(case: CaseValues, launch: int, seconds: float, device: Device) -> tuple[str, float, str] | None:
    moved, roof = case.at("l2_bytes", launch, case.counted_by), roofs.roof(device, "l2")
    if not moved or not roof:
        return None
    return (
        "L2",
        moved.value / seconds / roof.value,
        f"of the {roof.origin} {write(roof.value, roof.unit)}, by {case.counted_by}'s bytes and time",
    )


def _of_tensors(case: CaseValues, launch: int, seconds: float, device: Device) -> tuple[str, float, str] | None:
    """The sum of all tensor pipes' shares, as they share one unit."""
    counted = {pipe: known.value for metric, pipe in roofs.WORK.items()
               if metric.startswith("tensor") and (known := case.at(metric, launch, case.counted_by))}  # fmt: skip
    rates = {pipe: roof for pipe in counted if (roof := roofs.roof(device, pipe))}
    if not counted or any(counted[pipe] > 0 and pipe not in rates for pipe in counted):
        return None
    share = sum(counted[pipe] / seconds / rates[pipe].value for pipe in rates)
    used = [pipe for pipe in rates if counted[pipe] > 0]
    said = (
        f"of the {rates[used[0]].origin} {used[0]} rate, by {case.counted_by}'s operations and time"
        if used
        else "no tensor operation was counted"
    )
    return "tensor cores", share, said


def stats(case: Mapping[str, Any], against: Sequence[Mapping[str, Any]], found: Sequence[Finding] = ()) -> list[Stat]:
    """The large numbers above the page: the evidence of the foremost finding, time, speedup over the baseline, traffic."""
    first = foremost(found)
    cause = [Stat(one.label, one.text, one.source) for one in (first.evidence[:1] if first else ())]
    speedups = [_delta(row) for row in against if pd.notna(row["speedup"])]
    resources = overview.resources(case, functools.partial(_was, against))
    floor = (
        []
        if case["measured"]
        else [Stat("floor", write(case["floor"], "second"), "predicted: the GPU time is at least this")]
    )
    every = overview.known([*cause, overview.gpu_time(case), *floor, *speedups, overview.of_roof(case), *resources])
    # The evidence of the finding may be one of the others.
    return list({one.label: one for one in reversed(every)}.values())[::-1]


def _was(against: Sequence[Mapping[str, Any]], column: str, unit: str) -> str:
    """``; baseline 22`` if the same implementation had another value in the baseline run; empty otherwise."""
    for row in against:
        now, before = row.get(column, math.nan), row.get(f"baseline_{column}", math.nan)
        same = row["impl"] == row["baseline_impl"] and row["run"] != row["baseline_run"]
        if same and pd.notna(now) and pd.notna(before) and now != before:
            return f"; baseline {write(float(before), unit)}"
    return ""


def _where(row: Mapping[str, Any]) -> str:
    """`` in RUN`` for a baseline of another run."""
    return "" if row["run"] == row["baseline_run"] else f" in {row['baseline_run']}"


def _delta(row: Mapping[str, Any]) -> Stat:
    """The baseline's time over the case's, with its interval."""
    alike = "within noise; " if row["verdict"] == "alike" else ""
    interval = f"95 %: {times(row['speedup_low'])} – {times(row['speedup_high'])}"
    return Stat(
        f"speedup vs {row['baseline_name']}{_where(row)}", times(row["speedup"]),
        f"{alike}{interval}; it takes {write(row['baseline_time'], 'second')}",
    )  # fmt: skip


def baseline(
    loaded: LoadedRun,
    kernel: str,
    case: KernelCase,
    chosen: Sequence[str],
    opened: Callable[[Path], LoadedRun],
    *,
    usual: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], list[str]]:
    """The case against the ``chosen`` baselines, else the ``usual`` ones (``compare.against``): its rows, and lines on what limits the
    comparison.
    """  # fmt: skip
    tokens = chosen or usual

    def narrowed(run: LoadedRun) -> LoadedRun:
        rows = run.table
        rows = rows[rows["kernel"].eq(kernel) & rows["workload"].eq(case.workload) & rows["pass"].eq(case.direction)]
        return dataclasses.replace(run, table=rows)

    try:
        rows, said = compare.against(narrowed(loaded), kernel, tokens, lambda path: narrowed(opened(path)))
    except store.StoreError as error:
        return [], [str(error)]
    ours = rows[rows["impl"].eq(case.impl) & rows["config"].eq(case.config)]
    found = [
        {str(name): value for name, value in row.items()} for row in (ours if len(ours) else rows).to_dict("records")
    ]
    if not chosen:
        return found, []
    # If no times are compared at all, say so once.
    told = any("no times are compared" in line for line in said)
    without = [] if told else [row for row in found if pd.isna(row["speedup"])]
    return found, said + [f"{row['baseline_impl']} in {row['baseline_run']}: {row['verdict']}" for row in without]
