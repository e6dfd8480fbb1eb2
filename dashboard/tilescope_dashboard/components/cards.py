"""Findings and answers as HTML. Pure; texts from runs and people are escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tilescope.models.advice import NVIDIA, Bound, Evidence, Finding
from tilescope.models.advice.finding import AT_ROOF
from tilescope.models.fusion import Answer, Line

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import times

#: A solid edge is measured, a dashed one predicted. Colours are the page's own. Bokeh would cut a list off at the
#: height of the page, and what follows would be drawn over it.
CSS = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
_MARKS = {True: "✓", False: "!", None: ""}
_SAID = {True: "in favour", False: "against", None: ""}


def cards(findings: Sequence[Finding]) -> str:
    """The findings in their order, as numbered cards."""
    return f'<ol class="findings">{"".join(_card(rank, found) for rank, found in enumerate(findings, 1))}</ol>'


def answer(found: Answer) -> str:
    """A fusion answer, a line a row; all of it is predicted."""
    rows = "".join(_row(line) for line in found.lines)
    names = found.chain.names
    head = f"{', '.join(names)}: {times(found.bound) + ' by the bytes alone' if len(names) > 1 else 'nothing to fuse'}"
    told = html_text.subheading(head, "Predicted from sizes and datasheets; nothing was run.")
    return f'<div role="status">{told}</div><table class="answer" aria-label="Reasons"><tbody>{rows}</tbody></table>'


def _card(rank: int, found: Finding) -> str:
    speaker = "Nsight Compute" if found.origin == NVIDIA else "What to do"
    bound = f"bound: {found.bound.formula}" if found.bound else ""
    where = " · ".join(filter(None, [found.function, _said_kind(found), bound]))
    return (
        f'<li class="finding {_kind(found)}"><h3><span class="rank">{rank}.</span> {escape(found.title)}</h3>'
        f'<div class="win">{_win(found)}</div>'
        f'<p class="where">{escape(where)}</p>'
        f"{_evidence(found.evidence)}{_explanation(found.explanation)}"
        f'<p class="remedy"><b>{speaker}:</b> {escape(found.remedy)}</p></li>'
    )


def _explanation(text: str) -> str:
    return f'<p class="remedy">{escape(text)}</p>' if text else ""


def _win(found: Finding) -> str:
    if found.of_results:
        return "fix this first: the other numbers are wrong until then"
    if found.warning:
        return "probably not meant"
    if found.bound is None:
        return "nothing to gain here" if found.rule in AT_ROOF else ""
    ratio, _, alone = found.bound.text.partition(" by ")
    said = f"{_saved(found.bound)}{alone and f', by {alone}'}"
    return f"<b>{escape(ratio.replace('up to', '≤'))}</b>{escape(said)}"


def _saved(bound: Bound) -> str:
    """``29 % of GPU time``, or ``up to 29 % of GPU time`` where no implementation can win more."""
    clock = "the interval" if bound.clock == "interval" else "GPU time"
    return f"{'up to ' if bound.most else ''}{(1 - 1 / bound.ratio) * 100:.0f} % of {clock}"


def _kind(found: Finding) -> str:
    return "measured" if found.measured else "predicted"


def _said_kind(found: Finding) -> str:
    """``_kind`` where a reader wants it: wrong results are wrong however they were found."""
    return "" if found.of_results or found.warning else _kind(found)


def _evidence(values: Iterable[Evidence]) -> str:
    cells = "".join(
        f"<div{'' if value.measured else ' class=guess'}><dt>{escape(value.label)}</dt>"
        f"<dd>{escape(value.text)} <span>{escape(value.source)}</span></dd></div>"
        for value in values
    )
    return f'<dl class="evidence">{cells}</dl>' if cells else ""


def _row(line: Line) -> str:
    mark = (
        f'<span role="img" aria-label="{_SAID[line.good]}">{_MARKS[line.good]}</span>' if line.good is not None else ""
    )
    return f'<tr><th scope="row">{escape(line.topic)}</th><td>{mark}</td><td>{escape(line.text)}</td></tr>'
