"""What a comparison says: how many cases became slower or faster."""

from __future__ import annotations

import pandas as pd

from tilescope_dashboard import words
from tilescope_dashboard.figures.compare import MOST

_NOTHING = "Choose a run or an implementation to hold against this one."
_READING = "Slower: the other takes longer. Worst first; a bar is the 95 % interval of the ratio of medians."


def headline(kernel: str, others: int, rows: pd.DataFrame) -> str:
    """The verdicts of ``tilescope.compare.compare``'s rows, counted; ``others`` is how many the kernel is held against."""
    if not others:
        return words.heading("Compare", _NOTHING)
    judged = rows["verdict"].value_counts()
    counted = ", ".join(f"{judged[word]} {word}" for word in ("slower", "faster", "alike") if word in judged)
    more = f" The figure shows the {MOST} worst." if rows["ratio"].notna().sum() > MOST else ""
    return words.heading(f"{kernel} against {others}: {counted or 'no times compared'}", _READING + more)
