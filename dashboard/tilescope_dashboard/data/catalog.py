"""The kernel library's declarations, asked for once per process: if they are not cached on disk, a worker imports PyTorch."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

from tilescope.jobs import questions, warm

_asked: list[Future[list[dict[str, Any]]]] = []


def ask() -> Future[list[dict[str, Any]]]:
    """A future of ``tilescope.jobs.questions.describe``'s answer. A failed one is asked again.

    It runs in a thread, as a server that warms up has no event loop yet.
    """
    if not _asked or (_asked[-1].done() and _asked[-1].exception()):
        _asked[:] = [Future()]
        threading.Thread(target=_answer, args=_asked, name="catalog", daemon=True).start()
    return _asked[-1]


def known() -> list[dict[str, Any]]:
    """The answer if it is there, else an empty list."""
    return _asked[-1].result() if _asked and _asked[-1].done() and not _asked[-1].exception() else []


def _answer(answer: Future[list[dict[str, Any]]]) -> None:
    # The next request will be a job.
    warm.prepare()
    try:
        answer.set_result(asyncio.run(questions.describe()))
    except BaseException as error:  # pages wait for the future, so it must end
        answer.set_exception(error)
