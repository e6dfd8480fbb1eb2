"""Runs the programs of a launch one after another. While a program waits for the result of another, the next ones run.

On a GPU programs run at the same time in any order. Here a program that waits for later ones, at a lock or a barrier of the grid,
continues when they have ended. Two programs that wait for each other never end. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

#: Most programs that may wait at a time, and frames of Python's stack for each.
DEEPEST, FRAMES = 160, 60


class Turns:
    """Runs each of ``programs`` once. ``interpret`` runs the program of a number, ``tick`` gets the number that have ended."""

    def __init__(self, programs: int, interpret: Callable[[int], None], tick: Callable[[int], None]) -> None:
        self.programs = programs
        self._interpret, self._tick = interpret, tick
        self.begun = self._done = self._within = 0

    def another(self) -> bool:
        """Runs the next program that has not begun. Returns whether there was one."""
        if self.begun == self.programs or self._within == DEEPEST:
            return False
        number, self.begun = self.begun, self.begun + 1
        if self._within:
            sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST * FRAMES))
        self._within += 1
        try:
            self._interpret(number)
        finally:
            self._within -= 1
        self._done += 1
        self._tick(self._done)
        return True
