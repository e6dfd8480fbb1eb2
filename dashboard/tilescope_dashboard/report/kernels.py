"""One kernel of a run, as a report shows it: its headline, its advice, and its parts. Pure: run -> content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pandas as pd
from tilescope.hardware.roofs import all_roofs
from tilescope.models import advice, roofline, summary, traffic
from tilescope.models.advice import Finding, nvidia_rules
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data import frames
from tilescope_dashboard.data.units import times, write
from tilescope_dashboard.figures.autotune import autotune as draw_autotune
from tilescope_dashboard.figures.occupancy import TITLES
from tilescope_dashboard.figures.occupancy import occupancy as draw_occupancy
from tilescope_dashboard.figures.roofline import roofline as draw_roofline
from tilescope_dashboard.figures.style import Theme
from tilescope_dashboard.figures.traffic import traffic as draw_traffic
from tilescope_dashboard.report import columns
from tilescope_dashboard.report.content import Drawing, KernelPart, Part, Table

_CASE = ["kernel", "impl", "pass", "workload", "config"]
_RANKED = "Ranked by potential speedup. Estimates are upper limits: fix one, then measure again."


def kernel(loaded: LoadedRun, name: str, headlines: pd.DataFrame) -> KernelPart:
    """The part of the kernel ``name``. ``headlines`` is ``summary.summarise``'s frame of it, with ``time`` (see ``runs.timed``)."""
    run = loaded.run
    table = loaded.table[loaded.table["kernel"] == name]
    plain = frames.default_configs(table)
    case = summary.representative(headlines)
    same = headlines["workload"].eq(case["workload"]) if case else slice(0)
    parts = [
        _roofline(loaded, plain), *_traffic(plain), _autotune(loaded, name, table), _occupancy(loaded, plain, case),
    ]  # fmt: skip
    return KernelPart(
        name=name,
        about=str(run.kernels.get(name, {}).get("summary", "")),
        headline=_headline(case),
        why=str(case["why"]) if case else "",
        largest=Table(headlines[same], columns.TIMES[1:]),
        advice=tuple(_advice(loaded, table, headlines)),
        parts=tuple(filter(None, parts)),
    )


def _headline(case: dict[str, Any] | None) -> str:
    """``81.2 % of roofline, 3.57× vs eager (triton, 8192x16384-bf16, forward)``."""
    if case is None:
        return "This run says nothing about it."
    where = ", ".join(filter(None, [case["impl"], case["workload"], case["pass"], case["config"] or case["chosen"]]))
    reached = [
        f"{write(case['gpu_time'], 'second')} of GPU time" if case["measured"] else "Predicted, not measured",
        *([f"{write(case['floor_fraction'], 'ratio')} of roofline"] if case["floor_fraction"] > 0 else []),
        *([f"{times(case['speedup_eager'])} vs eager"] if case["speedup_eager"] > 0 else []),
        *([f"{times(case['speedup_library'])} vs {case['library']}"] if case["library"] else []),
    ]
    return f"{', '.join(reached)} ({where})"


def _advice(loaded: LoadedRun, table: pd.DataFrame, headlines: pd.DataFrame) -> Iterator[Part]:
    """What the rules say of the largest case of each pass: ours, then NVIDIA's where they were collected."""
    theirs = nvidia_rules.of_run(loaded.folder)
    for direction, rows in headlines.groupby("pass", sort=False):
        case = summary.representative(rows) or {}
        key = tuple(case[column] for column in _CASE)
        of_sweep = table[(table[_CASE[:-1]] == list(key[:-1])).all(axis="columns")]
        of_case = of_sweep[of_sweep["config"] == key[-1]]
        every = advice.findings(of_sweep, loaded.run.device, loaded.run.kernels, loaded.table)
        found = tuple(finding for finding in every if finding.case == key)
        where = f"{direction}: {case['impl']}, {case['workload']}"
        said = _RANKED if found[1:] else "" if found else _silent(of_case)
        yield Part(f"Advice, {where}", said, findings=found)
        nvidia = tuple(finding for finding in theirs if finding.case == key)
        if nvidia:
            yield Part(f"NVIDIA's rules, {where}", "Nsight Compute's own words and estimates.", findings=nvidia)


