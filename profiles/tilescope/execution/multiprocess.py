"""Distributes independent work over forked processes, which see this one's memory.

``multiprocessing``'s pools are not used: they pickle the work and cannot stop it.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np

from tilescope.execution.parentage import die_with


def processors() -> int:
    """The number of processes worth starting here: the processors of this process."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


class Ended(RuntimeError):
    """A process that ended without an answer. ``code`` is its exit status, negative for a signal."""

    def __init__(self, code: int | None) -> None:
        super().__init__("a process that shared the work was killed")
        self.code = code


class Child:
    """A forked process that answers once, with the value of ``work()``, which must pickle, or with its exception.

    It must not use locks or threads of this process. It ends with this process, and what it started ends with it.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        fork = multiprocessing.get_context("fork")
        self.answer, send = fork.Pipe(duplex=False)
        self._process = fork.Process(target=_work, args=(work, send, os.getpid()))
        with warnings.catch_warnings(), send:
            # Python warns of forks beside threads; the docstring says what the process must not use.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()

    def result(self) -> Any:
        """The answer, which is waited for. Raises the process's exception, and Ended where there is no answer."""
        try:
            error, result = self.answer.recv()
        except (EOFError, OSError):
            self._process.join(1.0)
            raise Ended(self._process.exitcode) from None
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """Kills the process with all that it started."""
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.answer.close()


def _work(work: Callable[[], Any], answer: connection.Connection[Any, Any], parent: int) -> None:
    os.setsid()  # a group of its own, so that what it starts can be killed with it
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        answer.send((None, work()))
    except BaseException as error:
        answer.send((error, None))
    # Without the parent's exit handlers.
    os._exit(0)


def share_out(
    items: Sequence[int],
    work: Callable[[int], None],
    result: Callable[[], Any],
    tick: Callable[[int], None],
    *,
    processes: int,
) -> list[Any]:
    """Calls ``work`` for every item in ``processes`` forked processes (``Child``). Returns the ``result()`` of each process.

    ``result`` is called at the end of each process, and its value must pickle. ``tick(done)`` is called here a few times a
    second with the number of finished items. An exception from ``tick`` or from any process ends the work and is raised here.
    """
    done = np.frombuffer(mmap.mmap(-1, 8 * processes), dtype=np.int64)

    def share(number: int) -> Any:
        for item in items[number::processes]:
            work(item)
            done[number] += 1
        return result()

    children: list[Child] = []
    results: dict[int, Any] = {}
    try:
        for number in range(processes):
            children.append(Child(functools.partial(share, number)))
        while len(results) < processes:
            waiting = {number: child for number, child in enumerate(children) if number not in results}
            connection.wait([child.answer for child in waiting.values()], 0.2)
            results |= {number: child.result() for number, child in waiting.items() if child.answer.poll()}
            tick(int(done.sum()))
        return [results[number] for number in range(processes)]
    finally:
        for child in children:
            child.stop()
