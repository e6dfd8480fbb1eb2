"""Tables as text: what separates their cells, and how they write numbers. Imports neither torch nor triton."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tilescope.files.bounded_reading import Unreadable

#: What groups digits beside a point or a comma: blanks of several widths and apostrophes.
_GROUPING = re.compile(r"(?<=\d)[ '’\u00a0\u2009\u202f](?=\d{3})")
_WRITTEN = re.compile(r"[+-]?([\d.,]*\d)(e[+-]?\d+)?", re.IGNORECASE)
#: Cells with a point or comma by which a table's numbers are understood: what the first of them show holds for all.
_ENOUGH = 10_000
#: The mark of a number that may be read with either.
_DOUBTFUL = "?"


def cells(line: str, names: Sequence[str]) -> tuple[str, list[str]] | None:
    """What separates a header's cells, and the cells, if the line is a header with all of ``names``; else None."""
    first = "".join(line.lstrip("\ufeff").splitlines()[:1])
    begun = re.search(rf'(?:^|[,;\t])"?{re.escape(names[0])}"?([,;\t])', first)
    if not begun:
        return None
    try:
        found = next(csv.reader([first], delimiter=begun[1]), [])
    except csv.Error:  # a cell is too long
        return None
    return (begun[1], found) if set(names) <= set(found) else None


def decimal_mark(numbers: Iterable[tuple[str, bool]], separator: str) -> str:
    """The decimal mark of a table's numbers: ``.`` or ``,``. ``numbers`` are cells, each with whether it is a whole number.

    ``71,25`` has a decimal comma and ``1,234,567`` none. If every number is like ``12,345`` or ``12.345``, the separator decides:
    semicolons stand where numbers have decimal commas. Raises Unreadable where it says the contrary of such a number.
    """
    usual = "," if separator == ";" else "."
    seen: Counter[str] = Counter()
    doubtful = ""
    for cell, whole in numbers:
        mark = _mark(cell, whole)
        if mark == _DOUBTFUL:
            doubtful = doubtful if doubtful or usual in cell else cell
        elif mark:
            seen[mark] += 1
            if seen.total() == _ENOUGH:
                break
    if seen:
        return max(seen, key=lambda mark: seen[mark])
    if doubtful:
        both = " or ".join(sorted({re.sub("[.,]", "", doubtful), doubtful.replace(",", ".")}))
        raise Unreadable(
            f"{doubtful} in it may be {both}: print it again with LC_ALL=C and a counter with a fraction or above a million"
        )
    return usual


def plain(cell: str, mark: str) -> str:
    """A number as Python writes it, read with that decimal mark. Another text is left as it is."""
    text = _GROUPING.sub("", cell.strip())
    if not _WRITTEN.fullmatch(text):
        return cell
    grouping = "." if mark == "," else ","
    whole, _, fraction = text.partition(mark)
    if grouping in fraction or (
        grouping in whole and not re.fullmatch(rf"[+-]?\d{{1,3}}(\{grouping}\d{{2,3}})+", whole)
    ):
        return cell
    return f"{whole.replace(grouping, '')}.{fraction}" if fraction else whole.replace(grouping, "")


def _mark(cell: str, whole: bool) -> str:
    """The decimal mark that one number shows: ``.``, ``,``, ``_DOUBTFUL``, or nothing."""
    found = _WRITTEN.fullmatch(_GROUPING.sub("", cell.strip()))
    if not found or not re.search(r"[.,]", found[1]):
        return ""
    digits = found[1]
    last = max(digits.rfind("."), digits.rfind(","))
    used, before, after = digits[last], digits[:last], digits[last + 1 :]
    other = "," if used == "." else "."
    if other in before:
        return used
    if used in before:
        return other
    if len(after) != 3 or len(before) > 3 or before in ("", "0") or found[2]:
        return used
    return other if whole else _DOUBTFUL
