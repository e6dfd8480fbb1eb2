"""Decodes the buffer that records fill on the GPU, as ``lowering`` lays it out. Needs neither torch nor triton."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilescope.collectors.lanes.lowering import HEAD, MARK, WARP, Stretch, first, words_of

_LAP = 1 << 32


class Damaged(ValueError):
    """A part of the buffer that no program wrote."""


@dataclass(frozen=True)
class Program:
    """The records of a program. Times of its ``start`` and ``end`` are the GPU's global nanoseconds.

    ``warps`` has an array for each warp with a row for each record: scope, whether it ends the scope, and the SM's cycles.
    ``lost`` words of a warp's records had no room, which are its last.
    """

    number: int
    sm: int
    start: int
    end: int
    warps: list[np.ndarray]
    lost: list[int]


def program(words: np.ndarray, warps: int, stretches: list[Stretch]) -> Program:
    """Decodes a program's part of the buffer, an array of uint32. Raises Damaged."""
    if len(words) < first(warps) or words[0] != MARK:
        raise Damaged("no program wrote this part of the buffer")
    head = words[None, : first(warps)]
    room = int(words[3]) // 4 // warps
    found, lost, zero = [], [], None
    for warp in range(warps):
        count = int(counts(head)[0, warp])
        own = _records(words[first(warps) + warp * room :][: min(count, room)], stretches)
        if len(own):
            # A record holds 32 bits of the clock, which goes forward in a warp. All warps begin within half a lap.
            zero = own[0, 2] if zero is None else zero
            begins = zero + (own[0, 2] - zero + _LAP // 2) % _LAP - _LAP // 2
            own[:, 2] = begins + np.concatenate([[0], np.cumsum(np.diff(own[:, 2]) % _LAP)])
        found.append(own)
        lost.append(max(0, count - room))
    return Program(int(words[1]), int(words[2]), int(begun(head)[0]), int(ended(head)[0]), found, lost)


def counts(heads: np.ndarray) -> np.ndarray:
    """The words of records of each program's warps. ``heads`` are the first words of programs' parts, up to their records."""
    return heads[:, HEAD::WARP]


def begun(heads: np.ndarray) -> np.ndarray:
    """The global nanoseconds at which each program began."""
    return _times(heads[:, 4], heads[:, 5])


def ended(heads: np.ndarray) -> np.ndarray:
    """The global nanoseconds at which the last warp of each program ended."""
    found: np.ndarray = _times(heads[:, HEAD + 2 :: WARP], heads[:, HEAD + 3 :: WARP]).max(axis=1)
    return found


def _times(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    found: np.ndarray = low.astype(np.int64) | high.astype(np.int64) << 32
    return found


def _records(words: np.ndarray, stretches: list[Stretch]) -> np.ndarray:
    """Scope, whether it ends the scope, and the clock of each record of a warp."""
    found = []
    at = 0
    while at < len(words):
        moments = stretches[int(words[at])]
        clocks = words[at + 1 : at + 1 + len(moments)].tolist()
        found += [
            (record >> 1, record & 1, clock)
            for clock, shared in zip(clocks, moments, strict=False)
            for record in shared
        ]
        at += words_of(moments)
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def spans(records: np.ndarray) -> list[tuple[int, int, int]]:
    """Scope, start and end of each record's pair in a warp, in cycles. A start or an end without its counterpart is left out."""
    opened: dict[int, int] = {}
    found = []
    for scope, ends, cycle in records.tolist():
        if not ends:
            opened[scope] = cycle
        elif scope in opened:
            begun = opened.pop(scope)
            found.append((scope, begun, cycle))
    return sorted(found, key=lambda span: (span[1], -span[2]))


def rate(programs: list[Program]) -> float:
    """Cycles of the SM's clock in a nanosecond, from the longest program of which no record was lost; NaN where there is none."""
    best, longest = float("nan"), 0
    for one in programs:
        known = [own for own in one.warps if len(own)]
        if known and not any(one.lost) and one.end - one.start > longest:
            longest = one.end - one.start
            cycles = max(own[-1, 2] for own in known) - min(own[0, 2] for own in known)
            best = float(cycles) / longest or float("nan")
    return best
