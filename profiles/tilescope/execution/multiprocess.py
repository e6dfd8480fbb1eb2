"""Distributes independent work over forked processes, which see this one's memory.

``multiprocessing``'s pools are not used: they pickle the work and cannot stop it.
"""

from __future__ import annotations

import contextlib
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


def share_out(
    items: Sequence[int],
    work: Callable[[int], None],
    result: Callable[[], Any],
    tick: Callable[[int], None],
    *,
    processes: int,
) -> list[Any]:
    """Calls ``work`` for every item in ``processes`` forked processes. Returns the ``result()`` of each process.

    ``result`` is called at the end of each process, and its value must pickle. ``tick(done)`` is called here a few times a
    second with the number of finished items. An exception from ``tick`` or from any process ends the work and is raised here.
    RuntimeError is raised where a process is killed.

    The processes must not use locks or threads of this one. They end with this process, and what they started ends with them.
    """
    fork = multiprocessing.get_context("fork")
    done = np.frombuffer(mmap.mmap(-1, 8 * processes), dtype=np.int64)
    parent = os.getpid()

    def child(share: int, answer: connection.Connection[Any, Any]) -> None:
        os.setsid()  # a group of its own, so that what it starts can be killed with it
        die_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            for item in items[share::processes]:
                work(item)
                done[share] += 1
            answer.send((None, result()))
        except BaseException as error:
            answer.send((error, None))
        # Without the parent's exit handlers.
        os._exit(0)

    children = []
    answers: list[connection.Connection[Any, Any]] = []
    results: dict[int, Any] = {}
    try:
        for share in range(processes):
            receive, send = fork.Pipe(duplex=False)
            answers.append(receive)
            process = fork.Process(target=child, args=(share, send))
            with warnings.catch_warnings(), send:
                # Python warns of forks beside threads; the docstring says what the processes must not use.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            children.append(process)
        while len(results) < processes:
            waiting = {share: answer for share, answer in enumerate(answers) if share not in results}
            connection.wait(waiting.values(), 0.2)
            results |= {share: _received(answer) for share, answer in waiting.items() if answer.poll()}
            tick(int(done.sum()))
        return [results[share] for share in range(processes)]
    finally:
        for process in children:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        for answer in answers:
            answer.close()


def _received(answer: connection.Connection[Any, Any]) -> Any:
    """A child's result. Raises the child's exception."""
    try:
        error, result = answer.recv()
    except (EOFError, OSError):
        raise RuntimeError("a process that shared the work was killed") from None
    if error is not None:
        raise error
    return result
