"""Ends a process when its parent dies, however the parent dies: no process is left behind."""

from __future__ import annotations

import ctypes
import os
import signal

#: The thread that looks after a process which is not the parent: it sleeps, and holds no lock that a fork could miss.
WATCH = "supervisor-watch"
#: PR_SET_PDEATHSIG of prctl(2).
_SET_PARENT_DEATH_SIGNAL = 1


def die_with(parent: int) -> bool:
    """Has the system kill this process when ``parent`` dies. If it is dead already, this process ends here.

    False where that is not possible: ``parent`` is not this process's parent, or the system is not Linux. The system
    watches the parent's thread that forked, so that thread has to live as long as the child is wanted.
    """
    before = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or before != parent:
        return False
    prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died in between: the signal that was asked for too late is given by hand.
        os.kill(os.getpid(), signal.SIGKILL)
    return True
