"""Claims as a Markdown table: one row a kernel and pass, with its worst and its best size. Pure: frame -> text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from tilescope.files.bounded_reading import one_line
from tilescope.models import claims
from tilescope.models.claims import OVER, disagree, verdicts
from tilescope.runs.store import LoadedRun

_HEADINGS = [
    "kernel", "sizes", "published claim", "traffic ratio", "vs eager", "vs torch.compile", "vs library", "of roofline",
]  # fmt: skip


def markdown(rows: pd.DataFrame) -> str:
    """The table of ``claims.best``'s frame. An absent value is a dash.

    A cell holds the ratio at the worst size and at the best, each with the size. It adds the range by the interval where the two
    clocks disagree on which implementation is ahead.
    """
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---|---:|---|" + "---:|" * (len(_HEADINGS) - 3)]
    verdict = verdicts(rows)
    for (kernel, direction), sizes in rows.groupby(["kernel", "pass"], sort=False):
        name = _text(kernel) + ("" if direction == claims.FORWARD else f", {_text(direction)}")
        claim = claims.published(str(kernel), str(direction))
        said = f"[{claim.said}]({claim.source}): {verdict[kernel, direction]}" if claim else "–"
        cells = [
            name, _counted(sizes), said, _span(sizes["bound"]),
            *(_over(sizes, other) for other in OVER), _roof(sizes),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_below(rows)])


def provenance(runs: Iterable[LoadedRun]) -> str:
    """The device, date and versions of the runs, one line for each distinct combination."""
    lines = [
        f"{loaded.run.device.name}, {loaded.run.started[:10]}, "
        + ", ".join(f"{name} {version}" for name, version in loaded.run.versions.items())
        for loaded in runs
        if loaded.run.device.measured
    ]
    return "\n".join(dict.fromkeys(lines))


def by_device(lines: Iterable[str]) -> str:
    """Lines of ``provenance`` as one a device: its first and last date, and every version."""
    dates: dict[str, list[str]] = {}
    versions: dict[str, dict[str, None]] = {}
    for device, date, *named in (line.split(", ") for line in lines):
        dates.setdefault(device, []).append(date)
        versions.setdefault(device, {}).update(dict.fromkeys(named))
    spans = {device: " to ".join(dict.fromkeys([min(on), max(on)])) for device, on in dates.items()}
    return "\n".join(", ".join([device, span, *versions[device]]) for device, span in spans.items())


def _text(words: object) -> str:
    """Text with Markdown and HTML escaped: names come from runs, which are not trusted."""
    line = one_line(words, 10_000).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|])", r"\\\1", line)


def _counted(sizes: pd.DataFrame) -> str:
    changed = int(sizes["changed"].sum())
    return f"{len(sizes)}, {changed} changed since" if changed else str(len(sizes))


def _code(name: object) -> str:
    return "`" + " ".join(str(name).split()).replace("`", "'").replace("|", "\\|") + "`"


def _over(sizes: pd.DataFrame, other: str) -> str:
    """The worst and the best size, with their intervals, and the other clock's range where the two disagree."""
    lines = [_ratio(row, other) for row in _ends(sizes, f"over_{other}")]
    if disagree(sizes, other).any():
        lines.append(f"interval {_span(sizes[f'interval_{other}'])}")
    return "<br>".join(lines) or "–"


def _ends(sizes: pd.DataFrame, column: str) -> list[dict[Any, Any]]:
    known = sizes[sizes[column].notna()].sort_values(column, kind="stable")
    ends: list[dict[Any, Any]] = (known.iloc[[0, -1]] if len(known) > 1 else known).to_dict("records")
    return ends


def _ratio(row: dict[Any, Any], other: str) -> str:
    ratio, low, high = (float(row[f"{what}_{other}"]) for what in ("over", "low", "high"))
    apart = "" if math.isnan(low) else f" ±{max(ratio - low, high - ratio) / ratio * 100:.1f} %"
    # torch's version is in the line above the table.
    version = "" if row["library"] == "aten" else row["library_version"]
    name = _text(f" {row['library']} {version}") if other == "library" else ""
    return " ".join(filter(None, [f"{ratio:.2f}×{apart}", name, _code(row["workload"])]))


def _roof(sizes: pd.DataFrame) -> str:
    # Most roofs were measured: only a datasheet's is named as such.
    lines = (
        f"{row['of_roof'] * 100:.0f} % {_text(str(row['roof']).removeprefix('measured '))} {_code(row['workload'])}"
        for row in _ends(sizes, "of_roof")
    )
    return "<br>".join(lines) or "–"


def _span(values: pd.Series) -> str:
    known = values.dropna()
    if known.empty:
        return "–"
    low, high = (f"{value:.2f}" for value in (known.min(), known.max()))
    return f"{low}×" if low == high else f"{low}–{high}×"


def _below(rows: pd.DataFrame) -> list[str]:
    late = sum(int((disagree(rows, other) & (rows[f"over_{other}"] > 1)).sum()) for other in OVER)
    compared = sum(int((rows[f"over_{other}"].notna() & rows[f"interval_{other}"].notna()).sum()) for other in OVER)
    behind = sum(int((rows[f"over_{other}"] < 1).sum()) for other in OVER)
    timed = sum(int(rows[f"over_{other}"].notna().sum()) for other in OVER)
    found = [
        f"{len(rows)} sizes in all. By GPU time ours takes longer in {behind} of {timed} comparisons. In {late} of {compared} it "
        "takes less by GPU time and longer by the interval, which the CPU's delays are part of."
    ]
    unversioned = rows[(rows["library"] != "") & (rows["library_version"] == "")]
    unknown = sorted(set(unversioned["library"]))
    if unknown:
        found.append(f"Version not recorded: {', '.join(unknown)}.")
    return [" ".join(found)]
