"""Findings of a case beside those of its baseline: what a change fixed, and what it introduced. Needs no timings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tilescope.captures import SPEC_FILE
from tilescope.models.advice.finding import AT_ROOF, DISTANCE, Finding
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table.units import several

from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.launched_code import Lines, launched, numbered
from tilescope_dashboard.data.url_state import parts

#: Kinds of change, in the order in which they are shown.
GONE, NEW, REACHED, STAYS = "gone", "new", "reached", "stays"


class Side(NamedTuple):
    """One side of a comparison."""

    loaded: LoadedRun
    kernel: str
    case: KernelCase


def sides(own: Side, tokens: Iterable[str], opened: Callable[[Path], LoadedRun]) -> Iterator[tuple[Side, str]]:
    """The baselines that are another run, kernel or implementation than ``own``, and can be ``opened``, each with its token."""
    for token in tokens:
        run, impl, kernel = parts(token)
        with contextlib.suppress(store.StoreError, OSError):  # a notice of Compare says why
            side = Side(opened(store.find(run)), kernel or own.kernel, own.case._replace(impl=impl or own.case.impl))
            if (side.loaded.run.id, *side[1:]) != (own.loaded.run.id, *own[1:]):
                yield side, token


def code(before: Side, after: Side) -> tuple[Mapping[str, Lines], Mapping[str, Lines]]:
    """The code of two sides to be compared: the files of one name in two runs, else the GPU functions that they launch.

    A side is empty where its run kept no code.
    """
    texts = [side.loaded.sources.get(side.kernel, {}) for side in (before, after)]
    if before.case.impl == after.case.impl and texts[0] != texts[1] and texts[0].keys() & texts[1].keys():
        old, new = ({name: numbered(text) for name, text in side.items() if name != SPEC_FILE} for side in texts)
        return old, new
    return launched(*before), launched(*after)


def changed(before: Sequence[Finding], after: Sequence[Finding]) -> list[tuple[str, Finding]]:
    """The findings of both sides, each with its change. A finding that stays is the present one; a roof is ``REACHED``.

    Findings of one rule that differ in numbers only are the same one.
    """
    sides = [{_key(found): found for found in side if found.rule != DISTANCE} for side in (before, after)]
    found = []
    for key, shown in (sides[0] | sides[1]).items():
        was, now = (key in side for side in sides)
        change = GONE if not now else STAYS if was else REACHED if key[0] in AT_ROOF else NEW
        if change != GONE or key[0] not in AT_ROOF:  # to leave the roof cures nothing
            found.append((change, shown))
    return sorted(found, key=lambda one: (GONE, NEW, REACHED, STAYS).index(one[0]))


def count(found: Iterable[tuple[str, Finding]]) -> str:
    """``2 findings are gone, 1 is new``; empty if none is."""
    changes = [change for change, _ in found]
    counts = {change: changes.count(change) for change in (GONE, NEW)}
    said = [f"{number} {'is' if number == 1 else 'are'} {change}" for change, number in counts.items() if number]
    first = next(filter(None, counts.values()), 0)
    return ", ".join(said).replace(f"{first} ", f"{several(first, 'finding')} ", 1)


def _key(found: Finding) -> tuple[str, str]:
    return found.rule, re.sub(r"[\d.,]+", "#", found.title)
