"""Source: values of one launch's source lines, from frames of ``tilescope.table.line_values``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
from tilescope.table.line_values import LINE_METRICS
from tilescope.table.sources import MEASURED, SOURCES

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.frames import with_first
from tilescope_dashboard.data.kernel_cases import case_name
from tilescope_dashboard.data.launched_code import definitions, span
from tilescope_dashboard.data.units import write
from tilescope_dashboard.topics.sentence import Sentence

#: The headline of a run without lines.
NOTHING = Sentence("Source", "There are no values of source lines of this kernel.")
#: Columns of ``listed``'s frame.
COLUMNS = (
    Column("line", "line", "count"), Column("label", "what"), Column("value", "value", "count"),
    Column("unit", "unit"), Column("source", "source"), Column("function", "function"),
    Column("file", "file"),
)  # fmt: skip
_READING = (
    "A bar is a line's share of the launch. Solid: measured. Hatched: predicted. {} Click a line to see its counterpart in the "
    "source or in the compiled code."
)
_INLINED = "A line includes the calls inlined into it."
_APART = "ncu counts inlined calls from other files separately, below the source."
#: A notice that the launch's own file is missing.
NO_TEXT = (
    "This run has no copy of {}, and the file here is another version. Only the numbers of its lines can be shown."
)
CASE = ["impl", "pass", "workload", "config"]
#: Groups of metrics: time or amount of code, bytes read, bytes written. The first known metric of each is shown by default.
_FIRST = (("stall_samples", "sass_instructions"), ("requested_bytes_read",), ("requested_bytes_written",))


@dataclass(frozen=True)
class FunctionLaunch:
    """The ``number``-th launch, from 0, of a kernel function in a case. Sources' own numbers of launches differ."""

    function: str
    number: int

    @property
    def label(self) -> str:
        return f"{self.function}, launch {self.number + 1}" if self.number else self.function


@dataclass(frozen=True)
class LineColumn:
    """A column of values beside the source code: a metric from one source."""

    metric: str
    source: str

    @property
    def measured(self) -> bool:
        return self.source in MEASURED

    @property
    def label(self) -> str:
        return LINE_METRICS[self.metric].label

    @property
    def text(self) -> str:
        """A label that tells it from the others."""
        return f"{self.label} ({self.source})"


