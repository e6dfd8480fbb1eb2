"""Who waits for whom in the collectives of several ranks. Pure: ranks -> skew of each collective.

A collective ends on all ranks together, which tells the ranks' clocks apart. A rank that comes early waits in it for the last one.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tilescope.collectors.foreign_files.rank_trace import Call, Rank
from tilescope.models import terminal
from tilescope.table import units

#: The share of the time in collectives from which waiting is worth a word, and the share of collectives in which one rank comes last.
_WORTH, _MOSTLY = 0.1, 0.75
#: The share of a wait from which a kernel that takes longer explains it.
_CAUSE = 0.25
_ROWS = 10


@dataclass(frozen=True)
class Meeting:
    """A collective of all ranks: each one's call, its wait for the last rank in seconds, and the rank that came last."""

    calls: tuple[Call, ...]
    waits: tuple[float, ...]
    last: int

    @property
    def skew(self) -> float:
        return max(self.waits)


@dataclass(frozen=True)
class Skew:
    """The collectives that all ranks have. ``unmatched`` is the number of calls without a counterpart on every rank."""

    ranks: tuple[Rank, ...]
    meetings: tuple[Meeting, ...]
    unmatched: int

    def waited(self, place: int) -> float:
        """Seconds that a rank waited in collectives, by its place."""
        return sum(meeting.waits[place] for meeting in self.meetings)


def of(ranks: Sequence[Rank]) -> Skew | None:
    """The skew of the ranks' collectives, matched by name, group and order; None where fewer than two ranks share one."""
    ordered = tuple(sorted(ranks, key=lambda rank: rank.number))
    by_key = [defaultdict[tuple[str, str], list[Call]](list) for _ in ordered]
    for rank, calls in zip(ordered, by_key, strict=True):
        for call in rank.calls:
            calls[call.name, call.group].append(call)
    keys = by_key[0].keys() if by_key else ()
    matched = [together for key in keys for together in zip(*(calls[key] for calls in by_key), strict=False)]
    if len(ordered) < 2 or not matched:
        return None
    clocks = [statistics.median(calls[place].end - calls[0].end for calls in matched) for place in range(len(ordered))]
    meetings = []
    for met in matched:
        starts = [call.start - clock for call, clock in zip(met, clocks, strict=True)]
        last = max(range(len(starts)), key=starts.__getitem__)
        # A wait is never longer than the rank's own call.
        waits = tuple(min(starts[last] - start, call.duration) for start, call in zip(starts, met, strict=True))
        meetings.append(Meeting(met, waits, last))
    meetings.sort(key=lambda meeting: meeting.calls[0].start)
    return Skew(ordered, tuple(meetings), sum(len(rank.calls) for rank in ordered) - len(matched) * len(ordered))


def sentences(skew: Skew) -> list[str]:
    """How long ranks wait in collectives, and for which rank."""
    inside = sum(call.duration for meeting in skew.meetings for call in meeting.calls)
    waited = sum(sum(meeting.waits) for meeting in skew.meetings)
    several = units.several(len(skew.meetings), "collective")
    share = waited / inside if inside else 0.0
    waits = f"{units.text(share, 'ratio', 2)} of the time in {{}} is waiting for the last rank"
    place, times = Counter(meeting.last for meeting in skew.meetings).most_common(1)[0]
    late = skew.ranks[place].number
    if share >= _WORTH and times >= _MOSTLY * len(skew.meetings):
        (most, first), *others = sorted(
            ((skew.waited(at), rank.number) for at, rank in enumerate(skew.ranks) if at != place), reverse=True
        )
        also = "".join(f", rank {number} {units.text(waited, 'second')}" for waited, number in others)
        found = [
            f"Rank {first} waits {units.text(most, 'second')}{also} for rank {late}, which comes last in {times} of {several}: "
            + waits.format("them")
        ]
        found.append(_cause(skew.ranks[place], next(rank for rank in skew.ranks if rank.number == first), most))
    elif share >= _WORTH:
        found = [f"Ranks wait for each other in turns: {waits.format(several)}"]
    else:
        found = [f"The {len(skew.ranks)} ranks are even: {waits.format(several)}"]
    if skew.unmatched:
        found.append(f"{units.several(skew.unmatched, 'call')} without a counterpart on every rank are left out")
    return found


def _cause(late: Rank, early: Rank, waited: float) -> str:
    """What the late rank does beyond the one that waits longest for it."""
    longer = {name: seconds - early.kernels.get(name, 0.0) for name, seconds in late.kernels.items()}
    name = max(longer, key=longer.__getitem__, default="")
    if not name or longer[name] < _CAUSE * waited:
        return f"Rank {late.number} runs no kernel much longer than rank {early.number}: its CPU or its data is late"
    return f"Rank {late.number} runs {name} for {units.text(longer[name], 'second')} longer than rank {early.number}"


def table(skew: Skew) -> str:
    """The collectives with the most waiting, those of one name, group and size together."""
    groups: dict[tuple[str, str, float | None], list[Meeting]] = {}
    for meeting in skew.meetings:
        first = meeting.calls[0]
        groups.setdefault((first.name, first.group, first.elements), []).append(meeting)
    ordered = sorted(groups.items(), key=lambda one: -sum(sum(meeting.waits) for meeting in one[1]))
    waited = [f"rank {rank.number} waits" for rank in skew.ranks]
    headings = ["collective", "group", "elements", "calls", "skew", "last", *waited]
    rows = []
    for (name, group, elements), found in ordered[:_ROWS]:
        last, times = Counter(meeting.last for meeting in found).most_common(1)[0]
        waits = [units.text(sum(of), "second") for of in zip(*(meeting.waits for meeting in found), strict=True)]
        size = "" if elements is None else units.text(elements, "count")
        mean = units.text(statistics.mean(meeting.skew for meeting in found), "second")
        by = f"rank {skew.ranks[last].number} ({times} of {len(found)})"
        rows.append([name, group, size, str(len(found)), mean, by, *waits])
    return terminal.render(headings, rows, keys=5)
