"""Share independent work out over the machine's processors, in forked processes that see this one's memory."""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilescope.execution.parentage import die_with


def processors() -> int:
    """How many processes are worth starting here."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def share_out(
    items: Sequence[int],
    work: Callable[[int], None],
    result: Callable[[], Any],
    tick: Callable[[int], None],
    *,
    processes: int,
) -> list[Any]:
    """Call ``work`` for every item, dealt out over ``processes`` forked ones; what each one's ``result()`` gave.

    ``result`` is called in the child at its end, and its value must pickle. ``tick(done)`` is called in this process a
    few times a second; what it raises ends the work, as does the first exception of any child, which is raised here.
    The children run no code at exit and must use neither locks nor threads of this process.
    """
    done = np.frombuffer(mmap.mmap(-1, 8 * processes), dtype=np.int64)
    children: dict[int, int] = {}
    parent = os.getpid()
    answers: dict[int, bytearray] = {}
    try:
        for share in range(processes):
            receive, send = os.pipe()
            with warnings.catch_warnings():
                # Python warns of forks beside threads; see above for what the children keep to.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                # A program may take long: nobody would want what is found by those that are left.
                die_with(parent)
                _be_child(items[share::processes], work, result, done[share : share + 1], send)
            os.close(send)
            children[receive] = child
            answers[receive] = bytearray()
        open_pipes = list(children)
        while open_pipes:
            ready, _, _ = select.select(open_pipes, [], [], 0.2)
            for pipe in ready:
                piece = os.read(pipe, 1 << 20)
                answers[pipe] += piece
                if not piece:
                    open_pipes.remove(pipe)
                    _raise_failure(answers[pipe])
            tick(int(done.sum()))
        return [pickle.loads(bytes(answer))[1] for answer in answers.values()]  # noqa: S301 (our own children's)
    finally:
        for pipe, child in children.items():
            os.close(pipe)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _be_child(
    items: Sequence[int], work: Callable[[int], None], result: Callable[[], Any], done: Any, send: int
) -> None:
    answer: tuple[str, Any]
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for item in items:
            work(item)
            done += 1
        answer = ("result", result())
    except BaseException as error:
        answer = ("error", error)
    try:
        with os.fdopen(send, "wb") as pipe:
            pickle.dump(answer, pipe)
    finally:
        os._exit(0)


def _raise_failure(answer: bytearray) -> None:
    if not answer:
        raise RuntimeError("a process that shared the work was killed")
    kind, value = pickle.loads(bytes(answer))  # noqa: S301 (our own child's)
    if kind == "error":
        raise value
