"""The kernel library's declarations. Asked for once a process: where they are not kept on disk, a worker imports PyTorch."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

from tilescope.jobs import questions, resident

_asked: list[Future[list[dict[str, Any]]]] = []


def ask() -> Future[list[dict[str, Any]]]:
    """The answer of ``tilescope.jobs.questions.describe``, which may be still to come. One that failed is asked for again.

    In a thread: when a server is made warm, before anybody waits for it, there is no event loop.
    """
    if not _asked or (_asked[-1].done() and _asked[-1].exception()):
        _asked[:] = [Future()]
        threading.Thread(target=_answer, args=_asked, name="catalog", daemon=True).start()
    return _asked[-1]


def known() -> list[dict[str, Any]]:
    """The answer if it has come, else nothing."""
    return _asked[-1].result() if _asked and _asked[-1].done() and not _asked[-1].exception() else []


def _answer(answer: Future[list[dict[str, Any]]]) -> None:
    # What is asked for next will be a job.
    resident.prepare()
    try:
        answer.set_result(asyncio.run(questions.describe()))
    except BaseException as error:  # whatever it is, pages wait for it
        answer.set_exception(error)
