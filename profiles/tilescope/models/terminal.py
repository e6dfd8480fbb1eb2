"""Tables and lines of text no wider than the terminal. Texts come from runs, which are not trusted: all of it is literal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilescope.files.bounded_reading import one_line, printable, shortened

#: Width in characters where the output is no terminal.
WIDTH = 120
_GAP = 2
#: The most characters of a cell, and of a name in a line.
_LONGEST = 300
_LONG = re.compile(rf"\S{{{_LONGEST + 1},}}")
#: The width above which a cell wraps.
_WRAPPED = 48
#: The width up to which cells wrap last, and the width that longer ones get at least.
_SHORT, _LEAST = 40, 16
_STYLES = {
    **dict.fromkeys(("wrong", "fail", "slower"), "red"),
    **dict.fromkeys(("ok", "pass", "faster"), "green"),
    **dict.fromkeys(("undecided", "not compared", "skipped"), "yellow"),
}


def width() -> int:
    return _console().width


def plain(text: str) -> str:
    """The text with escapes of what a terminal would obey, and with very long names cut in the middle."""
    return _LONG.sub(lambda name: shortened(name[0], _LONGEST), printable(text))


def say(*lines: str) -> None:
    """Prints lines of text. A terminal wraps them at words; a file or a program gets each line whole."""
    console = _console()
    for line in map(plain, lines):
        if console.is_terminal:
            console.print(Text(line), overflow="fold")
        else:
            print(line)


def render(headings: Sequence[str], rows: Iterable[Sequence[str]], keys: int | None = None) -> str:
    """A table of text for standard output: words to the left, numbers to the right.

    The first ``keys`` columns (by default all) are always shown and wrap where they must. The others are shown in their order as
    far as they fit; a line names those left out.
    """
    lines = [[shortened(one_line(cell, 10_000), _LONGEST) for cell in row] for row in rows]
    columns = [[line[place] for line in lines] for place in range(len(headings))]
    console, shown, used = _console(), list[int](), 0
    for place, (heading, column) in enumerate(zip(headings, columns, strict=True)):
        needed = _needed(heading, column)
        if keys is None or place < keys or used + needed <= console.width:
            shown.append(place)
            used += needed + _GAP
    widths = {place: max(map(cell_len, columns[place]), default=0) for place in shown}
    short = {place for place in shown if widths[place] <= _SHORT}
    # Long cells wrap first. rich would cut cells that must not wrap.
    whole, total = set(), _LEAST * len(shown)
    for place in sorted(short, key=widths.__getitem__):
        more = _needed(headings[place], columns[place]) + _GAP - _LEAST
        if total + more <= console.width:
            whole.add(place)
            total += more
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for place in shown:
        numeric = (
            bool(lines) and place in short and all(cell in ("", "–") or cell[0].isdigit() for cell in columns[place])
        )
        table.add_column(
            Text(headings[place]),
            justify="right" if numeric else "left",
            no_wrap=place in whole,
            overflow="fold",
        )
    for line in lines:
        table.add_row(*(Text(line[place], _STYLES.get(line[place], "")) for place in shown))
    left = [heading for place, heading in enumerate(headings) if place not in shown]
    with console.capture() as captured:
        console.print(table)
        if left:
            console.print(Text(f"not shown at this width: {', '.join(left)}", "dim"))
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def _console() -> Console:
    """The console of standard output. Its width is the terminal's, else that of ``$COLUMNS``, else ``WIDTH``."""
    console = Console(highlight=False, force_jupyter=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = WIDTH
    return console


def _needed(heading: str, column: Sequence[str]) -> int:
    return max(cell_len(heading), min(_WRAPPED, max(map(cell_len, column), default=0)))