def cases(frame: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """The cases with lines, by their labels: default configs first, Triton's before others."""
    rows = with_first(frame[CASE].drop_duplicates(), {"config": "", "impl": "triton"})
    return {" · ".join(filter(None, case)): case for case in rows.itertuples(index=False, name=None)}


def of_case(frame: pd.DataFrame, case: Sequence[str]) -> pd.DataFrame:
    """The rows of one case."""
    return frame[(frame[CASE] == list(case)).all(axis="columns")]


def launches(frame: pd.DataFrame) -> list[FunctionLaunch]:
    """The launches of one case's rows, in order."""
    numbered = _numbered(frame)
    found = numbered[["function", "number"]].drop_duplicates()
    return [FunctionLaunch(str(function), int(number)) for function, number in found.itertuples(index=False, name=None)]


def of_launch(frame: pd.DataFrame, launch: FunctionLaunch) -> pd.DataFrame:
    """The rows of one launch from every source, without absent values."""
    numbered = _numbered(frame)
    chosen = (numbered["function"] == launch.function) & (numbered["number"] == launch.number)
    return frame[chosen & frame["value"].notna()]


def _numbered(frame: pd.DataFrame) -> pd.DataFrame:
    """``function`` and ``number`` of each row: the index of the launch among its function's launches, by source."""
    number = frame.groupby(["source", "function"], sort=False)["launch"].rank("dense").sub(1)
    return frame[["function"]].assign(number=number.fillna(0).astype(int))


def files(rows: pd.DataFrame) -> list[str]:
    """The files of the rows: the function's own first, which compiler and interpreter name."""
    order = rows.assign(direct=rows["source"].isin(MEASURED)).sort_values("direct", kind="stable")
    return list(dict.fromkeys(order["file"]))


def line_columns(rows: pd.DataFrame) -> list[LineColumn]:
    """Columns of the rows by metric, the most direct source first."""
    known = set(rows[["metric", "source"]].itertuples(index=False, name=None))
    return [LineColumn(metric, source) for metric in LINE_METRICS for source in SOURCES if (metric, source) in known]


def first_columns(known: Sequence[LineColumn], most: int) -> list[LineColumn]:
    """The columns to show by default, at most ``most``, each metric from its most direct source."""
    found: dict[str, LineColumn] = {}
    for column in known:
        found.setdefault(column.metric, column)
    chosen = [next((found[metric] for metric in group if metric in found), None) for group in _FIRST]
    return [column for column in chosen if column][:most] or list(known[:1])


def listed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows in the order of files and lines, with each metric's ``label``."""
    labels = {metric.name: metric.label for metric in LINE_METRICS.values()}
    return rows.assign(label=rows["metric"].map(labels)).sort_values(["file", "line"], kind="stable", ignore_index=True)


def first_case(found: pd.DataFrame, problem: tuple[str, str], wanted: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The case to show first: ``wanted``, else the default config's for ``problem`` (workload and pass), else the first of ``cases``.

    Where lines of cases were measured, it is one of these, of the same pass if there is any.
    """
    measured = found[found["source"].isin(MEASURED)]
    known, (workload, direction) = list(cases(found if measured.empty else measured).values()), problem
    return min(known, key=lambda case: (case != wanted, case[1:] != (direction, workload, ""), case[1] != direction))


def by_line(rows: pd.DataFrame, column: LineColumn) -> pd.Series:
    """Values by ``(file, line)``, without lines that have none."""
    own = rows[(rows["metric"] == column.metric) & (rows["source"] == column.source)]
    return own.groupby(["file", "line"])["value"].sum()


def shares(values: pd.Series) -> pd.Series:
    """Each value's share of their sum; 0 if the sum is 0."""
    total = values.sum()
    return values / total if total else values * 0.0


def hottest(rows: pd.DataFrame, column: LineColumn, file: str = "") -> tuple[str, int, float] | None:
    """The file and the line with the largest share of a column, and the share; of ``file`` if it is given. None without values."""
    share = shares(by_line(rows, column))
    own = share[share.index.get_level_values("file") == file] if file else share
    if own.empty or not own.max():
        return None
    where, line = own.idxmax()
    return str(where), int(line), float(own.max())


def excerpt(text: str, lines: Iterable[int]) -> list[tuple[int, int]]:
    """Ranges of lines, both ends included, of the top-level definitions that contain ``lines``.

    It is the whole file where a line is outside of them, or where the text cannot be parsed.
    """
    wanted, count = set(lines), len(text.splitlines())
    spans = map(span, definitions(text))
    held = [(first, last) for first, last in spans if any(first <= line <= last for line in wanted)]
    covered = {line for first, last in held for line in range(first, last + 1)}
    return held if wanted and wanted <= covered else [(1, count)]


def sentence(
    launch: str,
    hottest: tuple[str, int, float] | None,
    metric: str,
    *,
    file: str,
    apart: bool,
    case: Sequence[str] = (),
    asked: Sequence[str] | None = None,
    launched: Sequence[str] = (),
) -> Sentence:
    """The headline: the ``hottest`` line and its share of ``metric``, else the ``launch``. ``file`` is shown; ``apart``: others have
    values too.

    ``case`` is the one that is shown. Where the page's case, ``asked``, is another, the headline names both. It says too where
    ``asked`` is known to have ``launched`` other functions.
    """
    title = launch
    if hottest:
        where, line, share = hottest
        title = f"{'Line ' if where == file else f'{where}:'}{line} has {write(share, 'ratio')} of {metric}"
    text = _READING.format(_APART if apart else _INLINED)
    function = launch.partition(",")[0]
    alike, gone = not asked or tuple(asked[:3]) == tuple(case[:3]), bool(launched) and function not in launched
    if not asked or (alike and not gone):
        return Sentence(title, text)
    shown, wanted = (case_name(one[:3]) for one in (case, asked))
    if not alike:
        text = f"No run has lines of {wanted}. {'' if launched else f'Another size may not launch {launch}. '}{text}"
    if gone:
        text = f"{wanted} launches {', '.join(launched)} and not {function}. {text}"
    where = f"in {shown}" if alike else f"but in another case, {shown}"
    return Sentence(f"{title}, {where}{f', which launched {function}' if gone else ''}", text)
