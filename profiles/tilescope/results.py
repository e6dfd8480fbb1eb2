"""The table as a person reads it in a terminal: one line a case. Pure; imports neither torch nor triton."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from tilescope import units
from tilescope.schema import CASE_COLUMNS

#: Whose word counts for what the compiler made or the launch used, and for GPU time.
_MADE = ("compiler", "ncu", "torch_profiler")
_TIMED = ("torch_profiler", "ncu")
#: Launches of a case whose values are told one by one.
MOST_LAUNCHES = 4
_LIMITERS = {
    "occupancy_limit_registers": "registers",
    "occupancy_limit_shared_memory": "shared memory",
    "occupancy_limit_warps": "warps",
    "occupancy_limit_blocks": "blocks",
    "occupancy_limit_barriers": "barriers",
}


def results(table: pd.DataFrame) -> pd.DataFrame:
    """One row a case, in the order of the table: the case's columns, and as numbers or tuples of one number a launch

    ``gpu_time`` (seconds, all launches together, median), ``interval`` (seconds, median), ``registers``,
    ``shared_memory`` (bytes), ``spills`` (bytes stored and loaded), ``occupancy`` (theoretical), ``limiter`` (text),
    ``requested`` and ``unique`` (bytes read, bytes written), ``moved`` (the same, seen at the HBM), ``relative_error``
    and its ``tolerance``, ``row_error`` (that of the worst row) and its ``row_tolerance``. What was not measured is None.
    """
    rows = [
        dict(zip(CASE_COLUMNS, key, strict=True)) | _facts(case)
        for key, case in table.groupby(CASE_COLUMNS, sort=False, dropna=False)
    ]
    return pd.DataFrame(rows, columns=[*CASE_COLUMNS, *_NAMES], dtype=object)


_NAMES = ("gpu_time", "interval", "registers", "shared_memory", "spills", "occupancy", "limiter", "requested", "unique",
          "moved", "relative_error", "tolerance", "row_error", "row_tolerance")  # fmt: skip


def _facts(case: pd.DataFrame) -> dict[str, Any]:
    return {
        "gpu_time": _time(case),
        "interval": _median(case, "interval"),
        "registers": _launches(case, "registers"),
        "shared_memory": _launches(case, "shared_memory"),
        "spills": _added(_launches(case, "spill_bytes_stored"), _launches(case, "spill_bytes_loaded")),
        "occupancy": _launches(case, "theoretical_occupancy", ("compiler", "ncu")),
        "limiter": _limiter(case),
        "requested": _pair(case, "requested_bytes", "interpreter"),
        "unique": _pair(case, "unique_bytes", "interpreter"),
        "moved": _pair(case, "dram_bytes", "ncu"),
        "relative_error": _worst(case, "relative_error"),
        "tolerance": _worst(case, "tolerance"),
        "row_error": _worst(case, "row_error"),
        "row_tolerance": _worst(case, "row_tolerance"),
    }


def text(table: pd.DataFrame) -> str:
    """``results`` as lines of text; cases and columns that nobody filled are left out."""
    found = results(table)
    found = found[found[list(_NAMES)].notna().any(axis="columns")]
    return render(*cells(found)) if len(found) else "no case gave a result"


def cells(
    found: pd.DataFrame,
    order: Sequence[int] | None = None,
    name_by: Sequence[str] = ("kernel", "impl", "pass", "workload"),
) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of ``results``, formatted; ``order`` picks and sorts the rows, ``name_by`` are the columns
    that are shown in any case."""
    headings: dict[str, tuple[str, Callable[[Any], str]]] = {
        "kernel": ("kernel", str), "impl": ("impl", str), "pass": ("pass", str), "workload": ("workload", str),
        "config": ("config", str),
        "gpu_time": ("GPU time", lambda v: units.text(v, "second")),
        "interval": ("interval", lambda v: units.text(v, "second")),
        "registers": ("registers", _joined),
        "shared_memory": ("shared B", _joined),
        "spills": ("spills B", _joined),
        "occupancy": ("occupancy", lambda v: _joined(v, lambda one: f"{one:.1%}")),
        "limiter": ("limited by", str),
        "requested": ("requested B r / w", _read_written),
        "unique": ("unique B r / w", _read_written),
        "moved": ("HBM B r / w", _read_written),
        "relative_error": ("rel. error", lambda v: f"{v:.2e}"),
        "tolerance": ("allowed", lambda v: f"{v:.0e}"),
        "row_error": ("worst row", lambda v: f"{v:.2e}"),
        "row_tolerance": ("allowed", lambda v: f"{v:.0e}"),
    }  # fmt: skip
    unnamed = [name for name in CASE_COLUMNS if name not in (*name_by, "config")]
    filled = {n for n in headings if n not in unnamed and any(v is not None and v != "" for v in found[n])}
    shown = [n for n in headings if n in name_by or n in filled]
    rows = [
        ["–" if (value := found.at[index, name]) is None else headings[name][1](value) for name in shown]
        for index in (found.index if order is None else order)
    ]
    return [headings[name][0] for name in shown], rows


