"""Two versions of a script as HTML: values with their changes, the source's difference, and findings that came or went.

Pure; texts of people and of runs are escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from tilescope.models.advice import Finding
from tilescope.table import units

from tilescope_dashboard.topics import changed_findings
from tilescope_dashboard.topics.versions import BETTER, NOISE, OLD, WORSE, SourceLine, Value

CSS = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
#: Colours on light and dark backgrounds. Each kind of change also has a sign or a word.
_COLOURS = {
    False: "--good: #1a7f37; --bad: #b42a16; --added: #dafbe1; --removed: #ffe9e6",
    True: "--good: #4ac26b; --bad: #ff8270; --added: #12351d; --removed: #41201b",
}
#: The most lines of output that are shown.
_PRINTED = 200
_SPOKEN = {BETTER: "better", WORSE: "worse", NOISE: "within noise", OLD: "of the version before"}


def values(shown: Sequence[Value], dark: bool) -> str:
    """A cell a value: what it is now, what it was, and its change."""
    cells = "".join(
        f'<div class="{value.kind}"><dt>{escape(value.label)}</dt><dd>{escape(value.now)}</dd>'
        f"<dd>{_before(value.before)}<em>{escape(value.change)}</em>{_spoken(value.kind)}</dd></div>"
        for value in shown
    )
    return f'<dl class="values" style="{_COLOURS[dark]}">{cells}</dl>' if shown else ""


def panels(
    files: Mapping[str, Sequence[SourceLine]] | None,
    head: tuple[str, str],
    sides: Sequence[Sequence[Finding]],
    dark: bool,
    of: str = "",
) -> str:
    """The source, below a title and an aside, where there are ``files``; and the findings of one or two ``sides``, ``of`` a version."""
    rows = changed_findings.changed(sides[0], sides[-1]) if sides else []
    count = changed_findings.count(rows)
    title = f"Findings of {escape(of)}" if of else "Findings"
    found = f'<section class="panel"><h3>{title}<span>{escape(count)}</span></h3>{_findings(rows)}</section>'
    source = "" if files is None else _source(files, head)
    return f'<div class="panels" style="{_COLOURS[dark]}">{source}{found if sides else ""}</div>'


def printed(output: str) -> str:
    """The last lines of a script's output, folded; empty without output."""
    lines = output.splitlines()
    count = f"Printed: {units.several(len(lines), 'line')}"
    last = f", the last {_PRINTED} here" if len(lines) > _PRINTED else ""
    text = escape("\n".join(lines[-_PRINTED:]))
    return f'<details class="printed"><summary>{count}{last}</summary><pre>{text}</pre></details>' if lines else ""


def _source(files: Mapping[str, Sequence[SourceLine]], head: tuple[str, str]) -> str:
    return (
        f'<section class="panel"><h3>{escape(head[0])}<span>{escape(head[1])}</span></h3>'
        f'<div class="lines" role="region" tabindex="0" aria-label="Source">'
        f"{''.join(_file(name, lines) for name, lines in files.items())}</div></section>"
    )


def _findings(rows: Iterable[tuple[str, Finding]]) -> str:
    items = "".join(
        f'<li class="{escape(change)}"><b>{escape(change)}</b><p>{escape(found.title)}'
        f"<small>{escape(found.bound.text if found.bound else '')}</small></p></li>"
        for change, found in rows
    )
    return f'<ul class="found">{items}</ul>' if items else '<p class="small none">No problem found.</p>'


def _file(name: str, lines: Sequence[SourceLine]) -> str:
    rows, last = list[str](), {"": 0, "-": 0}
    for line in lines:
        side = "-" if line.sign == "-" else ""
        if not line.sign and line.number > last[""] + 1 and rows:
            rows.append('<tr class="gap"><td colspan="3">⋯</td></tr>')
        last[side] = line.number
        kind = {"+": "added", "-": "removed"}.get(line.sign, "wrong" if line.wrong else "")
        rows.append(
            f'<tr class="{kind}"><th scope="row">{line.number}</th><td>{_sign(line.sign)}</td>'
            f"<td><code>{escape(line.text)}</code></td></tr>"
        )
        if line.wrong:
            rows.append(f'<tr class="says"><td></td><td></td><td>{escape(line.wrong)}</td></tr>')
    return f"<table><caption>{escape(name)}</caption><tbody>{''.join(rows)}</tbody></table>"


def _sign(sign: str) -> str:
    return {
        "+": '<span role="img" aria-label="added">+</span>',
        "-": '<span role="img" aria-label="removed">−</span>',
    }.get(sign, "")


def _before(text: str) -> str:
    return f"<s>{escape(text)}</s> " if text else ""


def _spoken(kind: str) -> str:
    return f'<span class="spoken"> {_SPOKEN[kind]}</span>' if kind in _SPOKEN else ""
