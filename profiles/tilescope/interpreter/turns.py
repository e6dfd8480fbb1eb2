"""The programs of a launch one after another; while one waits for what another is to write, the next ones run in its midst.

On a GPU programs run beside each other, in whatever order. One that waits for those after it, as a lock or a barrier over the
grid has it, goes on once they are done. One that waits for a program which itself waits in the midst of it never does. Standard
library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

#: How many programs may be begun in each other's midst, and the frames of Python's stack that so many take.
DEEPEST, FRAMES = 160, 60


class Turns:
    """Hands out the numbers of ``programs``, each once. ``interpret`` runs one to its end, ``tick`` is told how many have ended."""

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
