"""The exported report: one HTML file with interactive figures and their tables, which opens offline.

``bokeh.embed.components`` with BokehJS inlined: with Panel imported, Bokeh's own ``file_html(INLINE)`` asks a CDN.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from bokeh.embed import components
from bokeh.plotting import figure
from bokeh.util.paths import bokehjs_path
from markupsafe import Markup
from tilescope import roofline as roofline_model
from tilescope import store, summary
from tilescope import traffic as traffic_model
from tilescope.store import LoadedRun

from tilescope_dashboard import frames
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.figures.occupancy import TITLES, occupancy
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.figures.roofline import roofline
from tilescope_dashboard.figures.style import LIGHT
from tilescope_dashboard.figures.traffic import traffic
from tilescope_dashboard.units import times, write

_TEMPLATES = jinja2.Environment(loader=jinja2.PackageLoader("tilescope_dashboard"), autoescape=True)
_HEADLINES = {
    "kernel": "", "impl": "", "pass": "", "workload": "", "gpu_time": "second", "floor_fraction": "ratio",
    "speedup_eager": "times", "bytes_ratio": "times", "registers": "count", "theoretical_occupancy": "ratio", "why": "",
}  # fmt: skip
_POINTS = {
    "impl": "", "workload": "", "pass": "", "kind": "", "level": "", "flops": "flop", "bytes": "count",
    "intensity": "flop/byte", "performance": "flop/second", "gpu_time": "second", "fraction": "ratio", "bytes_source": "",
}  # fmt: skip
_LAUNCHES = {"impl": "", "workload": "", "pass": "", "function": "", "read": "count", "written": "count", "source": ""}
_OCCUPANCY = {
    "impl": "", "workload": "", "pass": "", "function": "", "registers": "count", "shared_memory": "count",
    "block_threads": "count", "occupancy": "ratio", "achieved_occupancy": "ratio", "limiter": "", "source": "",
}  # fmt: skip
_CONFIGS = {
    "config": "", "time": "second", "registers": "count", "shared_memory": "count", "spills": "count",
    "theoretical_occupancy": "ratio", "reason": "",
}  # fmt: skip
_TITLES = {
    "impl": "implementation", "gpu_time": "GPU time", "floor_fraction": "of the floor", "speedup_eager": "over eager",
    "bytes_ratio": "bytes over the algorithm's", "theoretical_occupancy": "occupancy", "kind": "point", "flops": "work",
    "fraction": "of the roof", "read": "read (B)", "written": "written (B)", "bytes": "bytes", "spills": "spills (B)",
    "shared_memory": "shared memory (B)", "block_threads": "threads", "achieved_occupancy": "achieved",
    "limiter": "limited by", "reason": "failure", "bytes_source": "bytes from",
}  # fmt: skip
#: Longer tables belong in the app.
_ROWS = 200


def render(loaded: LoadedRun) -> str:
    """The run as one HTML document that makes no request."""
    run = loaded.run
    headlines = summary.summarise(frames.default_configs(loaded.table), run.device, run.kernels)
    scripts: list[str] = []
    chart = _embedded([overview(headlines, LIGHT, 24)], scripts)
    sections = [_section(loaded, name, scripts) for name in run.kernels]
    return _TEMPLATES.get_template("report.html").render(
        run=run,
        stale=store.stale_kernels(run),
        overview={"figure": chart, "table": cells(headlines, _HEADLINES)},
        sections=sections,
        environment=[
            *run.versions.items(),
            *((k, str(v)) for k, v in run.settings.items()),
            ("revision", run.git_revision),
        ],
        libraries=[Markup(_library(name)) for name in ("bokeh.min.js",)],  # noqa: S704 - BokehJS itself
        script=Markup("\n".join(scripts)),  # noqa: S704
        grid=_grid,
    )


def _library(name: str) -> str:
    # "</script" inside a string of the library would end the element.
    return (Path(bokehjs_path()) / "js" / name).read_text(encoding="utf-8").replace("</script", "<\\/script")


def _embedded(figures: list[figure], scripts: list[str]) -> Markup:
    """Places for the figures; what draws them is added to ``scripts``. A few at a time: the cost is quadratic."""
    script, places = components(figures)
    scripts.append(script)
    return Markup("".join(places))  # noqa: S704 - Bokeh's own placeholders


def _section(loaded: LoadedRun, name: str, scripts: list[str]) -> dict[str, Any]:
    """One kernel's figures and tables."""
    run = loaded.run
    table = loaded.table[loaded.table["kernel"] == name]
    plain = frames.default_configs(table)
    parts: list[dict[str, Any]] = []

    def part(title: str, text: str, drawn: list[figure], rows: pd.DataFrame, columns: dict[str, str]) -> None:
        parts.append({"title": title, "text": text, "figure": _embedded(drawn, scripts), "table": cells(rows, columns)})

    points = roofline_model.points(plain, run.device, run.kernels)
    whole = points[points["launch"].isna() & (points["level"] == "hbm")].reset_index(drop=True)
    if len(whole):
        said = "Hollow marks are predicted, filled ones measured; dashed roofs are the datasheet's."
        part("Roofline", said, [roofline(whole, roofline_model.roofs(run.device), LIGHT)], whole, _POINTS)
    launches = traffic_model.traffic(plain)
    # The largest workload shows it best, and fifty figures would make the file slow to open.
    largest = (
        launches.loc[[launches["floor_read"].idxmax()], "workload"]
        if launches["floor_read"].notna().any()
        else launches["workload"].head(1)
    )
    for (workload, direction), rows in launches[launches["workload"].isin(largest)].groupby(
        ["workload", "pass"], sort=False
    ):
        bars = _one_source(rows)
        floor = rows[["floor_read", "floor_written"]].sum(axis=1, min_count=2).min()
        if len(bars):
            drawn = traffic(bars, None if pd.isna(floor) else float(floor), LIGHT)
            part(f"HBM traffic, {workload}, {direction}", "", [drawn], bars, _LAUNCHES)
    sweep = frames.configs(table, [f for f in run.failures if name in f.case])
    varying = frames.parameters(sweep)
    measure = next((m for m in frames.COLOURINGS if sweep[m].notna().any()), None)
    if len(varying) > 1 and measure:
        part(*_autotune(sweep, varying, measure), sweep.sort_values(measure), _CONFIGS)
    held = frames.occupancies(plain, run.device.target)
    if len(held):
        part("Occupancy", *_occupancy(held, run.device.target), held, _OCCUPANCY)
    facts = run.kernels.get(name, {})
    return {"name": name, "summary": facts.get("summary", ""), "parts": parts}


