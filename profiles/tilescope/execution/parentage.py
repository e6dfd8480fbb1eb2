"""Ends a process when its parent dies, in whatever way."""

from __future__ import annotations

import ctypes
import os
import signal

#: Name of the thread that watches a process other than the parent. It sleeps, and holds no lock when the process forks.
WATCH = "supervisor-watch"
#: PR_SET_PDEATHSIG of prctl(2).
_SET_PARENT_DEATH_SIGNAL = 1


def die_with(parent: int) -> bool:
    """Has the system kill this process when ``parent`` dies. If it is dead already, this process ends here.

    Returns False where ``parent`` is not this process's parent, or the system is not Linux. The system watches the parent's
    thread that forked, so that thread has to live as long as this process is needed.
    """
    before = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or before != parent:
        return False
    prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the request: send the signal here.
        os.kill(os.getpid(), signal.SIGKILL)
    return True
