"""Findings of a case beside those of its baseline: what a change fixed, and what it introduced. Needs no timings."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from tilescope.models.advice.finding import DISTANCE, Finding
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table.units import several

from tilescope_dashboard.data.url_state import parts
from tilescope_dashboard.topics.sentence import Sentence

#: Kinds of change, in the order of the table.
GONE, NEW, STAYS = "gone", "new", "stays"
#: Columns of ``changed``'s frame.
COLUMNS = ("change", "title", "before", "after")
_READING = "Speedups estimate what a fix could win, before the change and after it. They need no timing."


def sides(
    loaded: LoadedRun, kernel: str, tokens: Iterable[str], opened: Callable[[Path], LoadedRun]
) -> Iterator[tuple[LoadedRun, str]]:
    """The baselines that are another run or kernel and can be ``opened``, each with its kernel. An implementation has its own findings."""
    for token in tokens:
        run, impl, other = parts(token)
        if not impl and (run, other or kernel) != (loaded.run.id, kernel):
            with contextlib.suppress(store.StoreError, OSError):  # a notice of Compare says why
                yield opened(store.find(run)), other or kernel


def changed(before: Sequence[Finding], after: Sequence[Finding]) -> pd.DataFrame:
    """A row a finding of either side: its ``change``, its ``title``, and its potential speedups ``before`` and ``after``.

    A speedup is NaN where the side has none. Findings of one rule that differ in numbers only are the same one.
    """
    sides = [{_key(found): found for found in side if found.rule != DISTANCE} for side in (before, after)]
    rows = []
    # A finding that stays has its present title.
    for key, shown in (sides[0] | sides[1]).items():
        was, now = (side.get(key) for side in sides)
        rows.append((GONE if now is None else NEW if was is None else STAYS, shown.title, _most(was), _most(now)))
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    order = found["change"].map([GONE, NEW, STAYS].index)
    return found.iloc[order.argsort(kind="stable")].reset_index(drop=True)


def count(rows: pd.DataFrame) -> str:
    """``2 findings are gone, 1 is new``; empty if none is."""
    counts = {change: int(rows["change"].eq(change).sum()) for change in (GONE, NEW)}
    said = [f"{number} {'is' if number == 1 else 'are'} {change}" for change, number in counts.items() if number]
    first = next(filter(None, counts.values()), 0)
    return ", ".join(said).replace(f"{first} ", f"{several(first, 'finding')} ", 1)


def sentence(rows: pd.DataFrame, where: str, other: str) -> Sentence:
    """The sentence on ``changed``'s rows; ``where`` is the case, ``other`` the baseline."""
    title = count(rows) or ("The findings are the same" if len(rows) else "Neither side has a finding")
    return Sentence(title, f"{where}, against {other}. {_READING}")


def _key(found: Finding) -> tuple[str, str]:
    return found.rule, re.sub(r"[\d.,]+", "#", found.title)


def _most(found: Finding | None) -> float:
    return found.bound.ratio if found and found.bound else math.nan
