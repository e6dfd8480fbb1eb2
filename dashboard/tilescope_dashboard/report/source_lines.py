"""The source of a kernel in a report, with what each line costs. Pure but for the recordings it may ask: run -> content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from tilescope.files import names
from tilescope.runs.store import LoadedRun
from tilescope.table.line_values import LINE_METRICS

from tilescope_dashboard.data import recordings
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.report.content import Listing, Part
from tilescope_dashboard.topics import source as topic
from tilescope_dashboard.topics.source import FunctionLaunch

#: Columns of values beside the source: more do not fit beside the code. And its lines: a report is to open quickly.
_COLUMNS, _LINES = 3, 400


def source_lines(loaded: LoadedRun, kernel: str, cases: Mapping[str, Mapping[str, Any]]) -> Iterator[Part]:
    """A part a pass, of the case in ``cases`` that represents it. If the run did not measure its lines, a part of the best
    recording that did follows."""
    own = _of(loaded, kernel)
    for direction, case in cases.items():
        yield from _part(loaded, kernel, own[own["pass"] == direction], case)
    if not recordings.with_measured(loaded, kernel):
        other = recordings.best_other(loaded, kernel, recordings.MEASURED_LINES)
        if other is not None:
            lines = _of(other.loaded, kernel)
            # One case is enough of a run that is not the reported one.
            first = dict(zip(topic.CASE, topic.first_case(lines, _problem(cases)), strict=True))
            of_case = topic.of_case(lines, tuple(first.values()))
            for part in _part(other.loaded, kernel, of_case, first):
                yield replace(part, text=f"From another run: {other.origin_of(kernel)}. {part.text}")


def _of(run: LoadedRun, kernel: str) -> pd.DataFrame:
    lines = run.lines
    return lines[lines["kernel"] == kernel]


def _problem(cases: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    return next(((str(case["workload"]), direction) for direction, case in cases.items()), ("", ""))


def _part(run: LoadedRun, kernel: str, lines: pd.DataFrame, case: Mapping[str, Any]) -> Iterator[Part]:
    """The launch of a case in which most happens; another case of the same pass where ``lines`` lack this one, or measured another."""
    if lines.empty:
        return
    wanted = tuple(str(case[name]) for name in topic.CASE)
    chosen = topic.first_case(lines, (str(case["workload"]), str(case["pass"])), wanted)
    launch, rows = _fullest(topic.of_case(lines, chosen))
    columns = topic.first_columns(topic.line_columns(rows), _COLUMNS)
    if not columns:
        return
    texts = {file: run.source_text(kernel, file) for file in topic.files(rows)}
    file = next((name for name, text in texts.items() if text is not None), next(iter(texts)))
    impl, direction, workload, config = chosen
    hot, text = topic.hottest(rows, columns[0]), texts[file] or ""
    head = topic.sentence(launch.label, hot, columns[0].text, file=file, apart=False).title
    where = ", ".join(filter(None, (impl, workload, config, launch.label)))
    listing = Listing(file, text, rows, tuple(columns), _spans(text, rows.loc[rows["file"] == file, "line"]))
    said = f"{head}." if text else f"{head}. {topic.NO_TEXT.format(file)}"
    yield Part(f"Source, {direction}: {where}", said, listing=listing)


def _fullest(lines: pd.DataFrame) -> tuple[FunctionLaunch, pd.DataFrame]:
    """The launch with most of what the columns begin with: the first of equals."""
    found = [(launch, topic.of_launch(lines, launch)) for launch in topic.launches(lines)]

    def most(of: tuple[FunctionLaunch, pd.DataFrame]) -> float:
        columns = topic.first_columns(topic.line_columns(of[1]), 1)
        return float(topic.by_line(of[1], columns[0]).sum()) if columns else 0.0

    return max(found, key=most)


def hottest_lines(shown: Listing, most: int) -> tuple[pd.DataFrame, tuple[Column, ...]]:
    """The ``most`` lines with the largest share of the first column, and how their values are written, the code last."""
    values = [topic.by_line(shown.rows, column) for column in shown.columns]
    order = values[0].sort_values(ascending=False, kind="stable").index[:most]
    texts = shown.text.splitlines()
    lines = [line if file == shown.file else f"{names.readable(file)}:{line}" for file, line in order]
    told: dict[Column, list[Any]] = {Column("line", "line"): lines}
    for number, (column, series) in enumerate(zip(shown.columns, values, strict=True)):
        value = Column(f"value{number}", f"{column.label} ({column.source})", LINE_METRICS[column.metric].unit)
        told[value] = series.reindex(order).tolist()
        told[Column(f"share{number}", "share", "ratio")] = topic.shares(series).reindex(order).tolist()
    told[Column("code", "code")] = [
        texts[n - 1].strip() if file == shown.file and n <= len(texts) else "" for file, n in order
    ]
    return pd.DataFrame({column.name: of for column, of in told.items()}), tuple(told)


def _spans(text: str, lines: pd.Series) -> tuple[tuple[int, int], ...]:
    """The definitions that the lines lie in, as far as ``_LINES`` go."""
    spans, left = [], _LINES
    for first, last in topic.excerpt(text, lines) if text else []:
        if left > 0:
            spans.append((first, min(last, first + left - 1)))
            left -= last - first + 1
    return tuple(spans)
