"""Decodes the buffer that records fill on the GPU, as ``lowering`` lays it out. Needs neither torch nor triton."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilescope.collectors.lanes.lowering import HEAD, MARK, WARP, Stretch, first, words_of

_LAP = 1 << 32
#: The error with which a launch tells the rate of the SMs' clock, a ratio.
EXACT = 0.02


class Damaged(ValueError):
    """A part of the buffer that no program wrote."""


@dataclass(frozen=True)
class Program:
    """The records of a program, which took so many ``cycles`` of its SM's clock.

    ``warps`` has an array for each warp with a row for each record: scope, whether it ends the scope, and cycles after the program began.
    ``lost`` words of a warp's records had no room, which are its last.
    """

    number: int
    sm: int
    cycles: int
    warps: list[np.ndarray]
    lost: list[int]


def program(words: np.ndarray, warps: int, stretches: list[Stretch]) -> Program:
    """Decodes a program's part of the buffer, an array of uint32. Raises Damaged."""
    if len(words) < first(warps) or words[0] != MARK:
        raise Damaged("no program wrote this part of the buffer")
    head = words[None, : first(warps)]
    room = int(words[3]) // 4 // warps
    found, lost, zero = [], [], int(words[6])
    for warp in range(warps):
        count = int(counts(head)[0, warp])
        own = _records(words[first(warps) + warp * room :][: min(count, room)], stretches)
        if len(own):
            # A record holds 32 bits of the clock, which goes forward in a warp. All warps begin within half a lap.
            begins = (own[0, 2] - zero + _LAP // 2) % _LAP - _LAP // 2
            own[:, 2] = begins + np.concatenate([[0], np.cumsum(np.diff(own[:, 2]) % _LAP)])
        found.append(own)
        lost.append(max(0, count - room))
    return Program(int(words[1]), int(words[2]), int(cycles(head)[0]), found, lost)


def counts(heads: np.ndarray) -> np.ndarray:
    """The words of records of each program's warps. ``heads`` are the first words of programs' parts, up to their records."""
    return heads[:, HEAD::WARP]


def cycles(heads: np.ndarray) -> np.ndarray:
    """The cycles from each program's start to the end of its last warp."""
    found: np.ndarray = (heads[:, HEAD + 1 :: WARP] - heads[:, 6:7]).max(axis=1).astype(np.int64)
    return found


class Times(NamedTuple):
    """When the programs of a launch ran: nanoseconds of their ``start`` and ``end`` after the launch's first began, and their ``sm``.

    They are exact within an SM. SMs share a timer that goes forward by ``step`` nanoseconds, about 1,000 on an H200 (NaN if it did not),
    which may be their error between SMs. An SM ran programs for at most ``longest`` nanoseconds. ``rate`` is cycles in a nanosecond.
    """

    start: np.ndarray
    end: np.ndarray
    sm: np.ndarray
    step: float
    longest: float
    rate: float


def times(heads: np.ndarray, rate: float = math.nan) -> Times:
    """When the programs with these heads ran, all of them within a second. ``rate`` is for a launch too short to tell it to ``EXACT``."""
    start, end = _shared(heads[:, 4], heads[:, 5]), _shared(heads[:, HEAD + 2 :: WARP], heads[:, HEAD + 3 :: WARP])
    order = np.argsort(start, kind="stable")
    _, places, turn = np.unique(heads[order, 2], return_index=True, return_inverse=True)
    first, sm = order[places], turn[np.argsort(order)]
    begun = (heads[:, 6] - heads[first, 6][sm]).view(np.int32).astype(np.int64)
    ran, until, least = np.zeros((3, len(first)), np.int64)
    np.minimum.at(least, sm, begun)
    begun -= least[sm]
    ended = begun + cycles(heads)
    np.maximum.at(ran, sm, ended)
    np.maximum.at(until, sm, end.max(axis=1))
    whole = int((until - start[first]).sum())
    steps = np.diff(np.unique(np.append(start, end)))
    step = float(steps.min()) if len(steps) else math.nan
    if whole and (math.isnan(rate) or step * len(first) <= EXACT * whole):
        rate = float(ran.sum()) / whole
    after = (start[first] - start.min())[sm]
    return Times(after + begun / rate, after + ended / rate, sm, step, float(ran.max()) / rate, rate)


def _shared(low: np.ndarray, high: np.ndarray) -> np.ndarray:
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
