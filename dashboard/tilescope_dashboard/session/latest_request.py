"""Work that a page asks for again and again while somebody types: the newest is done, one at a time, for that page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

#: How long somebody has to leave it at that, in seconds, before the work begins.
PAUSE = 0.3


class Latest:
    """Ends what was begun for older questions, and waits until that has ended, before it begins with the newest."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._task: asyncio.Future[Any] | None = None
        self._closed = False

    async def of(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        """What ``work`` gives; None where something newer was asked for meanwhile, or the page has gone."""
        self._end()
        if self._closed:
            return None
        task = self._task = asyncio.ensure_future(self._after_a_pause(work))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        return None if task.cancelled() else task.result()

    def close(self) -> None:
        """The page has gone: what is under way is ended, and nothing is begun any more."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _after_a_pause(self, work: Callable[[], Awaitable[Result]]) -> Result:
        await asyncio.sleep(PAUSE)
        async with self._turn:
            return await work()
