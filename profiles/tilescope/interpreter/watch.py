"""Ends a program that never ends. One that asks for memory ends there, when its time is up; one that only computes has to be stopped.

Python raises an exception in another thread between two of its instructions, whatever that thread is at. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Iterator

from tilescope.interpreter.memory import OutOfTime
from tilescope.interpreter.meter import Counting

#: Seconds after the deadline before a program is stopped, and between two looks at the time.
GRACE, LOOK = 1.0, 0.2


class Watch:
    """Looks at ``counting.deadline`` from another thread while ``running``."""

    def __init__(self, counting: Counting) -> None:
        self.running = False
        self._counting = counting
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._ended = threading.Event()
        self._stopped = -math.inf

    def look(self) -> None:
        """Until ``end``: raises OutOfTime in the thread that made this while that runs a program whose time is up."""
        while not self._ended.wait(LOOK):
            now = time.perf_counter()
            if self.running and now > max(self._counting.deadline, self._stopped) + GRACE:
                self._stopped = now
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(OutOfTime))

    def end(self) -> None:
        """No program runs any more: what was about to be raised is not."""
        self._ended.set()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


@contextlib.contextmanager
def watching(counting: Counting) -> Iterator[Watch]:
    """A watch over the programs that this thread runs, if they have a deadline. A process that is forked meanwhile has none."""
    watch = Watch(counting)
    if math.isinf(counting.deadline):
        yield watch
        return
    thread = threading.Thread(target=watch.look, daemon=True, name="interpreter-watch")
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()
