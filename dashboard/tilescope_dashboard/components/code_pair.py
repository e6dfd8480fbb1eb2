"""A kernel's source and its compiled code side by side. Choosing a line of one marks the lines of the other.

``source`` and ``assembly`` write HTML and escape all that is not theirs; what a person does there is in ``code_pair.js``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import pandas as pd
import param
from tilescope.collectors.compiled_text import STAGES, Text
from tilescope.files import names
from tilescope.table.line_values import LINE_METRICS

from tilescope_dashboard.components.script import ScriptComponent
from tilescope_dashboard.data.units import ABSENT, write
from tilescope_dashboard.figures.style import Theme
from tilescope_dashboard.topics import source as topic
from tilescope_dashboard.topics.source import LineColumn

#: Colours of the bars on light and dark backgrounds. Text on them keeps a contrast of 7 to 1 for colour-blind readers too.
_HEAT = {False: "#f5c08a", True: "#6b3e0c"}


class CodePair(ScriptComponent):
    """Shows ``markup``. ``line`` is the chosen line of the source, 0 for none, ``stage`` the chosen stage."""

    markup = param.String()
    line = param.Integer(default=0)
    stage = param.Selector(default="sass", objects=list(STAGES))


def pair(left: str, right: str, look: Theme) -> str:
    """Both panes in the theme's colours. Each must already be escaped."""
    colours = f"--accent: {look.accent}; --ground: {look.ground}; --heat: {_HEAT[look.dark]}"
    return (
        f'<div class="pair" style="{colours}"><section class="source" tabindex="-1" aria-label="Source">{left}</section>'
        f'<section class="assembly">{right}</section></div>'
    )


def source(
    text: str, file: str, rows: pd.DataFrame, columns: Sequence[LineColumn], spans: Iterable[tuple[int, int]]
) -> str:
    """The lines in ``spans`` of a file with a heat cell for each column.

    A bar is the line's share of the launch: solid where it was measured, hatched where it is predicted. A line that has
    one column's value and not another's has a dash there.
    """
    values = [topic.by_line(rows, column) for column in columns]
    shares = [topic.shares(series) for series in values]
    body, texts, before = [], text.splitlines(), 0
    for first, last in spans:
        if first > before + 1:
            body.append(_gap(before + 1, first - 1, len(columns)))
        for number in range(first, min(last, len(texts)) + 1):
            known = any((file, number) in series.index for series in values)
            cells = "".join(
                _cell(series.get((file, number)), share.get((file, number)), column) if known else "<td></td>"
                for column, series, share in zip(columns, values, shares, strict=True)
            )
            body.append(
                f'<tr data-line="{number}"><th scope="row">{number}</th>{cells}'
                f"<td><code>{escape(texts[number - 1])}</code></td></tr>"
            )
        before = last
    if before < len(texts):
        body.append(_gap(before + 1, len(texts), len(columns)))
    return (
        f'<table aria-label="Lines of the source"><thead><tr><th scope="col">line</th>{_heads(columns)}<th scope="col" class="text">{escape(names.readable(file))}</th></tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def elsewhere(rows: pd.DataFrame, file: str, columns: Sequence[LineColumn]) -> str:
    """Lines of other files with values of their own, by the first column, largest first; empty if there are none."""
    others = {column: topic.by_line(rows[rows["file"] != file], column) for column in columns}
    others = {column: series for column, series in others.items() if not series.empty}
    if not others:
        return ""
    order = next(iter(others.values())).sort_values(ascending=False)
    shares = {column: topic.shares(topic.by_line(rows, column)) for column in others}
    body = "".join(
        f'<tr><th scope="row">{escape(names.readable(str(name)))}:{line}</th>'
        + "".join(_cell(s.get((name, line)), shares[c].get((name, line)), c) for c, s in others.items())
        + "</tr>"
        for name, line in order.index
    )
    head = f'<tr><th scope="col">other files</th>{_heads(others)}</tr>'
    return f'<table class="others" aria-label="Lines of other files"><thead>{head}</thead><tbody>{body}</tbody></table>'


def assembly(stage: str, known: Iterable[str], lines: Sequence[Text], say: str = "") -> str:
    """One stage's listing below tabs of the ``known`` stages; ``say`` if there is no listing."""
    tabs = "".join(
        f'<label><input type="radio" name="stage" value="{name}"{" checked" if name == stage else ""}>{label}</label>'
        for name, label in STAGES.items()
        if name in known
    )
    if not lines:
        return f'<p class="say">{escape(say)}</p>'
    body = "".join(
        f'<tr{_at(line)}><th scope="row">{line.line or ""}</th><td><code>{escape(line.text.expandtabs(4))}</code></td></tr>'
        for line in lines
    )
    return (
        f'<div class="stages"><div role="radiogroup" aria-label="Stage">{tabs}</div><span role="status"></span></div>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{STAGES[stage]}">'
        f'<table aria-label="Lines and instructions"><tbody>{body}</tbody></table></div>'
    )


def _at(line: Text) -> str:
    return f' data-line="{line.line}"' if line.line else ""


def _heads(columns: Iterable[LineColumn]) -> str:
    return "".join(
        f'<th scope="col">{escape(c.label)}<small>{escape(c.source)}, {_kind(c)}</small></th>' for c in columns
    )


def _kind(column: LineColumn) -> str:
    return "measured" if column.measured else "predicted"


def _gap(first: int, last: int, columns: int) -> str:
    said = f"line {first}" if first == last else f"lines {first} to {last}"
    return f'<tr class="gap"><td colspan="{columns + 2}">{said}</td></tr>'


def _cell(value: float | None, share: float | None, column: LineColumn) -> str:
    if value is None or share is None:
        return f'<td class="heat">{ABSENT}</td>'
    return (
        f'<td class="heat {_kind(column)}" style="--share: {share * 100:.1f}%">'
        f"{escape(write(value, LINE_METRICS[column.metric].unit))}<small>{_percent(share)}</small></td>"
    )


def _percent(share: float) -> str:
    return "&lt; 1 %" if 0 < share < 0.01 else f"{share * 100:.0f} %"
