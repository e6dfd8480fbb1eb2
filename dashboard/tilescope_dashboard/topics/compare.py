"""What a comparison says: by how much the kernel is faster or slower than the baseline, and in how many cases."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from tilescope.models import verdicts

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import short
from tilescope_dashboard.figures.compare import MOST

_NOTHING = "Choose a baseline: another implementation, or another run."
_READING = (
    "Speedup is the baseline's GPU time over this one's: above 1 this one is faster. Largest speedup first; a bar is the "
    "95 % interval of the ratio of medians."
)


def headline(kernel: str, others: Sequence[str], rows: pd.DataFrame) -> str:
    """``tilescope.models.compare.compare``'s rows in a sentence; ``others`` are the names of the baselines."""
    if not others:
        return html_text.heading("Compare", _NOTHING)
    more = f" The figure shows the first {MOST}." if rows["ratio"].notna().sum() > MOST else ""
    return html_text.heading(verdicts.sentence(rows, kernel, _listed(others)), _READING + more)


def _listed(names: Sequence[str]) -> str:
    """Up to two names, each short enough for a title, else how many there are."""
    return " and ".join(short(name, 40) for name in names) if len(names) < 3 else f"{len(names)} baselines"
