"""What a comparison says: how many cases became slower or faster."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tilescope_dashboard import words
from tilescope_dashboard.figures.compare import MOST
from tilescope_dashboard.figures.style import short

_NOTHING = "Choose a run or an implementation to hold against this one."
_READING = "Slower: the other takes longer. Worst first; a bar is the 95 % interval of the ratio of medians."


def headline(kernel: str, others: Sequence[str], rows: pd.DataFrame) -> str:
    """The verdicts of ``tilescope.compare.compare``'s rows, counted; ``others`` are the names of what the kernel is held against."""
    if not others:
        return words.heading("Compare", _NOTHING)
    judged = rows["verdict"].value_counts()
    counted = ", ".join(f"{judged[word]} {word}" for word in ("slower", "faster", "alike") if word in judged)
    more = f" The figure shows the {MOST} worst." if rows["ratio"].notna().sum() > MOST else ""
    return words.heading(f"{kernel} against {_listed(others)}: {counted or 'no times compared'}", _READING + more)


def _listed(names: Sequence[str]) -> str:
    """Up to two names, each short enough for a title, else how many there are."""
    return " and ".join(short(name, 40) for name in names) if len(names) < 3 else f"{len(names)} others"
