"""One kernel of a run, as a report shows it: its largest case, its advice, and its parts. Pure: run -> content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from tilescope.files.bounded_reading import Unreadable
from tilescope.hardware.occupancy import LIMITS
from tilescope.hardware.roofs import all_roofs
from tilescope.models import advice as rules
from tilescope.models import baseline, summary, sweeps
from tilescope.models import lanes as waits
from tilescope.models import roofline as points
from tilescope.models import traffic as bytes_moved
from tilescope.models.advice import Finding, nvidia_rules
from tilescope.runs import listings
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case

from tilescope_dashboard.data import frames, recordings, run_cache
from tilescope_dashboard.data.run_cache import CASE
from tilescope_dashboard.figures.autotune import autotune as draw_autotune
from tilescope_dashboard.figures.lanes import lanes as draw_lanes
from tilescope_dashboard.figures.layout import layout as draw_layout
from tilescope_dashboard.figures.occupancy import TITLES
from tilescope_dashboard.figures.occupancy import occupancy as draw_occupancy
from tilescope_dashboard.figures.roofline import roofline as draw_roofline
from tilescope_dashboard.figures.style import Theme, theme
from tilescope_dashboard.figures.traffic import traffic as draw_traffic
from tilescope_dashboard.report.content import KernelPart, MakeFigure, Part, Table
from tilescope_dashboard.report.source_lines import source_lines
from tilescope_dashboard.topics import advice, autotune, lanes, layouts, occupancy, overview, roofline, traffic
from tilescope_dashboard.topics import summary as topic

#: Columns of a heatmap whose cells hold a time on a phone.
_NARROW = 5


def kernel(loaded: LoadedRun, name: str, cases: pd.DataFrame) -> KernelPart:
    """The part of the kernel ``name``. ``cases`` is ``summary.summarise``'s frame of it, with ``time`` (see ``overview.timed``)."""
    table = loaded.table[loaded.table["kernel"] == name]
    plain = _sound(frames.default_configs(table), cases)
    case = summary.representative(cases)
    same = cases["workload"].eq(case["workload"]) if case else slice(0)
    failed = loaded.run.failures_of(name)
    passes = {str(way): summary.representative(rows) or {} for way, rows in cases.groupby("pass", sort=False)}
    look = theme(False, declared=baseline.declarations(loaded.run.kernels.get(name)))
    parts = [
        _roofline(loaded, plain, look), *_traffic(plain, loaded.run.device.l2_bytes, look), *_sweep(loaded, name, table), _occupancy(loaded, plain, look),
        _lanes(loaded, plain), *source_lines(loaded, name, passes), *_layouts(loaded, passes),
    ]  # fmt: skip
    advised = tuple(_advice(loaded, table, cases))
    of_case = next((part.findings for part in advised if case and case["pass"] in part.title), ())
    return KernelPart(
        name=name,
        about=str(loaded.run.kernels.get(name, {}).get("summary", "")),
        reached=topic.verdict(name, None, (), failed)
        if failed and not case
        else topic.led(overview.sentence(case), of_case),
        largest=Table(look.named(cases[same]), overview.TIMES[1:]),
        advice=advised,
        parts=tuple(part.named(look) for part in parts if part),
    )


