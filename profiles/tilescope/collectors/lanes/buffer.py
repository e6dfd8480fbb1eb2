"""Decodes the buffer that Proton's records fill on the GPU. Needs neither torch nor triton.

Each program has a part of the buffer: ten words of head, a count of words for each warp, and each warp's records. A full part is
overwritten from its start. A record is two words: a bit for the end, eight bits of scope and 43 bits of the SM's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Words of a program's head: a mark, the program, its SM, bytes of records, and the global time when it began and ended (two each).
HEAD = 10
_MARK, _END, _SCOPE, _SCOPE_BITS, _HIGH = 0xDEADBEEF, 1 << 31, 23, 0xFF, 0x7FF


class Damaged(ValueError):
    """A part of the buffer that no program wrote."""


@dataclass(frozen=True)
class Program:
    """The records of a program. Times of its ``start`` and ``end`` are the GPU's global nanoseconds.

    ``warps`` has an array for each warp with a row for each record: scope, whether it ends the scope, and the SM's cycles.
    ``lost`` records of a warp were overwritten, which are its earliest.
    """

    number: int
    sm: int
    start: int
    end: int
    warps: list[np.ndarray]
    lost: list[int]


def program(words: np.ndarray, warps: int) -> Program:
    """Decodes a program's part of the buffer, an array of uint32. Raises Damaged."""
    if len(words) < HEAD + warps or words[0] != _MARK:
        raise Damaged("no program wrote this part of the buffer")
    start, end = (int(times(words[None, :HEAD], at)[0]) for at in (4, 6))
    room = int(words[3]) // 4 // warps
    found, lost = [], []
    for warp in range(warps):
        count = int(words[HEAD + warp])
        own = words[HEAD + warps + warp * room :][:room]
        kept = own[: min(count, room)]
        if count > room:
            kept = np.roll(own, -(count % room))
        found.append(_records(kept.reshape(-1, 2)))
        lost.append(max(0, count - room) // 2)
    return Program(int(words[1]), int(words[2]), start, end, found, lost)


def longest(heads: np.ndarray) -> int:
    """The most words of records of a warp. ``heads`` are programs' heads with the counts of their warps."""
    return int(heads[:, HEAD:].max())


def times(heads: np.ndarray, at: int) -> np.ndarray:
    """The global nanoseconds at word ``at`` of each head: 4 of the programs' starts, 6 of their ends."""
    found: np.ndarray = heads[:, at].astype(np.int64) | heads[:, at + 1].astype(np.int64) << 32
    return found


def _records(pairs: np.ndarray) -> np.ndarray:
    tags, low = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
    return np.stack([tags >> _SCOPE & _SCOPE_BITS, tags & _END != 0, (tags & _HIGH) << 32 | low], axis=1)


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
            best = float(cycles) / longest
    return best