def render(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text: left-aligned words, right-aligned numbers."""
    lines = [list(headings), *(list(row) for row in rows)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(headings))]
    numeric = [all(_is_number(line[i]) for line in lines[1:]) and len(lines) > 1 for i in range(len(headings))]
    out = []
    for line in lines:
        padded = [
            (" " * (width - _width(cell)) + cell) if right else (cell + " " * (width - _width(cell)))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        out.append("  ".join(padded).rstrip())
    return "\n".join(out)


def _width(cell: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in cell)


def _is_number(cell: str) -> bool:
    return cell in ("", "–") or cell[0].isdigit()


def _joined(values: Iterable[float], one: Any = lambda v: f"{v:,.0f}") -> str:
    """One value for each launch, once where they agree; of more than a person compares, the span."""
    known = list(values)
    texts: list[str] = [one(value) for value in known]
    if len(set(texts)) == 1:
        return texts[0]
    if len(texts) > MOST_LAUNCHES:
        return f"{one(min(known))}…{one(max(known))} in {len(texts)}"
    return "+".join(texts)


def _read_written(pair: Sequence[float]) -> str:
    return " / ".join("–" if value is None else f"{value:,.0f}" for value in pair)


def _pick(case: pd.DataFrame, metric: str, sources: Sequence[str]) -> pd.DataFrame:
    """The metric's rows from the first of the sources that has any."""
    rows = case[case["metric"] == metric]
    for source in sources:
        found = rows[rows["source"] == source]
        if not found.empty:
            return found
    return rows.iloc[:0]


def _launches(case: pd.DataFrame, metric: str, sources: Sequence[str] = _MADE) -> tuple[float, ...] | None:
    found = _pick(case, metric, sources)
    if found.empty:
        return None
    return tuple(float(v) for v in found.groupby("launch", dropna=False, sort=True)["value"].median())


def _added(one: tuple[float, ...] | None, other: tuple[float, ...] | None) -> tuple[float, ...] | None:
    if one is None or other is None or len(one) != len(other):
        return one if other is None else other
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _time(case: pd.DataFrame) -> float | None:
    found = _pick(case, "gpu_time", _TIMED)
    return None if found.empty else float(found.groupby("sample", dropna=False)["value"].sum().median())


def _median(case: pd.DataFrame, metric: str) -> float | None:
    found = case[case["metric"] == metric]
    return None if found.empty else float(found["value"].median())


def _worst(case: pd.DataFrame, metric: str) -> float | None:
    found = case[case["metric"] == metric]
    return None if found.empty else float(found["value"].max())


def _pair(case: pd.DataFrame, stem: str, source: str) -> tuple[float | None, float | None] | None:
    sums = []
    for suffix in ("_read", "_written"):
        found = _pick(case, stem + suffix, (source,))
        sums.append(None if found.empty else float(found["value"].sum()))
    return None if sums == [None, None] else (sums[0], sums[1])


def _limiter(case: pd.DataFrame) -> str | None:
    """Every term that equals the smallest number of blocks, for each launch."""
    for source in ("compiler", "ncu"):
        rows = case[(case["source"] == source) & case["metric"].isin(_LIMITERS)]
        if not rows.empty:
            texts = []
            for _, launch in rows.groupby("launch", dropna=False, sort=True):
                least = launch["value"].min()
                names = {_LIMITERS[metric] for metric in launch.loc[launch["value"] == least, "metric"]}
                texts.append(", ".join(name for name in _LIMITERS.values() if name in names))
            return texts[0] if len(set(texts)) == 1 else " + ".join(texts)
    return None