def _silent(table: pd.DataFrame) -> str:
    wanted = [name for name in ("compiler", "interpreter", "ncu") if name not in set(table["source"])]
    more = f" Profile it with {' and '.join(wanted)} to know more." if wanted else ""
    return f"No known bottleneck found.{more}"


def _roofline(loaded: LoadedRun, plain: pd.DataFrame) -> Part | None:
    run = loaded.run
    points = roofline.points(plain, run.device, run.kernels)
    whole = points[points["launch"].isna() & (points["level"] == "hbm")].reset_index(drop=True)
    if whole.empty:
        return None
    said = "Hollow marks are predicted, filled ones measured; dashed roofs are the datasheet's."
    return Part(
        "Roofline",
        said,
        (partial(draw_roofline, whole, all_roofs(run.device)),),
        Table(whole, columns.points(whole["pipe"])),
    )


def _traffic(plain: pd.DataFrame) -> Iterator[Part]:
    """A part a pass, of the workload that has most to move: the others would make the file slow to open."""
    launches = traffic.traffic(plain)
    floors = launches["floor_read"]
    largest = launches.loc[floors.idxmax(), "workload"] if floors.notna().any() else launches["workload"].head(1).max()
    for direction, rows in launches[launches["workload"] == largest].groupby("pass", sort=False):
        bars = _one_source(rows)
        floor = rows[["floor_read", "floor_written"]].sum(axis=1, min_count=2).min()
        if len(bars):
            drawn = partial(draw_traffic, bars, None if pd.isna(floor) else float(floor))
            yield Part(f"HBM traffic, {largest}, {direction}", "", (drawn,), Table(bars, columns.LAUNCHES))


def _one_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured bytes where there are any, an implementation at a time."""
    bars = rows[rows["source"] != "model"]
    counted = bars["source"].eq("ncu")
    return bars[counted | ~bars["impl"].isin(set(bars.loc[counted, "impl"]))].reset_index(drop=True)


def _autotune(loaded: LoadedRun, name: str, table: pd.DataFrame) -> Part | None:
    sweep = frames.configs(
        table, [failure for failure in loaded.run.failures if failure.concerns(name)], loaded.run.device.target
    )
    varying = frames.parameters(sweep)
    measure = next((m for m in frames.COLOURINGS if sweep[m].notna().any()), None)
    if len(varying) < 2 or measure is None:
        return None
    label, unit, less = frames.COLOURINGS[measure]
    ordered = sweep.assign(value=sweep[measure]).sort_values("value", ascending=less, na_position="last")
    shown = ordered.drop_duplicates(varying[:2]).assign(best=lambda c: c["value"] == ordered["value"].iloc[0])
    said = f"Coloured by {label}; each cell is the best over the other parameters."
    drawn = partial(draw_autotune, shown, varying[0], varying[1], unit)
    return Part("Autotune", said, (drawn,), Table(ordered, columns.CONFIGS))


def _occupancy(loaded: LoadedRun, plain: pd.DataFrame, case: dict[str, Any] | None) -> Part | None:
    """The table has every launch; the figures have the first one of the headline's case, where its registers are known."""
    held = frames.occupancies(plain, loaded.run.device.target)
    if held.empty:
        return None
    of_case = held[(held[_CASE] == [(case or {}).get(name) for name in _CASE]).all(axis="columns")]
    row = (of_case if len(of_case) else held).iloc[0].to_dict()
    said = f"{row['impl']}, {row['workload']}, {row['pass']}: limited by {row['limiter']}, as {row['source']} has it."
    drawn = tuple(_curves(row, loaded.run.device.target))
    return Part("Occupancy", said, drawn, Table(held, columns.OCCUPANCY))


def _curves(row: dict[str, Any], target: str) -> Iterable[Drawing]:
    """Occupancy of the launch over each of the three resources."""
    for resource in TITLES:
        value = row["block_threads"] / 32 if resource == "warps" else row[resource]
        point = {**row, "value": value, "achieved": row["achieved_occupancy"]}

        def draw(look: Theme, resource: str = resource, point: dict[str, Any] = point) -> Any:
            return draw_occupancy(frames.occupancy_curve(row, target, resource), point, resource, look, 240)

        yield draw


def top(parts: Iterable[Part], most: int) -> list[Finding]:
    """The first ``most`` findings of the parts, by what they could win."""
    return sorted((finding for part in parts for finding in part.findings), key=advice.rank)[:most]