def _sound(rows: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """The rows without those of cases with a fault, about which nothing is concluded."""
    broken = set(cases.loc[cases["fault"].ne(""), list(CASE)].itertuples(index=False, name=None))
    if not broken:
        return rows
    return rows[[case not in broken for case in rows[list(CASE)].itertuples(index=False, name=None)]]


def _advice(loaded: LoadedRun, table: pd.DataFrame, cases: pd.DataFrame) -> Iterator[Part]:
    """Findings on the largest case of each pass: ours, then NVIDIA's where they were collected."""
    theirs = nvidia_rules.of_run(loaded.folder, loaded.run.kernels)
    for direction, rows in cases.groupby("pass", sort=False):
        case = summary.representative(rows) or {}
        key = tuple(case[column] for column in CASE)
        found = run_cache.findings(loaded, key)
        where = f"{direction}: {case['impl']}, {case['workload']}"
        said = advice.sentence(found, set(table.loc[(table[list(CASE)] == list(key)).all(axis="columns"), "source"]))
        yield Part(f"Advice, {where}", said.text if found else said.line, findings=found)
        nvidia = tuple(finding for finding in theirs if finding.case == key)
        if nvidia:
            head = advice.nvidia_sentence(nvidia)
            yield Part(f"{head.title}, {where}", head.text, findings=nvidia)


def _roofline(loaded: LoadedRun, plain: pd.DataFrame, look: Theme) -> Part | None:
    run = loaded.run
    known = points.points(plain, run.device, run.kernels)
    whole = known[roofline.chosen(known)].reset_index(drop=True)
    if whole.empty:
        return None
    columns = tuple(column for column in roofline.columns(whole) if column.name != "function")
    drawn = partial(draw_roofline, whole, all_roofs(run.device))
    return Part("Roofline", roofline.sentence(look.named(whole)).line, (drawn,), Table(roofline.listed(whole), columns))


def _traffic(plain: pd.DataFrame, l2_bytes: int, look: Theme) -> Iterator[Part]:
    """A part a pass, of the workload that has most to move: the others would make the file slow to open."""
    launches, speedups = bytes_moved.traffic(plain), bytes_moved.speedup(plain)
    floors = launches["floor_read"]
    largest = launches.loc[floors.idxmax(), "workload"] if floors.notna().any() else launches["workload"].head(1).max()
    for direction in launches.loc[launches["workload"] == largest, "pass"].unique():
        here = traffic.of_problem(launches, largest, direction)
        gains, bars, least = traffic.of_problem(speedups, largest, direction), traffic.bars(here), traffic.floor(here)
        if len(bars):
            said = traffic.sentence(look.named(bars), look.named(gains), least, l2_bytes)
            shown = Table(traffic.listed(bars, least), traffic.LAUNCHES)
            yield Part(f"HBM traffic, {largest}, {direction}", said.line, (partial(draw_traffic, bars, least),), shown)


def _sweep(loaded: LoadedRun, name: str, table: pd.DataFrame) -> Iterator[Part]:
    """The run's own sweeps of the kernel, else those of the best recording that has any."""
    own = list(_autotune(loaded, name, table))
    yield from own
    other = None if own else recordings.best_other(loaded, name, recordings.SWEEP)
    if other is not None:
        rows = other.loaded.table
        for part in _autotune(other.loaded, name, rows[rows["kernel"] == name]):
            yield replace(part, text=f"From another run: {other.origin_of(name)}. {part.text}")


def _autotune(loaded: LoadedRun, name: str, table: pd.DataFrame) -> Iterator[Part]:
    """A part a sweep, as the Autotune view opens it."""
    failed = loaded.run.failures_of(name)
    cells = sweeps.configs(table, failed, loaded.run.device.target)
    column = autotune.most_telling(cells, autotune.colourings(cells).values())
    varying = autotune.axes(cells, column)
    if len(varying) < 2 or column is None:
        return
    across, down = varying[:2]
    label, unit, less = sweeps.COLOURINGS[column]
    defaults = sweeps.defaults(table)
    for sweep in sweeps.names(cells).unique():
        ranked = sweeps.ranked(cells, sweep, {}, column, less)
        grid = autotune.grid(ranked, across, down)
        won = sweeps.gain(ranked, defaults[sweeps.names(defaults) == sweep]) if column == "time" else None
        said = f"Coloured by {label}. {autotune.sentence(ranked, grid, label, unit, won).line}"
        shown = Table(autotune.listed(ranked), autotune.columns(ranked, varying))
        drawn = partial(draw_autotune, grid, across, down, unit)
        yield Part(f"Autotune, {sweep}", said, (drawn,), shown, wide=grid[across].nunique() > _NARROW)


def _occupancy(loaded: LoadedRun, plain: pd.DataFrame, look: Theme) -> Part | None:
    """The table has every launch; the figures have the first, which stands for the kernel."""
    target = loaded.run.device.target
    # Another tool's file may name no GPU, or one of AMD's.
    if target.rstrip("af") not in LIMITS:
        return None
    rows = occupancy.listed(plain, target)
    if rows.empty:
        return None
    row = rows.iloc[0].to_dict()
    drawn = tuple(_curves(row, target))
    said = occupancy.sentence({**row, "impl": look.called(row["impl"])}, target)
    return Part("Occupancy", said.line, drawn, Table(rows, occupancy.COLUMNS))


def _lanes(loaded: LoadedRun, plain: pd.DataFrame) -> Part | None:
    """One program of the first case with lanes, which has the table's lines."""
    rows = plain[plain["metric"].isin(lanes.NEEDED)]
    if rows.empty:
        return None
    try:
        found = waits.of_case(loaded, Case(*rows.iloc[0][list(CASE)]))
    except Unreadable as error:
        return Part("Inside", f"The lanes cannot be read: {error}.")
    if found is None or found.spans.empty:
        return None
    launch, program = found.spans.iloc[0][["launch", "program"]]
    programs = waits.programs(found.spans, launch)
    lines, drawn = waits.by_line(programs.values()), partial(draw_lanes, programs[program])
    columns = tuple(column for column in lanes.LINES if column.name not in lanes.BEFORE)
    return Part("Inside", lanes.sentence(found, launch, lines).line, (drawn,), Table(lanes.listed(lines), columns))


def _layouts(loaded: LoadedRun, passes: Mapping[str, Mapping[str, Any]]) -> Iterator[Part]:
    """A part a pass: the transfer between registers and shared memory that conflicts most."""
    for case in passes.values():
        compiled = listings.of_case(loaded.folder, Case(*(str(case[name]) for name in CASE))) if case else ()
        known = layouts.options([one for launch in compiled for one in launch.transfers])
        for one in list(known.values())[:1]:
            yield Part("Layout", layouts.sentence(one).line, (partial(draw_layout, layouts.elements(one)),))


def _curves(row: dict[str, Any], target: str) -> Iterable[MakeFigure]:
    """Occupancy of the launch over each of the three resources."""
    for resource in TITLES:

        def draw(look: Theme, resource: str = resource) -> Any:
            curve, point = occupancy.curve(row, target, resource), occupancy.point(row, resource)
            return draw_occupancy(curve, point, resource, look, 240)

        yield draw


def top(parts: Iterable[Part], most: int) -> list[Finding]:
    """The first ``most`` findings of the parts, by what they could win."""
    return sorted((finding for part in parts for finding in part.findings), key=rules.rank)[:most]
