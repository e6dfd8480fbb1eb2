"""Stops a program after its deadline. A program that accesses memory stops itself there; one that only computes is stopped here.

A watching thread has Python raise an exception in the interpreting thread. Standard library only.
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

#: Seconds of CPU time after the deadline until a program is stopped, and seconds between two checks.
GRACE, LOOK = 1.0, 0.2


class Watch:
    """Checks ``counting.deadline`` in a thread of its own while a program is ``running``."""

    def __init__(self, counting: Counting) -> None:
        self.running = False
        self._counting = counting
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._ended = threading.Event()
        self._stopped = -math.inf

    def look(self) -> None:
        """Until ``end``, raises OutOfTime in the creator's thread whenever a program there is past its deadline."""
        while not self._ended.wait(LOOK):
            now = time.clock_gettime(self._clock)
            if self.running and now > max(self._counting.deadline, self._stopped) + GRACE:
                self._stopped = now
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(OutOfTime))

    def end(self) -> None:
        """Ends the checks and cancels a pending exception."""
        self._ended.set()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


@contextlib.contextmanager
def watching(counting: Counting) -> Iterator[Watch]:
    """Watches the programs of this thread if they have a deadline. Forked processes are not watched."""
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