def _one_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured bytes where there are any, an implementation at a time."""
    bars = rows[rows["source"] != "model"]
    counted = bars["source"].eq("ncu")
    return bars[counted | ~bars["impl"].isin(set(bars.loc[counted, "impl"]))].reset_index(drop=True)


def _autotune(sweep: pd.DataFrame, varying: list[str], measure: str) -> tuple[str, str, list[figure]]:
    label, unit, less = frames.COLOURINGS[measure]
    ordered = sweep.assign(value=sweep[measure]).sort_values("value", ascending=less, na_position="last")
    shown = ordered.drop_duplicates(varying[:2]).assign(best=lambda c: c["value"] == ordered["value"].iloc[0])
    said = f"Coloured by {label}; each cell is the best over the other parameters."
    return "Autotune", said, [autotune(shown, varying[0], varying[1], unit, LIGHT)]


def _occupancy(held: pd.DataFrame, target: str) -> tuple[str, list[figure]]:
    triton = held[held["impl"] == "triton"]
    row = (triton if len(triton) else held).iloc[0].to_dict()
    drawn = []
    for resource in TITLES:
        value = row["block_threads"] / 32 if resource == "warps" else row[resource]
        point = {**row, "value": value, "achieved": row["achieved_occupancy"]}
        drawn.append(occupancy(frames.occupancy_curve(row, target, resource), point, resource, LIGHT, 240))
    return f"{row['impl']}, {row['workload']}, {row['pass']}: limited by {row['limiter']}.", drawn


def cells(rows: pd.DataFrame, columns: dict[str, str]) -> dict[str, Any]:
    """A frame as titles and formatted cells, each with whether it is a number."""

    def shown(value: Any, unit: str) -> str:
        if not unit:
            return "–" if pd.isna(value) else str(value)
        return times(value) if unit == "times" else write(value, unit)

    records = rows.reindex(columns=list(columns)).head(_ROWS).to_dict("records")
    return {
        "titles": [(_TITLES.get(name, name), bool(unit)) for name, unit in columns.items()],
        "rows": [[(shown(record[name], unit), bool(unit)) for name, unit in columns.items()] for record in records],
        "more": max(0, len(rows) - _ROWS),
    }


def _grid(table: dict[str, Any]) -> Markup:
    return Markup(_TEMPLATES.get_template("grid.html").render(**table))  # noqa: S704 - autoescaped by the template


def command(subparsers: Any) -> None:
    """Adds ``tilescope report`` (an entry point of the group ``tilescope.commands``)."""
    parser = subparsers.add_parser("report", help="write a run as one HTML file that opens offline")
    parser.add_argument("name", metavar="RUN", help="an id, its start, a folder, or latest")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the file. Raises StoreError for a run that cannot be read, OSError for a file that cannot be written."""
    loaded = store.open_run(store.find(arguments.name))
    arguments.output.write_text(render(loaded), encoding="utf-8")
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:.1f} MB, opens offline")
    return 0
